"""An OpenAI-compatible server without a GPU, paced by the simulator's scheduler.

Read these files first, in this order: ``engine`` (steps in time), ``scheduler`` (the simulator's, fed while it runs),
``server`` (a request's way), ``answers`` (how tokens are written). `serve` starts one for tests and demonstrations.
"""

from inferometer.emulator.process import serve

__all__ = ["serve"]
