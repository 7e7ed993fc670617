"""Two measurements of one load, A and B: is B better, worse, the same, or can it not be told?

Conventions:

- A change is from A to B, in percent of A; of a share (goodput attainment, failed requests) in percentage points.
- Its interval comes from the repeats of a point where there are at least `REPEATS` on each side (Welch's t, on the
  logarithms of each run's figure), else from the requests (`batches`): what varies between runs of one server is then
  not in it.
- ``same``: the whole interval lies within the margin. ``better`` or ``worse``: it does not, and the change is beyond
  chance by Holm's correction over all headline rows of the comparison (the other rows: over those). Else ``cannot
  tell``.
- The comparison is ``worse`` if any headline row is, ``better`` if one is and none is worse, ``same`` if all are.
  Headline: output tok/s, TTFT p99, TPOT p50, and the share of failed requests where any failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np

from inferometer.errors import InputError
from inferometer.records.metrics import PerRequest, Summary
from inferometer.records.run import Run
from inferometer.scoring.batches import (
    QUANTILES,
    Batches,
    Estimate,
    chance,
    difference,
    half_width,
    holm,
    least_values,
    output_rate,
    repeats,
    share,
    statistic,
)
from inferometer.scoring.likeness import unlike

SCHEMA = "inferometer/comparison/1"
MARGIN, CONFIDENCE = 0.02, 0.95
REPEATS = 3
"""Repeats a side from which on they, and not the requests, say how far a figure varies."""

Verdict = Literal["better", "worse", "same", "cannot tell"]


class Metric(NamedTuple):
    """A figure that is compared, and which way is better."""

    path: str
    """``output_tok_per_s``, a latency's ``ttft_ms.p99``, or a share: ``attainment``, ``failed``."""
    unit: str
    more_is_better: bool = False
    headline: bool = False

    @property
    def is_share(self) -> bool:
        """Whether its change is in percentage points."""
        return self.unit == "%"


METRICS = (
    Metric("output_tok_per_s", "tok/s", more_is_better=True, headline=True),
    Metric("ttft_ms.p99", "ms", headline=True),
    Metric("tpot_ms.p50", "ms", headline=True),
    Metric("failed", "%", headline=True),
    Metric("attainment", "%", more_is_better=True),
    *(Metric(path, "ms") for path in ("ttft_ms.mean", "ttft_ms.p50", "tpot_ms.mean", "tpot_ms.p99", "itl_ms.p99")),
    *(Metric(path, "ms") for path in ("e2e_ms.p50", "e2e_ms.p99")),
)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One metric at one load, on both sides."""

    metric: str
    unit: str
    arm: str | None = None
    concurrency: int | None = None
    request_rate: float | None = None
    headline: bool = False
    a: float
    b: float
    change_pct: float | None
    """From a to b, in percent of a; where ``unit`` is %, in percentage points. None where a is 0."""
    low_pct: float | None = None
    high_pct: float | None = None
    """The interval of the change; None where it is not known, for ``reason``."""
    p: float | None = None
    """How likely so large a change is by chance, corrected for the number of rows (Holm)."""
    verdict: Verdict = "cannot tell"
    reason: str = ""
    """Why nothing can be told; empty where something is, or the interval says it: it holds 0."""
    by: str = ""
    """What the interval comes from: ``repeats`` or ``requests``."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `compare` found.

    >>> import inferometer as im
    >>> work = im.Workload.closed_loop(concurrency=1, requests=8, prompt_tokens=64, output_tokens=8)
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> run = im.simulate(dep, work)
    >>> [row.verdict for row in im.compare(run, run).rows if row.metric == "tpot_ms.p50"]
    ['same']
    """

    a: str
    b: str
    """What the sides are: the name and number of their runs."""
    rows: tuple[Change, ...]
    verdict: Verdict
    confidence: float
    margin: float
    """A share."""
    notes: tuple[str, ...] = ()
    """In what the sides are not alike, and what else to bear in mind."""
    differs: tuple[str, ...] = ()
    """In what the servers differ, as far as the runs say: often what the comparison is about."""
    unmatched: tuple[str, ...] = ()
    """Loads that only one side has."""

    @property
    def headline(self) -> list[Change]:
        """The rows that decide."""
        return [row for row in self.rows if row.headline]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``compare``: ``docs/reference/json.md``."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": SCHEMA, **values}


def compare(
    a: Run | Sequence[Run],
    b: Run | Sequence[Run],
    confidence: float = CONFIDENCE,
    *,
    margin: float = MARGIN,
    slo: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare B with A: repeats of one load, or sweeps, matched by arm and load.

    Args:
        a: what was before: a Run, repeats of it, or a sweep.
        b: what is now.
        confidence: of the intervals, and of the verdict: 0.95 calls a difference where there is none once in 20.
        margin: share within which a change does not matter.
        slo: limits in seconds (``ttft_s``, ``tpot_s``, ...) whose attainment is compared; None: those that A's runs
            record, else B's.

    Raises:
        InputError: nothing on one side; no load that both have (of one load a side, whatever it is, the two are
            compared, and the notes say how they differ); a confidence or margin that is not allowed.

    >>> import inferometer as im
    >>> model, chip = im.model("Qwen/Qwen3-8B"), im.chip("a100-sxm4-80gb")
    >>> work = im.Workload.closed_loop(concurrency=1, requests=8, prompt_tokens=64, output_tokens=8)
    >>> kinds = [im.Deployment(model=model, chip=chip, quantization=kind) for kind in (None, "fp8")]
    >>> im.compare(*(im.simulate(dep, work) for dep in kinds)).verdict
    'better'
    """
    _check(confidence, margin)
    sides = [[side] if isinstance(side, Run) else list(side) for side in (a, b)]
    if not all(sides):
        raise InputError.because(f"compare: nothing is in {'B' if sides[0] else 'A'}, so there is nothing to compare")
    pairs, unmatched = _match(*sides)
    limits = _limits(slo, [*sides[0], *sides[1]])
    rows = _judged([row for pair in pairs for row in _rows(pair, confidence, limits)], confidence, margin)
    return Comparison(
        a=_name(sides[0]),
        b=_name(sides[1]),
        rows=tuple(rows),
        verdict=_overall([row.verdict for row in rows if row.headline]),
        confidence=float(confidence),
        margin=float(margin),
        notes=tuple(_notes(pairs)),
        differs=tuple(_differences(pairs)),
        unmatched=tuple(unmatched),
    )


