"""Every chart of a report, by name, and each as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferometer.report.chart_curves import pareto, per_user, throughput, tpot, ttft
from inferometer.report.chart_detail import itl, memory_bar, server, waterfall
from inferometer.report.chart_theme import png, svg
from inferometer.report.material import Material

__all__ = ["CHARTS", "charts", "png", "svg"]

CHARTS: dict[str, Callable[[Material], Any]] = {
    "throughput": throughput,
    "ttft": ttft,
    "per-user": per_user,
    "tpot": tpot,
    "pareto": pareto,
    "waterfall": waterfall,
    "itl": itl,
    "server": server,
    "memory": memory_bar,
}
"""By name, in the order of the report; each gives None where the material has nothing to draw."""


def charts(material: Material) -> dict[str, Any]:
    """The charts that the material has figures for."""
    drawn = {name: chart(material) for name, chart in CHARTS.items()}
    return {name: chart for name, chart in drawn.items() if chart is not None}
