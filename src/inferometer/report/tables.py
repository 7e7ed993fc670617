"""The tables of a report, as plain cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inferometer.records.metrics import Point, Summary, SweepGoodput
from inferometer.report.blocks import Table, table
from inferometer.report.findings import distance, grouped
from inferometer.report.grid import count, figure, gib, milliseconds, percent, signed
from inferometer.report.material import ArmMaterial, Level, Material, arm_score
from inferometer.report.terminal import differences, metric_name
from inferometer.scoring.audit import joined
from inferometer.scoring.score import Row

KNEES = {
    "ttft_knee_concurrency": "TTFT (p99 > 2 x p50)",
    "throughput_knee_concurrency": "throughput (where the curve bends most)",
    "server_knee_concurrency": "server (requests wait, or the KV pool is full)",
}


def rows_of(material: Material, *metrics: str, arm: ArmMaterial | None = None) -> list[Row]:
    """The score's rows of these metrics, of the base or of an arm."""
    name = (arm or material.base).name
    rows = material.card.rows if material.card else ()
    return [row for row in rows if row.metric in metrics and row.arm in (name, None)]


def load_name(row: Any) -> str:
    """``C=8`` or ``2/s`` of anything with a load; empty without."""
    if row.request_rate is not None:
        return f"{row.request_rate:g}/s"
    return "" if row.concurrency is None else f"C={row.concurrency}"


def users(value: float | None) -> str:
    """A knee: ``C=8`` or ``none``."""
    return "none" if value is None else f"C={value:g}"


def value(row: Row, number: float | None) -> str:
    """A figure of a score's row with its unit."""
    if row.unit == "users":
        return users(number)
    if number is None:
        return "none"
    if row.unit == "bytes":
        return f"{gib(number)} GiB"
    if row.unit != "ms":
        return f"{figure(number)} {row.unit}"
    text = milliseconds(number / 1000)
    return text if text.endswith(" s") else f"{text} ms"


def span(low: float | None, high: float | None) -> str:
    """``85.0-93.0``; empty where both are the same or unknown."""
    return "" if low is None or high is None or low == high else f"{figure(low)}-{figure(high)}"


def yes(value: bool | None) -> str:
    """``yes``, ``no``, or nothing where it is not known."""
    return "" if value is None else "yes" if value else "no"


# ---------------------------------------------------------------- predictions 1 to 5


def knees(material: Material) -> Table | None:
    """Predictions 1 and 5: where the sweep bends."""
    rows = []
    for metric, name in KNEES.items():
        scored = next(iter(rows_of(material, metric)), None)
        kind = metric.partition("_")[0]
        mine, theirs = (getattr(side, kind) for side in (material.base.predicted_knees, material.base.measured_knees))
        measured = users(theirs) if scored is not None or theirs is not None else "not known" if material.card else ""
        predicted = users(mine) if material.base.predicted else ""
        rows.append((name, predicted, measured, signed(scored.error_pct) if scored else ""))
    return table("Knees", ("<knee", "predicted", "measured", "error %"), rows)


def curve(material: Material) -> Table | None:
    """Prediction 2: the points of the throughput curve, with what a person claimed."""
    claimed = {
        load_name(claim): figure(claim.value)
        for claim in material.claims
        if claim.path == "output_tok_per_s" and claim.value is not None
    }
    errors = {load_name(row): row for row in rows_of(material, "output_tok_per_s")}
    rows = [_curve_row(level, claimed, errors.get(level.name)) for level in material.base.levels]
    headers = ("<load", "roofline", "predicted", "range", "claimed", "measured", "error %", "in range", "a user")
    return table("Output tok/s", headers, rows)


def _curve_row(level: Level, claimed: dict[str, str], scored: Row | None) -> tuple[str, ...]:
    predicted = level.predicted.output_tok_per_s if level.predicted else None
    measured = level.measured.output_tok_per_s if level.measured else None
    each = level.measured or level.predicted
    return (
        level.name,
        figure(level.roofline_tok_per_s),
        figure(predicted),
        span(*level.intervals.get("output_tok_per_s", (None, None))),
        claimed.get(level.name, ""),
        figure(measured),
        signed(scored.error_pct) if scored and measured is not None else "",
        yes(scored.inside) if scored and measured is not None else "",
        figure(each.per_user_tok_per_s) if each else "",
    )


def claims(material: Material) -> Table | None:
    """Every claim beside the model's figure and the measurement."""
    rows = [
        (row.claim, _none(row.claimed), _none(row.predicted), _none(row.measured) if row.known else row.reason or "-",
         signed(row.error_pct), signed(row.model_error_pct), row.closer or "-")
        for row in (material.card.claims if material.card else ())
    ]  # fmt: skip
    headers = ("<claim", "claimed", "model", "measured", "claim's error %", "model's error %", "<closer")
    return table("Claims", headers, rows)


def _none(value: float | None) -> str:
    return "none" if value is None else figure(float(value) if value != int(value) else int(value))


