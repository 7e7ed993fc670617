"""Draws workloads: `generate` turns a description into columns of requests, from named random streams of one seed.

Read in this order: ``requests`` (the front door), ``arrivals``, ``lengths``, ``traces`` (files), ``streams``.
"""

from inferometer.workload.requests import Requests, generate
from inferometer.workload.streams import stream

__all__ = ["Requests", "generate", "stream"]
