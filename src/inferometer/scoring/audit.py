"""Whether a measurement is what it claims to be, before it is believed: every check, over every point.

The checks are functions in `scoring.auditing`, each of one point, or of the whole sweep, and each looks only at what a
run holds: what a run does not say is no finding. `KINDS` lists what can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from inferometer.errors import InputError
from inferometer.records.metrics import throughput_knee
from inferometer.records.run import Run
from inferometer.scoring.auditing import answers, client, contamination, sample, server
from inferometer.scoring.auditing.finding import KINDS, SEVERITIES, Finding, Kind, Severity, joined
from inferometer.scoring.auditing.point import Point, names, other_load
from inferometer.specs.deployment import Deployment

__all__ = ["KINDS", "SEVERITIES", "Finding", "Kind", "Severity", "audit", "joined"]

SCHEMA = "inferometer/audit/1"

POINT_CHECKS: tuple[Callable[[Point], Finding | None], ...] = (
    answers.nothing,
    contamination.ttft_floor,
    contamination.tpot_floor,
    contamination.cache_hits,
    client.busy,
    client.late,
    client.disagreement,
    client.littles_law,
    client.loop,
    client.overload,
    answers.failed,
    answers.cut,
    answers.partial,
    answers.short,
    answers.token_counts,
    answers.by_chunks,
    server.preemptions,
    server.sampler,
    server.max_num_seqs,
    server.kv_pool,
    sample.drift,
    sample.few_requests,
    sample.few_per_user,
    sample.warmup,
    sample.ramp_down,
    sample.lockstep,
    server.stalls,
    answers.chunks,
    answers.reasoning,
    client.clock,
)
SWEEP_CHECKS: tuple[Callable[[Sequence[Point]], Iterator[Finding]], ...] = (
    contamination.shared_prompts,
    contamination.same_server,
)


def audit(
    runs: Run | Sequence[Run],
    dep: Deployment | None = None,
    *,
    arms: Mapping[str, Deployment] | None = None,
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
) -> list[Finding]:
    """What is wrong with, or must be known of, a measured run or sweep; the worst first, then by load.

    ``dep`` is what is said to have served: without it nothing can be held against the floors of its chip and model.
    ``arms``: the same by arm, for runs that name one. ``prompt_tokens`` and ``output_tokens`` are the lengths asked
    for, where the runs (those of no arm) do not say; a run whose prompts are of another length than ``prompt_tokens``
    is of another load, and neither is taken for its.

    Raises `InputError` where there is no run.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> run = make_run(RunMeta(kind="measured", concurrency=64, stated={"requests": 100, "failed": 3}))
    >>> [(finding.code, finding.where, finding.severity) for finding in audit(run)][0]
    ('failed_requests', 'C=64', 'warning')
    """
    given = [runs] if isinstance(runs, Run) else list(runs)
    if not given:
        raise InputError("runs", given, "at least one run")
    points = []
    for run, where in zip(given, names(given), strict=True):
        of_arm = (arms or {}).get(run.meta.arm or "")
        lengths = (None, None) if of_arm or other_load(run, prompt_tokens) else (prompt_tokens, output_tokens)
        points.append(Point(run, of_arm or dep, *lengths, where))
    knee = throughput_knee(given)
    for point in points:
        point.knee = knee
    found = [finding for point in points for check in POINT_CHECKS if (finding := check(point))]
    found += [finding for check in SWEEP_CHECKS if len(points) > 1 for finding in check(points)]
    return sorted(found, key=lambda finding: _order(finding, points))


def _order(finding: Finding, points: Sequence[Point]) -> tuple[int, float, float, int]:
    """The worst first, then by load, those of several points at their first; then by kind."""
    first = next((p for p in points if p.where == finding.where or finding.where.startswith(f"{p.where},")), points[0])
    load = (float(first.meta.concurrency or 0), first.meta.request_rate_per_s or 0.0)
    return (SEVERITIES.index(finding.severity), *load, list(KINDS).index(finding.code))