MEMORY = {
    "memory.kv_cache_tokens": "KV cache, tokens",
    "memory.num_gpu_blocks": "KV cache, blocks",
    "memory.kv_pool_bytes": "KV pool, GiB",
    "memory.weight_bytes": "weights, GiB",
    "memory.weight_bytes_per_rank": "weights of one rank, GiB",
}


def memory(material: Material) -> Table | None:
    """Prediction 3: what the engine's startup log says of its KV cache."""
    rows = []
    for row in rows_of(material, *MEMORY):
        cell = gib if row.unit == "bytes" else count
        bounds = "" if row.low is None or row.high is None else f"{cell(row.low)}-{cell(row.high)}"
        cells = [cell(v) if v is not None else "-" for v in (row.predicted, row.measured)]
        rows.append((MEMORY[row.metric], cells[0], bounds, cells[1], signed(row.error_pct), yes(row.inside)))
    return table("Memory", ("<", "predicted", "range", "logged", "error %", "in range"), rows)


def littles_law(material: Material) -> Table | None:
    """Prediction 4: requests a second times mean E2E, against the users there were."""
    scored = arm_score(material.card, material.base)
    rows = [
        (load_name(p), figure(p.in_flight), f"{p.ratio:.3f}", yes(p.ok), p.basis)
        for p in (scored.littles_law if scored else ())
    ]
    return table("Little's law", ("<load", "in flight", "ratio", "holds", "<basis"), rows)


def latency(material: Material, metric: str) -> Table | None:
    """p50 and p99 of a latency at every point, in ms (``ttft``, ``tpot``, ``itl``)."""
    rows = []
    for level in material.base.levels:
        cells: list[str] = []
        for part in ("p50", "p99"):
            mine, theirs = _stat(level.predicted, metric, part), _stat(level.measured, metric, part)
            cells += [milliseconds(mine), milliseconds(theirs), _error(material, level, f"{metric}_ms.{part}")]
        rows.append((level.name, *cells))
    parts = [f"{p} {name}" for p in ("p50", "p99") for name in ("predicted", "measured", "error %")]
    return table(f"{metric.upper()}, ms", ("<load", *parts), rows)


def _stat(summary: Summary | None, metric: str, part: str) -> float | None:
    return getattr(getattr(summary, f"{metric}_s"), part) if summary is not None else None


def _error(material: Material, level: Level, metric: str) -> str:
    row = next((row for row in rows_of(material, metric) if load_name(row) == level.name), None)
    return signed(row.error_pct) if row and level.measured else ""


# ---------------------------------------------------------------- the rest


def goodput(material: Material) -> Table | None:
    """The most that can be sold within the limits, and the gap to the raw maximum."""
    rows: list[tuple[str, ...]] = []
    for side, found in (("predicted", material.base.predicted_goodput), ("measured", material.base.measured_goodput)):
        rows += _goodput_rows(side, found) if found is not None else []
    headers = ("<side", "<percentile", "goodput tok/s", "at", "raw maximum tok/s", "at", "gap", "<limit that binds")
    return table("Goodput by marginal percentile", headers, rows)


def _goodput_rows(side: str, found: SweepGoodput) -> Iterable[tuple[str, ...]]:
    raw = found.raw_max
    sides: Sequence[tuple[str, Point | None, float | None, tuple[str, ...]]] = (
        ("p50", found.p50, found.gap_p50, found.binding_p50),
        ("p99", found.p99, found.gap_p99, found.binding_p99),
    )
    for name, point, gap, binding in sides:
        yield (
            side,
            name,
            figure(point.output_tok_per_s) if point else "none",
            _at(point) if point else "-",
            figure(raw.output_tok_per_s),
            _at(raw),
            f"{gap:.2f}x" if gap else "-",
            ", ".join(limit[:-2].upper() for limit in binding) or "none",
        )


def _at(point: Point) -> str:
    return f"{point.request_rate_per_s:g}/s" if point.request_rate_per_s is not None else f"C={point.concurrency}"


def ceilings(material: Material) -> Table | None:
    """Share of the ceiling reached at each point, comparable across chips."""
    scored = arm_score(material.card, material.base)
    rows = [
        (f"C={s.concurrency}", figure(s.measured_tok_per_s), figure(s.ceiling_tok_per_s), f"{s.share * 100:.1f}",
         "-" if s.of_roofline is None else f"{s.of_roofline * 100:.1f}")
        for s in (scored.shares_of_ceiling if scored else ())
    ]  # fmt: skip
    headers = ("<load", "measured tok/s", "reading the weights allows", "% of it", "% of the roofline with KV reads")
    return table("Share of the ceiling", headers, rows)


def findings(material: Material) -> Table | None:
    """What the audit found, the worst first, the points of one kind together with the evidence of each of two."""
    rows = []
    for group in grouped(material.findings):
        first = group[0]
        shown = group if len(group) <= EVIDENCE else [max(group, key=distance)]
        told = "; ".join(f"{f.where}: {f.evidence}" if len(group) > 1 else f.evidence for f in shown)
        rows.append((first.severity, joined(f.where for f in group), first.title, told, first.advice))
    return table("Audit", ("<severity", "<where", "<finding", "<evidence", "<what to do"), rows)


EVIDENCE = 2
"""So many points of one kind show their evidence; of more, only the one that is furthest off."""


