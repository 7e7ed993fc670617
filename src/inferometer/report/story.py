"""What a report tells, in the order of the founding document's post: hook, chart, number, surprises; then the proof."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferometer.report import tables
from inferometer.report.blocks import Block, Bullets, Figure, Post, Section, Table, Text
from inferometer.report.findings import verdict as audited
from inferometer.report.grid import count, figure, signed
from inferometer.report.material import Level, Material, arm_score, slo_words
from inferometer.report.score_view import fitted_line, verdict
from inferometer.report.terminal import metric_name
from inferometer.scoring.score import Row

SURPRISES = 4
"""Misses that are told in words."""
TOLD = ("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "itl_ms.p99", "ttft_knee_concurrency")
"""Figures whose misses are told in words, the worst of each."""


def post(material: Material, drawn: dict[str, Any]) -> Post:
    """The whole report of a material; ``drawn`` are its charts by name."""
    figures = {name: _figure(material, name, chart) for name, chart in drawn.items()}
    sections = (
        _section("The number", *_number(material)),
        _section("What surprised", *_surprises(material)),
        _section("Why: where the tokens went", *_why(material, figures)),
        _section("The five predictions" + (", scored" if material.card else ""), *_predictions(material, figures)),
        _section("Goodput: what could be sold", *_goodput(material)),
        _section("Audit of the measurement", *_audit(material)),
        _section("Speed, memory and the server", *_rest(material, figures)),
        _section("Arms of the study", *_arms(material)),
        _section("What is missing", *_missing(material)),
        _section("Small print", *_small_print(material), folded=True),
    )
    first = _section("The chart", *([figures["throughput"]] if "throughput" in figures else []))
    return Post(
        title=_title(material),
        hook=tuple(hook(material)),
        sections=tuple(section for section in (first, *sections) if section is not None),
        caption=material.caption,
    )


def _section(title: str, *blocks: Block | None, folded: bool = False) -> Section | None:
    kept = tuple(block for block in blocks if block is not None)
    return Section(title=title, blocks=kept, folded=folded) if kept else None


def _title(material: Material) -> str:
    load = f", {material.load}" if material.load else ""
    kind = "predicted" if not material.measured_by else "measured" if not material.predicted_by else "scored"
    return f"{material.served or material.study}{load}: {kind}"


# ---------------------------------------------------------------- hook and number


def hook(material: Material) -> Iterator[str]:
    """What one user gets and what each of many, on the spec sheet, in the model, and in truth."""
    base = material.base
    levels = [level for level in (base.measured or base.predicted) if level.concurrency]
    if len(levels) < 2:
        yield from _short_hook(material)
        return
    few, many = levels[0], levels[-1]
    said = [_each(level, measured=bool(base.measured)) for level in (few, many)]
    one = f"{_users(few)} at {said[0]} tok/s" + ("" if few.concurrency == 1 else " each")
    verb = "serves" if base.measured else "should serve"
    yield f"One {_chips(material)} {verb} {one}, or {_users(many)} at {said[1]} tok/s each."
    if few.roofline_tok_per_s and many.roofline_tok_per_s:
        roof = [figure((level.roofline_tok_per_s or 0) / (level.concurrency or 1)) for level in (few, many)]
        model = [_each(level, measured=False) for level in (few, many)]
        told = f"; the model of the engine's steps built on it, {model[0]} and {model[1]}" if base.measured else ""
        yield f"The chip's spec sheet alone says {roof[0]} and {roof[1]}{told}."


def _short_hook(material: Material) -> Iterator[str]:
    """Of a single load, or of an open loop: its throughput."""
    for level in material.base.levels[-1:]:
        summary = level.measured or level.predicted
        if summary is not None and summary.output_tok_per_s is not None:
            verb = "gives" if level.measured else "should give"
            yield f"At {level.name} {material.served or 'the server'} {verb} {figure(summary.output_tok_per_s)} tok/s."


def _chips(material: Material) -> str:
    deployment = material.base.deployment
    if deployment is None:
        return "server"
    return deployment.chip.name if deployment.chips == 1 else f"server of {deployment.chips} {deployment.chip.name}"


def _users(level: Level) -> str:
    return "1 user" if level.concurrency == 1 else f"{level.concurrency:,} users"


def _each(level: Level, *, measured: bool) -> str:
    summary = level.measured if measured else level.predicted
    return figure(summary.per_user_tok_per_s if summary is not None else None)


def _number(material: Material) -> Iterator[Block]:
    """The knees with their error, and how many figures are right."""
    sentences = [*(_knee_sentence(material, metric) for metric in tables.KNEES), *_plateau(material)]
    words = " ".join(sentence for sentence in sentences if sentence)
    if words:
        yield Text(words)
    if material.card is not None:
        fitted = fitted_line(material.card)
        yield Text(f"Of everything compared, {_lower(verdict(material.card))}{f' {fitted}' if fitted else ''}")
        yield from (Text(f"Not alike: {note}.") for note in material.card.notes)
    if material.seal_sentence:
        yield Text(_sentence(material.seal_sentence))


def _plateau(material: Material) -> Iterator[str]:
    """Whether what was measured has stopped rising by the last load."""
    known = [level for level in material.base.measured if level.measured and level.measured.output_tok_per_s]
    if len(known) < 2 or known[-2].load == known[-1].load:
        return
    before, last = (level.measured.output_tok_per_s or 0.0 for level in known[-2:] if level.measured)
    growth = 100 * (last / before - 1)
    if growth > PLATEAU_PCT:
        yield f"Measured throughput still rises by {figure(growth)} % from {known[-2].name} to {known[-1].name}."
    else:
        yield f"Measured throughput is flat from {known[-2].name} to {known[-1].name} ({signed(growth)} %)."


PLATEAU_PCT = 3.0
"""A rise of less over the last step of a sweep is none."""
KNEE_NAMES = {"ttft": "TTFT knee", "throughput": "Throughput knee", "server": "Queue at the server"}


def _knee_sentence(material: Material, metric: str) -> str:
    kind = metric.partition("_")[0]
    mine, theirs = (getattr(side, kind) for side in (material.base.predicted_knees, material.base.measured_knees))
    if material.base.is_open:
        return ""
    scored = next(iter(tables.rows_of(material, metric)), None)
    if scored is None:
        if not material.base.predicted:
            return f"{KNEE_NAMES[kind]}: measured {tables.users(theirs)}." if theirs is not None else ""
        known = f", measured {tables.users(theirs)}" if theirs is not None else ""
        unknown = ", measured not known" if material.card and not known else ""
        return f"{KNEE_NAMES[kind]}: predicted {tables.users(mine)}{known or unknown}."
    error = f" ({signed(scored.error_pct)} %)" if scored.error_pct else ""
    return f"{KNEE_NAMES[kind]}: predicted {tables.users(mine)}, measured {tables.users(theirs)}{error}."


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


# ---------------------------------------------------------------- surprises


def _surprises(material: Material) -> Iterator[Block]:
    """The largest misses, what spoils the measurement, and what the gap is made of."""
    told = [*_misses(material), *(_finding(f) for f in material.findings if f.severity == "spoils")]
    if told:
        yield Bullets(tuple(told))
    elif material.card is not None:
        yield Text("Nothing: no figure is further off than the tolerance, and the audit found nothing that spoils it.")


def _misses(material: Material) -> Iterator[str]:
    missed = material.card.missed if material.card else ()
    worst: dict[str, Row] = {}
    for row in missed:
        if row.metric in TOLD and row.arm in (material.base.name, None):
            other = worst.get(row.metric)
            worst[row.metric] = row if other is None or _off(row) > _off(other) else other
    for row in sorted(worst.values(), key=_off, reverse=True)[:SURPRISES]:
        where = f" at {name}" if (name := tables.load_name(row)) else ""
        error = f", {signed(row.error_pct)} %" if row.error_pct is not None else ""
        mine, theirs = tables.value(row, row.predicted), tables.value(row, row.measured)
        yield f"{_metric(row)}{where}: predicted {mine}, measured {theirs}{error}."


def _off(row: Row) -> float:
    return abs(row.error_pct) if row.error_pct is not None else float("inf")


def _metric(row: Row) -> str:
    name = metric_name(row.metric).removesuffix(" ms").removesuffix(", users")
    return {"out tok/s": "Throughput"}.get(name, name)


def _finding(found: Any) -> str:
    return f"{found.where}: {found.title}. {_sentence(found.evidence)}" if found.where else _sentence(found.evidence)


# ---------------------------------------------------------------- the five predictions


def _predictions(material: Material, figures: dict[str, Figure]) -> Iterator[Block | None]:
    if material.base.predicted:
        yield Text(f"1. The knee. {' '.join(_roofline_words(material))}".strip())
    yield tables.knees(material)
    if material.base.predicted:
        yield Text("2. The throughput curve: a range is the figure with every constant of the model at its slow and at "
                   "its fast end.")  # fmt: skip
    yield tables.curve(material)
    yield tables.claims(material)
    yield from _memory(material)
    yield from _littles_law(material)
    yield from _ttft(material, figures)


def _roofline_words(material: Material) -> Iterator[str]:
    roof, limits = material.base.roofline, material.base.limits
    if roof is None:
        return
    yield (
        f"The ridge is at {figure(roof.ridge_flops_per_byte)} FLOPs a byte: with the KV cache left out, decoding would "
        f"turn compute-bound at {count(roof.knee_batch_naive)} users."
    )
    context = f"at a context of {roof.context_tokens:,} tokens"
    if roof.knee_batch is None:
        flat = count(roof.half_saturation_batch)
        yield f"With each user's cache read too, there is no knee {context}, only a flattening from about {flat} users."
    else:
        yield f"With each user's cache read too, the knee {context} is at about {count(roof.knee_batch)} users."
    seqs, pool = limits.get("max_num_seqs"), limits.get("preemption_concurrency")
    if seqs and pool:
        yield f"max_num_seqs lets {count(seqs)} requests run at once, and the KV pool holds {count(pool)}."


def _memory(material: Material) -> Iterator[Block | None]:
    memory = material.base.memory
    if not memory:
        return
    scored = tables.memory(material)
    size = f"{memory.get('kv_cache_tokens') or 0:,} tokens in {memory.get('num_gpu_blocks') or 0:,} blocks"
    tail = "" if scored or not material.card else " The startup log was not given, so that this is not scored."
    yield Text(f"3. The KV cache: {size}.{tail}")
    yield scored


def _littles_law(material: Material) -> Iterator[Block | None]:
    law = tables.littles_law(material)
    if law is not None:
        scored = arm_score(material.card, material.base)
        points = scored.littles_law if scored else ()
        wrong = [tables.load_name(point) for point in points if not point.ok]
        told = f"It does not hold at {', '.join(wrong)}." if wrong else f"It holds at all {len(points)} points."
        yield Text(f"4. Little's law: requests a second times the mean time a request takes must be the users. {told}")
        yield law
    elif material.card is not None:
        yield Text("4. Little's law: the measurement does not hold what it needs (request rate and E2E, or medians).")


def _ttft(material: Material, figures: dict[str, Figure]) -> Iterator[Block | None]:
    closed = material.base.ttft_knee_closed_form
    if material.base.predicted and not material.base.is_open:
        form = f" Prompts computed one after another would put it at C={closed}." if closed else ""
        yield Text(f"5. TTFT under load. {_knee_sentence(material, 'ttft_knee_concurrency')}{form}")
    yield figures.get("ttft")
    yield None if "ttft" in figures else tables.latency(material, "ttft")


# ---------------------------------------------------------------- the rest


def _goodput(material: Material) -> Iterator[Block | None]:
    found = material.base.measured_goodput or material.base.predicted_goodput
    if found is None:
        return
    side = "measured" if material.base.measured_goodput else "predicted"
    gaps = sorted(gap for gap in (found.gap_p50, found.gap_p99) if gap)
    between = (
        f"{gaps[0]:.2f}x to {gaps[-1]:.2f}x"
        if len(gaps) > 1 and gaps[0] != gaps[-1]
        else f"{gaps[0]:.2f}x"
        if gaps
        else ""
    )
    words = f"Within {slo_words(material.base.slo)}, {side}: {_sold(found.p50, 'p50')}; {_sold(found.p99, 'p99')}."
    if between:
        raw = figure(found.raw_max.output_tok_per_s)
        words += f" The raw maximum is {raw} tok/s: a gap of {between}, and that gap is the marketing."
    binding = dict.fromkeys([*found.binding_p50, *found.binding_p99])
    if binding:
        words += f" What binds is {' and '.join(name[:-2].upper() for name in binding)}."
    yield Text(words)
    yield tables.goodput(material)


def _sold(point: Any, percentile: str) -> str:
    if point is None:
        return f"no point by {percentile}"
    at = f"{point.request_rate_per_s:g}/s" if point.request_rate_per_s is not None else f"C={point.concurrency}"
    return f"{figure(point.output_tok_per_s)} tok/s at {at} by {percentile}"


def _why(material: Material, figures: dict[str, Figure]) -> Iterator[Block | None]:
    featured = material.featured
    if featured is None:
        return
    last = featured.steps[-1]
    share = 100 * last.change / last.tok_per_s if last.tok_per_s else 0.0
    yield Text(
        f"From the ideal, {figure(featured.steps[0].tok_per_s)} tok/s at {featured.load}, to the "
        f"{figure(last.tok_per_s)} measured, one effect switched on after another; {signed(share)} % stay unexplained."
    )
    yield figures.get("waterfall")
    yield Bullets(tuple(map(_sentence, material.sweep.findings))) if material.sweep else None
    yield tables.waterfall(material)
    yield tables.hypotheses(material)


def _audit(material: Material) -> Iterator[Block | None]:
    if not any(arm.runs for arm in material.arms):
        return
    yield Text(audited(material.findings, len([run for arm in material.arms for run in arm.runs])))
    yield tables.findings(material)


def _rest(material: Material, figures: dict[str, Figure]) -> Iterator[Block | None]:
    for name in ("per-user", "tpot", "pareto", "itl", "server", "memory"):
        yield figures.get(name)
    yield tables.ceilings(material)


def _arms(material: Material) -> Iterator[Block | None]:
    found = tables.arms(material)
    if found is None:
        return
    yield found


def _missing(material: Material) -> Iterator[Block]:
    told = tuple(_sentence(each) for each in dict.fromkeys((*material.missing, *material.cautions)))
    if told:
        yield Bullets(told)


def _small_print(material: Material) -> Iterator[Block | None]:
    lines = ["Errors are (predicted - measured) / measured. tok/s are output tokens; GiB are 2^30 bytes."]
    lines += ["Percentiles are of raw values where the measurement holds them, else as its source states them."]
    yield Bullets(tuple(lines))
    yield tables.misses(material)


# ---------------------------------------------------------------- charts


def _figure(material: Material, name: str, chart: Any) -> Figure:
    told, data = FIGURES[name]
    return Figure(
        name=name, title=TITLES[name], told=f"{_sides(material, name)}{told}", chart=chart, data=data(material)
    )


def _sides(material: Material, name: str) -> str:
    """Which colour is what, of the curves."""
    if name not in ("throughput", "per-user"):
        return ""
    base = material.base
    told = [("Blue: predicted, with the range of the model's constants. ", bool(base.predicted))]
    told += [("Orange: measured. ", bool(base.measured))]
    told += [("Grey: the roofline of decoding alone. ", any(level.roofline_tok_per_s for level in base.predicted))]
    return "".join(words for words, there in told if there)


TITLES = {
    "throughput": "Throughput against load",
    "ttft": "Time to first token",
    "per-user": "Speed of each user",
    "tpot": "Time per output token",
    "pareto": "Throughput against speed per user",
    "waterfall": "Where the tokens went",
    "itl": "Gaps between tokens",
    "server": "The server under each load",
    "memory": "Memory of a chip",
}


def _latency_of(metric: str) -> Any:
    def data(material: Material) -> Table | None:
        return tables.latency(material, metric)

    return data


FIGURES: dict[str, tuple[str, Any]] = {
    "throughput": ("Rings: knees and goodput.", tables.curve),
    "ttft": ("What a user waits for the first token: filled dots and solid line p50, hollow dots and dashed line p99.",
             _latency_of("ttft")),
    "per-user": ("What each user gets, and what the company of others costs.", tables.curve),
    "tpot": ("What a token takes once the answer flows: filled dots, solid line p50; hollow dots, dashed line p99.",
             _latency_of("tpot")),
    "pareto": ("Each load is a trade: more tokens in all, or more for each user.", tables.curve),
    "waterfall": ("Blue: the effects of the model, one after another. Last before the measurement: what stays "
                  "unexplained.", tables.waterfall),
    "itl": ("The tail of the gaps: at 1 % stands the p99.", _latency_of("itl")),
    "server": ("What the server itself reported while each load ran.", tables.series),
    "memory": ("What the engine takes for weights and its own work, and what is left for the KV cache.",
               tables.memory_terms),
}  # fmt: skip
