"""Inferometer: what will this server of language models do under this load, and was I right?

Read these files first, in this order:

1. ``specs/deployment.py`` and ``specs/workload.py``: what is served, on what, under which load.
2. ``prediction/predict.py``: the main path, from a study to its memory, roofline and simulated points.
3. ``steptime/memory.py`` and ``steptime/costs.py``: what fits, and what one engine step costs.
4. ``sim/reference.py``: the scheduler's rules in plain Python; ``sim/core.py`` is the same, compiled.
5. ``records/run.py`` and ``records/metrics.py``: what a simulation, a benchmark or a file turns into.
6. ``benchmark/bench.py`` and ``benchmark/point.py``: a server measured, from its address to a run.
7. ``scoring/score.py``: a prediction beside a measurement.

The public names are those of ``__all__``. Each is imported when first used, so ``import inferometer`` costs nothing.

>>> import inferometer as im
>>> im.chip("a100-sxm4-80gb").memory_bytes // 2**30
80
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.benchmark.bench import bench
    from inferometer.benchmark.search import bench_search
    from inferometer.benchmark.sweep import bench_sweep
    from inferometer.errors import InferometerError, InputError
    from inferometer.prediction.predict import Prediction, predict
    from inferometer.prediction.seal import Sealed, read_sealed, verify
    from inferometer.records.importers import load
    from inferometer.records.metrics import Summary, sweep_goodput
    from inferometer.records.run import Run
    from inferometer.report.write import write_report
    from inferometer.scoring.audit import Finding, audit
    from inferometer.scoring.calibrate import calibrate
    from inferometer.scoring.compare import compare
    from inferometer.scoring.explain import Explanation, explain, explain_sweep
    from inferometer.scoring.hunt import hunt
    from inferometer.scoring.score import Score, score
    from inferometer.scoring.scorecard import scorecard
    from inferometer.sim.simulate import simulate
    from inferometer.sim.ticks import simulate_ticks
    from inferometer.specs.chip import Chip, chip
    from inferometer.specs.deployment import Deployment
    from inferometer.specs.model import Model, model
    from inferometer.specs.slo import Slo
    from inferometer.specs.study import Study, load_study
    from inferometer.specs.workload import Workload
    from inferometer.steptime.costs import StepCosts
    from inferometer.steptime.memory import Memory, memory
    from inferometer.steptime.profile import Profile, calibrated_costs, load_profile
    from inferometer.steptime.roofline import Roofline, roofline

__version__ = "0.1.0"

__all__ = [
    "Chip",
    "Deployment",
    "Explanation",
    "Finding",
    "InferometerError",
    "InputError",
    "Memory",
    "Model",
    "Prediction",
    "Profile",
    "Roofline",
    "Run",
    "Score",
    "Sealed",
    "Slo",
    "StepCosts",
    "Study",
    "Summary",
    "Workload",
    "audit",
    "bench",
    "bench_search",
    "bench_sweep",
    "calibrate",
    "calibrated_costs",
    "chip",
    "compare",
    "explain",
    "explain_sweep",
    "hunt",
    "load",
    "load_profile",
    "load_study",
    "memory",
    "model",
    "predict",
    "read_sealed",
    "roofline",
    "score",
    "scorecard",
    "simulate",
    "simulate_ticks",
    "sweep_goodput",
    "verify",
    "write_report",
]

_HOME = {
    "Chip": "specs.chip",
    "Deployment": "specs.deployment",
    "Explanation": "scoring.explain",
    "Finding": "scoring.audit",
    "InferometerError": "errors",
    "InputError": "errors",
    "Memory": "steptime.memory",
    "Model": "specs.model",
    "Prediction": "prediction.predict",
    "Profile": "steptime.profile",
    "Roofline": "steptime.roofline",
    "Run": "records.run",
    "Score": "scoring.score",
    "Sealed": "prediction.seal",
    "Slo": "specs.slo",
    "StepCosts": "steptime.costs",
    "Study": "specs.study",
    "Summary": "records.metrics",
    "Workload": "specs.workload",
    "audit": "scoring.audit",
    "bench": "benchmark.bench",
    "bench_search": "benchmark.search",
    "bench_sweep": "benchmark.sweep",
    "calibrate": "scoring.calibrate",
    "calibrated_costs": "steptime.profile",
    "chip": "specs.chip",
    "compare": "scoring.compare",
    "explain": "scoring.explain",
    "explain_sweep": "scoring.explain",
    "hunt": "scoring.hunt",
    "load": "records.importers",
    "load_profile": "steptime.profile",
    "load_study": "specs.study",
    "memory": "steptime.memory",
    "model": "specs.model",
    "predict": "prediction.predict",
    "read_sealed": "prediction.seal",
    "roofline": "steptime.roofline",
    "score": "scoring.score",
    "scorecard": "scoring.scorecard",
    "simulate": "sim.simulate",
    "simulate_ticks": "sim.ticks",
    "sweep_goodput": "records.metrics",
    "verify": "prediction.seal",
    "write_report": "report.write",
}
"""The module that holds each public name, below this package."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not, beside what the module itself holds."""
    return sorted({*globals(), *__all__})