def waterfall(material: Material) -> Table | None:
    """Each effect's change in tok/s at every load explained."""
    explained = material.explanations
    if not explained:
        return None
    effects = list(dict.fromkeys(step.effect for each in explained for step in each.steps))
    rows = []
    for effect in effects:
        steps = [(next((s for s in e.steps if s.effect == effect), None), e.steps[-1].tok_per_s) for e in explained]
        rows.append((effect, *(_step(step, measured, effect == effects[0]) for step, measured in steps)))
    rows.append(("measured", *(figure(each.steps[-1].tok_per_s) for each in explained)))
    return table("From the roofline to the measurement, tok/s", ("<effect", *(e.load for e in explained)), rows)


def _step(step: Any, measured: float, first: bool) -> str:
    if step is None:
        return "-"
    if first:
        return figure(step.tok_per_s)
    if abs(step.change) < NEGLIGIBLE * measured:
        return "0"
    return f"{'+' if step.change > 0 else '-'}{figure(abs(float(step.change)))}"


NEGLIGIBLE = 0.0005
"""Share of the measured throughput below which an effect is told as 0."""


def hypotheses(material: Material) -> Table | None:
    """Settings the server may have had, judged by the tails they would have given."""
    rows = [
        (h.name, yes(h.stated), f"{h.error:.3f}", yes(h.supported))
        for h in (material.sweep.hypotheses if material.sweep else ())
    ]
    return table("Settings that the tails speak for", ("<setting", "stated", "error of the tails", "supported"), rows)


def arms(material: Material) -> Table | None:
    """Every arm of the study side by side."""
    if len(material.arms) < 2:
        return None
    rows = [_arm_row(arm, material.base) for arm in material.arms]
    headers = ("<arm", "<differs in", "points measured", "KV GiB", "requests at once", "TTFT knee", "measured knee",
               "goodput p99", "measured goodput p99", "max tok/s", "measured max tok/s", "mean error %")  # fmt: skip
    means = [_mean_error(material, arm) for arm in material.arms]
    return table("Arms", headers, [(*row, mean) for row, mean in zip(rows, means, strict=True)])


def _arm_row(arm: ArmMaterial, base: ArmMaterial) -> tuple[str, ...]:
    pool = next((t["bytes"] for t in arm.memory.get("terms", []) if t["name"] == "KV pool"), None)
    return (
        arm.name,
        ", ".join(differences(base.table, arm.table)) or "-",
        f"{len(arm.runs)} of {len(arm.predicted)}",
        "-" if pool is None else gib(pool),
        figure(arm.limits.get("preemption_concurrency")),
        "-" if arm.is_open else users(arm.predicted_knees.ttft),
        users(arm.measured_knees.ttft) if arm.runs else "-",
        _best(arm.predicted_goodput),
        _best(arm.measured_goodput),
        _most(level.predicted for level in arm.levels),
        _most(level.measured for level in arm.levels),
    )


def _best(found: SweepGoodput | None) -> str:
    return "-" if found is None else "none" if found.p99 is None else figure(found.p99.output_tok_per_s)


def _most(summaries: Iterable[Summary | None]) -> str:
    return figure(max((s.output_tok_per_s for s in summaries if s and s.output_tok_per_s is not None), default=None))


def _mean_error(material: Material, arm: ArmMaterial) -> str:
    rows = rows_of(material, "output_tok_per_s", arm=arm) if arm.runs else []
    errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    return figure(sum(errors) / len(errors)) if errors else "-"


def series(material: Material) -> Table | None:
    """The server's means at each point."""
    rows = [
        (level.name, *(figure(v) for v in (level.measured.running, level.measured.waiting)),
         percent(level.measured.kv_usage), figure(level.measured.preemptions))
        for level in material.base.levels
        if level.measured is not None and level.measured.running is not None
    ]  # fmt: skip
    return table("The server, means", ("<load", "running", "waiting", "KV %", "preemptions"), rows)


def memory_terms(material: Material) -> Table | None:
    """The terms of a chip's memory."""
    from inferometer.report.chart_detail import logged_memory, shown_terms

    logged = logged_memory(material.base.runs)
    rows = [
        (term["name"], gib(term["bytes"]), term["origin"], f"{gib(term['low_bytes'])}-{gib(term['high_bytes'])}",
         gib(logged[term["name"]]) if term["name"] in logged else "-")
        for term in shown_terms(material.base.memory)
    ]  # fmt: skip
    return table("Memory of a chip, GiB", ("<term", "GiB", "<origin", "range", "logged"), rows)


def misses(material: Material, most: int = 12) -> Table | None:
    """The figures that are furthest off."""
    rows = sorted(material.card.missed if material.card else (), key=lambda r: -abs(r.error_pct or 1e9))[:most]
    cells = [
        (metric_name(row.metric).removesuffix(" ms"), load_name(row), row.arm or "", value(row, row.predicted),
         value(row, row.measured), signed(row.error_pct))
        for row in rows
    ]  # fmt: skip
    return table("Largest misses", ("<figure", "<load", "<arm", "predicted", "measured", "error %"), cells)