def _check(confidence: float, margin: float) -> None:
    if isinstance(confidence, bool) or not 0.5 <= confidence < 1:
        raise InputError("confidence", confidence, "a share from 0.5 to below 1, such as 0.95")
    if isinstance(margin, bool) or not 0 <= margin < 1:
        raise InputError("margin", margin, "a share of at least 0 and below 1, such as 0.02 for 2 %")


class _Pair(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The runs of one load on both sides."""

    arm: str | None
    a: list[Run]
    b: list[Run]


_Load = tuple[str | None, float | None, int | None]


def _match(a: list[Run], b: list[Run]) -> tuple[list[_Pair], list[str]]:
    """The runs of both sides by arm and load, and a sentence for each load that only one side has."""
    if len({_load(run) for run in a}) == len({_load(run) for run in b}) == 1:
        return [_Pair(arm=b[0].meta.arm, a=a, b=b)], []
    # a page of metrics beside a sweep's results has no load, and is no point of it
    loaded = [[run for run in side if _load(run)[1:] != (None, None)] for side in (a, b)]
    a, b = loaded if all(loaded) else (a, b)
    # one arm against another is what is compared, not a mismatch
    by_arm = any(len({run.meta.arm for run in side}) > 1 for side in (a, b))
    one, two = (_grouped(side, by_arm) for side in (a, b))
    pairs = [_Pair(arm=load[0], a=one[load], b=two[load]) for load in one if load in two]
    if not pairs:
        raise InputError.because(f"compare: A and B have no load in common: A has {_loads(one)}, B has {_loads(two)}")
    lonely = [f"only A has {_loads([load])}" for load in one if load not in two]
    return pairs, lonely + [f"only B has {_loads([load])}" for load in two if load not in one]


def _load(run: Run) -> _Load:
    rate = run.meta.request_rate_per_s
    return run.meta.arm, rate, None if rate is not None else run.meta.concurrency


def _grouped(runs: list[Run], by_arm: bool) -> dict[_Load, list[Run]]:
    """By load, the lowest first."""
    groups: dict[_Load, list[Run]] = {}
    for run in sorted(runs, key=lambda run: _load(run)[1] or _load(run)[2] or 0):
        arm, rate, users = _load(run)
        groups.setdefault((arm if by_arm else None, rate, users), []).append(run)
    return groups


def _loads(loads: Iterable[_Load]) -> str:
    named = []
    for arm, rate, users in loads:
        load = f"{rate:g}/s" if rate is not None else "no stated load" if users is None else f"C={users}"
        named.append(f"{arm} {load}" if arm else load)
    return ", ".join(named)


def _limits(slo: Mapping[str, float] | None, runs: list[Run]) -> dict[str, float]:
    given = slo if slo is not None else next((run.meta.slo for run in runs if run.meta.slo), {})
    return {name: limit for name, limit in given.items() if name != "attainment"}


def _name(runs: list[Run]) -> str:
    first = runs[0].meta.name or runs[0].id
    return first if len(runs) == 1 else f"{first} and {len(runs) - 1} more"


# ---------------------------------------------------------------- one load


def _rows(pair: _Pair, confidence: float, limits: dict[str, float]) -> Iterator[Change]:
    """A row for each metric that both sides know; ``p`` not yet corrected, no verdict."""
    a, b = Batches.of(pair.a), Batches.of(pair.b)
    failing = any(summary.failed for side in (a, b) for summary in side.summaries)
    for metric in METRICS:
        if (metric.path == "failed" and not failing) or (metric.path == "attainment" and not limits):
            continue
        values = [_figures(side, metric, limits) for side in (a, b)]
        if all(values):
            yield _row(pair, metric, (a, b), values, confidence, limits)


def _row(
    pair: _Pair,
    metric: Metric,
    sides: tuple[Batches, Batches],
    values: list[list[float]],
    confidence: float,
    limits: dict[str, float],
) -> Change:
    logs = not metric.is_share
    several = all(len(known) >= REPEATS for known in values) and (not logs or min(map(min, values)) > 0)
    if several:
        found: list[Estimate | str] = [repeats(known, in_log=logs) for known in values]
    else:
        found = [_estimate(side, metric, limits, confidence) for side in sides]
    known = [each for each in found if isinstance(each, Estimate)]
    a, b = (_shown(each, of, logs) for each, of in zip(found, values, strict=True))
    load = pair.b[0].meta
    return Change(
        metric=metric.path,
        unit=metric.unit,
        arm=pair.arm,
        concurrency=load.concurrency if load.request_rate_per_s is None else None,
        request_rate=load.request_rate_per_s,
        headline=metric.headline,
        a=a,
        b=b,
        change_pct=_change(a, b, logs),
        reason=_reason(found),
        **(_interval(difference(*known), logs, confidence) if len(known) == 2 else {}),
        by=("repeats" if several else "requests") if len(known) == 2 else "",
    )


def _reason(found: Sequence[Estimate | str]) -> str:
    """Why there is no interval, and of which side."""
    why = {name: each for name, each in zip("AB", found, strict=True) if isinstance(each, str)}
    if len(set(why.values())) == 1 and len(why) == 2:
        return f"both: {why['A']}"
    return "; ".join(f"{name}: {each}" for name, each in why.items())


def _figures(side: Batches, metric: Metric, limits: dict[str, float]) -> list[float]:
    """The figure of each run that knows it; shares in percent."""
    known = (_figure(summary, metric, limits) for summary in side.summaries)
    return [value for value in known if value is not None]


def _figure(summary: Summary, metric: Metric, limits: dict[str, float]) -> float | None:
    if metric.path == "failed":
        return 100 * (summary.failed or 0) / summary.requests if summary.requests else None
    if metric.path == "attainment":
        try:
            found = summary.goodput(**cast("dict[str, Any]", limits)).attainment
        except InputError:  # only aggregates, or not what a limit needs
            return None
        return None if found is None else 100 * found
    name, _, part = metric.path.partition(".")
    if not part:
        return summary.output_tok_per_s
    value = getattr(getattr(summary, name.replace("_ms", "_s")), part)
    return None if value is None else 1000 * float(value)


def _estimate(side: Batches, metric: Metric, limits: dict[str, float], confidence: float) -> Estimate | str:
    """What the requests say of it; else why they do not."""
    if side.fault:
        return side.fault
    if metric.path == "output_tok_per_s":
        return output_rate(side)
    if metric.is_share:
        meta = side.runs[0].meta
        scheduled = meta.request_rate_per_s is not None or meta.concurrency is None
        found = share(*side.values(lambda each: _hits(each, metric, limits, scheduled)), side.count)
        return msgspec.structs.replace(found, centre=100 * found.centre, stderr=100 * found.stderr)
    name, _, part = metric.path.partition(".")
    values, batch = side.values(lambda each: getattr(each, name.removesuffix("_ms")))
    least = least_values(QUANTILES.get(part, 0.5), confidence)
    if values.size < least:
        return f"{values.size} values, where {part} needs {least}"
    if not values.min() > 0:
        return "a value of 0"
    found = statistic(values, batch, side.count, part)
    return msgspec.structs.replace(found, centre=found.centre + math.log(1000))


def _hits(each: PerRequest, metric: Metric, limits: dict[str, float], scheduled: bool) -> Any:
    """1 for each measured request that failed, or met every limit; as `Summary` counts them."""
    if metric.path == "failed":
        return np.where(each.measured, ~each.completed, np.nan)
    return np.where(each.measured, each.meets(limits, from_scheduled=scheduled), np.nan)


def _shown(found: Estimate | str, values: list[float], logs: bool) -> float:
    """The figure that the change is of."""
    if isinstance(found, str):
        return sum(values) / len(values)
    return math.exp(found.centre) if logs else found.centre


def _change(a: float, b: float, logs: bool) -> float | None:
    if not logs:
        return b - a
    return (b / a - 1) * 100 if a else None


def _interval(found: Estimate, logs: bool, confidence: float) -> dict[str, Any]:
    half = half_width(found, confidence)
    low, high = found.centre - half, found.centre + half
    if logs:
        low, high = (math.expm1(min(edge, 700.0)) * 100 for edge in (low, high))
    return {"low_pct": low, "high_pct": high, "p": chance(found)}


# ---------------------------------------------------------------- verdicts


def _judged(rows: list[Change], confidence: float, margin: float) -> list[Change]:
    """The rows with their verdicts: chance is corrected over the headline rows, and over the others apart."""
    corrected: dict[int, float] = {}
    for headline in (True, False):
        family = [(at, row.p) for at, row in enumerate(rows) if row.headline is headline and row.p is not None]
        adjusted = holm([p for _, p in family])
        corrected |= {at: p for (at, _), p in zip(family, adjusted, strict=True)}
    return [_decided(row, corrected.get(at), confidence, margin) for at, row in enumerate(rows)]


def _decided(row: Change, p: float | None, confidence: float, margin: float) -> Change:
    low, high = row.low_pct, row.high_pct
    if p is None or low is None or high is None:
        return row
    verdict: Verdict = "cannot tell"
    reason = ""
    if max(-low, high) <= margin * 100:
        verdict = "same"
    elif not low <= 0 <= high:
        more = next(metric.more_is_better for metric in METRICS if metric.path == row.metric)
        verdict = "better" if (low > 0) == more else "worse"
        if p > 1 - confidence:
            verdict, reason = "cannot tell", "among so many rows one as far off is likely"
    return msgspec.structs.replace(row, p=p, verdict=verdict, reason=reason)


def _overall(verdicts: list[Verdict]) -> Verdict:
    for verdict in ("worse", "better"):
        if verdict in verdicts:
            return verdict
    return "same" if verdicts and set(verdicts) == {"same"} else "cannot tell"


# ---------------------------------------------------------------- what else to know


def _notes(pairs: list[_Pair]) -> Iterator[str]:
    yield from unlike([(pair.a[0], pair.b[0]) for pair in pairs], ("A", "B"))
    for name, runs in (("A", [r for pair in pairs for r in pair.a]), ("B", [r for pair in pairs for r in pair.b])):
        for what in ("unfit", "partial"):
            bad = [run.meta for run in runs if getattr(run.meta, what)]
            if bad:
                which = f" ({len(bad)} of {len(runs)} runs)" if len(runs) > 1 else ""
                why = bad[0].unfit[0] if what == "unfit" else f"not whole: {bad[0].partial}"
                yield f"{name}{which}: {why}"
    if {run.id for pair in pairs for run in pair.a} & {run.id for pair in pairs for run in pair.b}:
        yield "A and B hold the same run"
    if all(run.requests.height for pair in pairs for run in (*pair.a, *pair.b)) and not any(map(_repeated, pairs)):
        yield f"fewer than {REPEATS} repeats a side: what varies from run to run of one server is in no interval"


def _repeated(pair: _Pair) -> bool:
    return min(len(pair.a), len(pair.b)) >= REPEATS


def _differences(pairs: list[_Pair]) -> Iterator[str]:
    """Arm, versions and flags in which the servers of the two sides differ."""
    one, two = (_server(run) for run in (pairs[0].a[0], pairs[0].b[0]))
    for name in one:
        if name in two and one[name] != two[name]:
            yield f"{name}: A {one[name]}, B {two[name]}"


def _server(run: Run) -> dict[str, Any]:
    meta = run.meta
    facts = {
        "arm": meta.arm,
        "version": meta.server.get("version"),
        "quantization": meta.deployment.get("quantization"),
    }
    flags = {**meta.deployment.get("flags", {}), **meta.server.get("flags", {})}
    return {name: value for name, value in {**facts, **flags}.items() if value is not None}
