"""What the commands print: the answer in one sentence, then tables, then the next command to paste.

At most 100 columns; right-aligned figures of three significant digits with the unit in the header; one accent colour,
and red for what does not fit or is missed. Plain text where the output is no terminal or ``NO_COLOR`` is set. Nothing
is computed here: every figure comes from a Prediction, a Score, a Run's Summary or a catalog entry.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from inferometer.prediction.cautions import cautions, simplifications
from inferometer.prediction.outcome import refused
from inferometer.prediction.predict import PredictedArm, PredictedPoint, Prediction, point_name
from inferometer.records.metrics import STAT_NAMES, Stat, Summary, SweepGoodput
from inferometer.records.metrics import Point as GoodputPoint
from inferometer.records.overload import offered_per_s
from inferometer.records.run import Run
from inferometer.report.grid import (
    IN_SECONDS_FROM_S,
    Column,
    Grid,
    count,
    figure,
    gib,
    milliseconds,
    percent,
)
from inferometer.scoring.score import Score
from inferometer.specs.deployment import Deployment
from inferometer.specs.engine import resolve_version
from inferometer.specs.slo import Slo
from inferometer.specs.study import Arm
from inferometer.specs.workload import Uniform, Workload
from inferometer.steptime.memory import Memory, Term
from inferometer.units import format_bytes_gib, format_count

WIDTH = 100
ACCENT, BAD, FAINT = "cyan", "bold red", "dim"
HEADING = f"bold {ACCENT}"
BAR = 28
"""Columns of a full memory bar."""
EIGHTHS = " ▏▎▍▌▋▊▉"
ENGINES = {"vllm": "vLLM"}
METRICS = {
    "output_tok_per_s": "out tok/s",
    "total_tok_per_s": "total tok/s",
    "request_per_s": "requests/s",
    "per_user_tok_per_s": "per user tok/s",
    "roofline_tok_per_s": "roofline tok/s",
    "ttft_knee_concurrency": "TTFT knee, users",
    "throughput_knee_concurrency": "throughput knee, users",
    "server_knee_concurrency": "server knee, users",
    "goodput.p50": "goodput at p50, tok/s",
    "goodput.p99": "goodput at p99, tok/s",
    "memory.kv_cache_tokens": "KV cache, tokens",
    "memory.num_gpu_blocks": "KV blocks",
    "memory.kv_pool_bytes": "KV pool GiB",
    "memory.weight_bytes": "weights GiB",
    "memory.weight_bytes_per_rank": "weights of a rank GiB",
}
"""How metrics are called in tables; the others by `metric_name`."""


def make_console(file: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """A console of at most 100 columns; without escape codes unless it is a terminal and ``NO_COLOR`` is not set."""
    console = Console(file=file, stderr=stderr, highlight=False)
    if not console.is_terminal or os.environ.get("NO_COLOR"):
        console = Console(file=file, stderr=stderr, highlight=False, color_system=None, force_terminal=False)
    unknown = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = WIDTH if unknown else min(WIDTH, console.width)
    return console


def progress_bar(console: Console) -> Progress:
    """A bar with how many are done and the time left; it leaves no trace when it ends."""
    bar = BarColumn(style=FAINT, complete_style=ACCENT, finished_style=ACCENT, pulse_style=ACCENT)
    columns = (TextColumn("{task.description}"), bar, TextColumn("{task.completed} of {task.total}"))
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True)


# ---------------------------------------------------------------- a prediction


def prediction(pred: Prediction, console: Console, study: str = "") -> None:
    """Everything about a prediction; ``study`` is how the command line names it."""
    base = pred.base
    heading(base.arm.deployment, base.arm.points[0].workload, console, base.memory)
    say(console)
    for line in answer(base):
        say(console, line, style="" if base.fits else BAD)
    for arm in pred.arms[1:]:
        if arm.memory.note and arm.memory.note != base.memory.note:
            say(console, f"{arm.name}: {sentence(arm.memory.note)}")
    for arm in pred.arms:
        refusals(arm.runs, console, "" if len(pred.arms) == 1 else f"{arm.name}: ")
    say(console)
    show(_memory_grid(base.memory, console), console)
    if len(pred.arms) > 1:
        say(console)
        show(_arms_grid(pred.arms), console)
    if any(arm.points for arm in pred.arms):
        say(console)
        show(_sweep_grid(base) if len(pred.arms) == 1 else _arm_sweep_grid(pred.arms), console)
        overloads(_overloaded(pred), console)
        say(console)
        for line in _closing(pred):
            say(console, line)
    ranges = [RANGES] if len(pred.arms) == 1 and base.points else []
    for line in [*ranges, *small_print([arm.arm for arm in pred.arms], pred.runs)]:
        say(console, line, style=FAINT)
    say(console)
    _next(pred, console, study)


def _overloaded(pred: Prediction) -> list[Served]:
    points = (point for arm in pred.arms for point in arm.points if point.overloaded)
    return [(run_name(point.run, pred.runs), point.run, point.summary) for point in points]


def answer(arm: PredictedArm) -> list[str]:
    """Whether it fits and how much, and where decoding stops being memory-bound: one sentence each."""
    found, deployment = arm.memory, arm.arm.deployment
    if not found.fits:
        longest = f"one request of max_model_len {deployment.resolved().max_model_len:,} included"
        first = f"It does not fit: {format_bytes_gib(found.shortfall_bytes)} short on each chip, {longest}."
        return [first, sentence(found.reason)]
    each = " a chip" if deployment.chips > 1 else ""
    tokens = format_count(found.kv_cache_tokens * deployment.data_parallel_size)
    each_tokens = count(arm.prompt_tokens + arm.output_tokens)
    room = f"{count(arm.limits.preemption_concurrency)} requests of {each_tokens} tokens"
    fits = f"It fits: {format_bytes_gib(found.kv_pool_bytes)} of KV cache{each}, {tokens} tokens, {room} at once."
    sentences = [fits, _knee(arm)]
    if arm.limits.first_to_bind == "max_num_seqs":
        slots = count(arm.limits.max_num_seqs)
        sentences.insert(1, f"max_num_seqs binds before the cache: {slots} requests run at once.")
    if found.note:
        sentences.insert(1, sentence(found.note))
    return [*sentences, f"No points: {arm.note}."] if arm.note else sentences


def sentence(clause: str) -> str:
    """A clause with a capital in front and a full stop behind."""
    return f"{clause[:1].upper()}{clause[1:]}."


def _knee(arm: PredictedArm) -> str:
    roof, replicas = arm.roofline, arm.arm.deployment.data_parallel_size
    context = f"at a context of {roof.context_tokens:,} tokens"
    if roof.knee_batch is not None:
        return f"Knee {context}: compute-bound from about {count(roof.knee_batch * replicas)} users."
    flat = count(roof.half_saturation_batch * replicas)
    return f"No knee {context}: memory-bound at every batch, flattening from about {flat} users."


def heading(deployment: Deployment, workload: Workload, console: Console, found: Memory) -> None:
    """What runs where under which load: one line, or two where it is long; then the flags in force."""
    version = resolve_version(deployment.engine, deployment.engine_version)
    degrees = {
        "tp": deployment.tensor_parallel_size,
        "pp": deployment.pipeline_parallel_size,
        "dp": deployment.data_parallel_size,
    }
    split = [f"{name}={size}" for name, size in degrees.items() if size > 1]
    split += ["expert parallel"] if deployment.enable_expert_parallel else []
    served = f"{deployment.name} {', '.join(split)}".rstrip()
    rest = f"{ENGINES.get(deployment.engine, deployment.engine)} {version}   {load(workload)}"
    say(console, served + ("   " if len(served) + len(rest) + 3 <= console.width else "\n") + rest, style=HEADING)
    say(console, ", ".join(_flags(deployment, found)), style=FAINT)


def _flags(deployment: Deployment, found: Memory) -> list[str]:
    """The flags that matter most, given or by default, as they are written on the engine's command line."""
    flags = deployment.resolved()
    values: dict[str, Any] = {
        "max_num_seqs": flags.max_num_seqs,
        "max_num_batched_tokens": flags.max_num_batched_tokens,
        "max_model_len": found.max_model_len,
        "gpu_memory_utilization": f"{flags.gpu_memory_utilization:g}",
    }
    if deployment.kv_cache_dtype != "auto":
        values["kv_cache_dtype"] = deployment.kv_cache_dtype
    return [f"{name} {value}" for name, value in values.items()]


def load(workload: Workload) -> str:
    """The workload in a few words."""
    kinds = {
        "closed": "closed loop",
        "open": f"open loop, {workload.arrivals}",
        "sessions": f"sessions of {workload.turns} turns",
    }
    kind = kinds.get(workload.kind, "replay")
    if workload.kind == "trace":
        return kind
    return f"{kind}, {_length(workload.prompt_tokens)} in / {_length(workload.output_tokens)} out"


def _length(length: Any) -> str:
    if isinstance(length, int):
        return f"{length:,}"
    if isinstance(length, Uniform):
        return f"{length.low:,}-{length.high:,}"
    mean = getattr(length, "mean", None)
    mean = mean() if callable(mean) else mean
    return f"~{count(float(mean))}" if mean is not None else "varied"


def _memory_grid(found: Memory, console: Console) -> Grid:
    total = next(term for term in found.terms if term.name == "total")
    columns = (Column("", "left"), Column("GiB"), Column("origin", "left"), Column("range", "left"), Column("", "left"))
    grid = _grid("Memory of a chip", columns)
    for term in _shown_terms(found):
        low, high = gib(term.low_bytes), gib(term.high_bytes)
        bar = Text(_bar(term.bytes / total.bytes, console), style=ACCENT if term.name == "KV pool" else FAINT)
        grid.add(term.name, gib(term.bytes), term.origin, "" if low == high else f"{low}-{high}", bar)
    return grid


def _shown_terms(found: Memory) -> list[Term]:
    """The pool first, what is outside and the total last, and the largest first between them."""
    order = {"KV pool": 0, "outside the engine": 2, "total": 3}
    parts = [term for term in found.terms if term.name != "requested" and term.bytes]
    return sorted(parts, key=lambda term: (order.get(term.name, 1), -term.bytes))


def _bar(share: float, console: Console) -> str:
    whole, eighths = divmod(round(min(max(share, 0), 1.2) * BAR * 8), 8)
    if not (console.encoding or "").lower().startswith("utf"):
        return "#" * (whole + (eighths >= 4))
    return "█" * whole + EIGHTHS[eighths].strip()


LATENCIES = (
    Column("p50", group="TTFT ms"),
    Column("p99", group="TTFT ms"),
    Column("p50", group="TPOT ms"),
    Column("p99", group="TPOT ms"),
)


def _latencies(summary: Summary) -> list[str]:
    return [milliseconds(value) for stat in (summary.ttft_s, summary.tpot_s) for value in (stat.p50, stat.p99)]


def _sweep_grid(arm: PredictedArm) -> Grid:
    first = arm.points[0]
    unit = "req/s" if first.request_rate is not None else "C" if first.concurrency is not None else ""
    columns = (
        Column(unit),
        Column("mean", group="out tok/s"),
        Column("range", "left", "out tok/s"),
        Column("tok/s", group="per user"),
        *LATENCIES,
        Column("%", group="KV"),
        Column("limited by", "left"),
    )
    grid = _grid("Sweep", columns)
    for point in arm.points:
        low, high = point.intervals.get("output_tok_per_s", (None, None))
        grid.add(
            point_name(point).removeprefix("C=").removesuffix("/s"),
            figure(point.summary.output_tok_per_s),
            "" if low is None else f"{figure(low)}-{figure(high)}",
            figure(point.summary.per_user_tok_per_s),
            *_latencies(point.summary),
            percent(point.summary.kv_usage),
            _limited_by(point),
        )
    return grid


def sweep(arm: PredictedArm, console: Console) -> None:
    """A row a point of one arm, its knee and its goodput."""
    show(_sweep_grid(arm), console)
    say(console)
    for line in goodput_and_knee(arm):
        say(console, line)


def _limited_by(point: PredictedPoint) -> Text:
    stopped = point.limited_by.startswith(("KV memory", "max_num_seqs"))
    return Text(point.limited_by or "nothing was served", style=ACCENT if stopped else "")


def _arm_sweep_grid(arms: Sequence[PredictedArm]) -> Grid:
    """Points of one load next to each other, arm by arm."""
    columns = (
        Column(""),
        Column("arm", "left"),
        Column("tok/s", group="out"),
        *LATENCIES,
        Column("p99", group="ITL ms"),
        Column("%", group="KV"),
        Column("limited by", "left"),
    )
    grid = _grid("Sweep", columns)
    for same in _by_load(arms):
        for row, (arm, point) in enumerate(same):
            grid.add(
                "" if row else point_name(point),
                _clipped(arm.name, 18),
                figure(point.summary.output_tok_per_s),
                *_latencies(point.summary),
                milliseconds(point.summary.itl_s.p99),
                percent(point.summary.kv_usage),
                _limited_by(point),
            )
    return grid


def _by_load(arms: Iterable[PredictedArm]) -> list[list[tuple[PredictedArm, PredictedPoint]]]:
    groups: dict[tuple[float, float], list[tuple[PredictedArm, PredictedPoint]]] = {}
    for arm in arms:
        for point in arm.points:
            groups.setdefault((point.request_rate or 0, point.concurrency or 0), []).append((arm, point))
    return [groups[key] for key in sorted(groups)]


def _arms_grid(arms: Sequence[PredictedArm]) -> Grid:
    limited = any(arm.arm.slo.limits() for arm in arms)
    columns = (
        Column("", "left"),
        Column("GiB", group="KV"),
        Column("at once", group="requests"),
        Column("knee", group="TTFT"),
        *([Column(part, group="goodput tok/s") for part in ("p50", "p99")] if limited else []),
        Column("tok/s", group="maximum"),
        Column("differs in", "left"),
    )
    grid = _grid("Arms", columns)
    for arm in arms:
        differs = ", ".join(differences(arms[0].arm.table, arm.arm.table))
        short = f"does not fit, {format_bytes_gib(arm.memory.shortfall_bytes)} short" if not arm.fits else ""
        grid.add(
            Text(_clipped(arm.name, 18).plain, style=ACCENT),
            gib(arm.memory.kv_pool_bytes) if arm.fits else "0",
            figure(arm.limits.preemption_concurrency),
            figure(arm.ttft_knee_concurrency),
            *(_goodput_cells(arm.goodput) if limited else []),
            figure(arm.raw_max_tok_per_s),
            Text(short, style=BAD) + Text("; " if short and differs else "") + Text(differs),
        )
    return grid


def _goodput_cells(goodput: SweepGoodput | None) -> list[str]:
    points = (goodput.p50, goodput.p99) if goodput else (None, None)
    none = "none" if goodput else figure(None)
    return [none if point is None else figure(point.output_tok_per_s) for point in points]


def differences(base: dict[str, Any], arm: dict[str, Any]) -> list[str]:
    """``key value`` for each figure of the arm's table that is not the base's; sections' names are left out."""
    found = []
    for key, mine in arm.items():
        theirs = base.get(key)
        if isinstance(mine, dict) and (isinstance(theirs, dict) or key in SECTIONS):
            found += differences(theirs if isinstance(theirs, dict) else {}, mine)
        elif mine != theirs and key not in ("name", "description"):
            found.append(f"{key} {_short(mine)}")
    return found


SECTIONS = ("deployment", "flags", "workload", "slo", "price")
"""Tables of a study whose names say nothing that their keys do not."""


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["name"]) if "name" in value else " ".join(f"{key} {_short(value[key])}" for key in value)
    if isinstance(value, list) and value:
        return str(value[0]) if len(value) == 1 else f"{value[0]} to {value[-1]}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _closing(pred: Prediction) -> list[str]:
    """Knee and goodput of a single arm, or how to read those of several."""
    return goodput_and_knee(pred.base) if len(pred.arms) == 1 else _how_to_read(pred.arms)


def _how_to_read(arms: Sequence[PredictedArm]) -> list[str]:
    lines = ["TTFT knee: first C with p99 > 2 x p50."] if any(map(_is_closed, arms)) else []
    limited = dict.fromkeys(limits(arm.arm.slo) for arm in arms if arm.arm.slo.limits())
    if limited:
        slo = next(iter(limited)) if len(limited) == 1 else "each arm by its own limits"
        lines.append(f"Goodput ({slo}) by marginal percentile.")
    return lines


def goodput_and_knee(arm: PredictedArm) -> list[str]:
    """One arm's TTFT knee, where it is a closed loop, and its goodput, where it has limits."""
    return [*([_ttft_knee(arm)] if _is_closed(arm) else []), *goodput(arm.goodput, arm.arm.slo)]


def _is_closed(arm: PredictedArm) -> bool:
    return any(point.concurrency is not None for point in arm.points)


def _ttft_knee(arm: PredictedArm) -> str:
    knee = arm.ttft_knee_concurrency
    if len(arm.points) == 1:
        return f"TTFT p99 is {'more' if knee else 'not more'} than twice p50 at C={arm.points[0].concurrency}."
    return f"TTFT knee (p99 > 2 x p50) at C={knee}." if knee else "No TTFT knee (p99 > 2 x p50) up to here."


def small_print(arms: Sequence[Arm], runs: Sequence[Run]) -> list[str]:
    """What closed loops begin with, what was left out, and what is not measured of these chips; each once."""
    closed = any((run.meta.concurrency or 0) > 1 and run.meta.request_rate_per_s is None for run in runs)
    lines = [BURST] if closed and not all(arm.warmup_requests for arm in arms) else []
    lines += map(sentence, simplifications(runs))
    return [*lines, *dict.fromkeys(caution for arm in arms for caution in cautions(arm.deployment.chip))]


RANGES = "Ranges: every constant of the step-time model at its slow and at its fast end."
BURST = "All users start at once: TTFT p99 holds that burst; --warmup-requests N leaves the first N out."


def goodput(found: SweepGoodput | None, slo: Slo) -> list[str]:
    """Goodput by marginal percentile, and the raw maximum with its gap; nothing without an SLO."""
    if found is None:
        return []
    return [f"Goodput by marginal percentile ({limits(slo)}):", f"  {goodput_points(found)}."]


def goodput_points(found: SweepGoodput) -> str:
    """The goodput's points, and the raw maximum with how many times the goodput it is."""
    gaps = ", ".join(f"{figure(gap)}x" for gap in (found.gap_p99, found.gap_p50) if gap)
    raw = f"raw {_goodput_at(found.raw_max)}{f' ({gaps})' if gaps else ''}"
    return f"p99 {_goodput_at(found.p99)}, p50 {_goodput_at(found.p50)}; {raw}"


def _goodput_at(point: GoodputPoint | None) -> str:
    if point is None:
        return "none"
    return f"{figure(point.output_tok_per_s)} tok/s at {_load(point.concurrency, point.request_rate_per_s)}"


def limits(slo: Slo) -> str:
    """The limits in words: ``TTFT < 500 ms, TPOT < 50 ms``."""
    return ", ".join(f"{name[:-2].upper()} < {_limit(limit)}" for name, limit in slo.limits().items())


def _limit(time_s: float) -> str:
    return f"{format_count(time_s)} s" if time_s >= IN_SECONDS_FROM_S else f"{format_count(time_s * 1000)} ms"


def refusals(runs: Iterable[Run], console: Console, where: str = "") -> None:
    """How many requests were refused, by reason; nothing where none was."""
    counts: dict[str, int] = {}
    total = 0
    for run in runs:
        total += run.requests.height
        for reason, count_ in refused(run).items():
            counts[reason] = counts.get(reason, 0) + count_
    for reason, count_ in counts.items():
        say(console, f"{where}{count_:,} of {total:,} requests are refused: {reason}.", style=BAD)


Served = tuple[str, Run, Summary]
"""A point's name, its run, and the summary that is shown of it."""


def overloads(points: Sequence[Served], console: Console) -> None:
    """Points that offer more than is served: by how much, and what that means; nothing where there is none."""
    if not points:
        return
    say(console)
    for name, run, summary in points:
        say(console, f"{name} overloaded: serves {_served(run, summary)} requests/s, the queue grows.")
    say(console, "TTFT then depends on how long the run is.")


def _served(run: Run, summary: Summary) -> str:
    configured = run.meta.request_rate_per_s
    offered = figure(offered_per_s(run)) if configured is None else f"{configured:g}"
    return f"{figure(summary.request_per_s)} of {offered}"


def _next(pred: Prediction, console: Console, study: str) -> None:
    if not pred.base.fits:
        fixes = [f"--set {_key(change)}" for change in pred.base.would_fit]
        say(
            console,
            "What would make it fit:" if fixes else "Nothing that was tried makes it fit: a smaller model would.",
        )
        for row, fix in enumerate(fixes):
            command(
                console, "  or  " if row else "  ", fix if row or not study else f"inferometer predict {study} {fix}"
            )
    elif study:
        command(console, "Score it once you have measured:  ", f"inferometer score {study} MEASURED")


def _key(change: str) -> str:
    return change if change.startswith("chip=") else f"deployment.{change}"


# ---------------------------------------------------------------- runs


def run_summary(runs: Sequence[Run], console: Console, summaries: Sequence[Summary] | None = None) -> None:
    """One row a run, with its id; ``summaries`` where they are not of the whole runs (warm-up left out)."""
    arms = len({run.meta.arm for run in runs}) > 1
    columns = (
        Column(""),
        *([Column("arm", "left")] if arms else []),
        Column("", group="requests"),
        Column("tok/s", group="out"),
        *LATENCIES,
        Column("p50", group="E2E s"),
        Column("preempted"),
        Column("id", "left"),
    )
    grid = _grid("Runs", columns)
    for run, summary in zip(runs, summaries or [run.summary() for run in runs], strict=True):
        grid.add(
            run_load(run),
            *([_clipped(run.meta.arm or "", 18)] if arms else []),
            figure(summary.requests),
            figure(summary.output_tok_per_s),
            *_latencies(summary),
            figure(summary.e2e_s.p50),
            figure(summary.preemptions),
            run.id,
        )
    show(grid, console)


def run_load(run: Run) -> str:
    """``C=8``, ``2/s``, ``replay``, or ``load not stated`` of an imported run that says none and is no replay."""
    stated = run.meta.kind != "imported" or run.meta.workload.get("kind") == "trace"
    return _load(run.meta.concurrency, run.meta.request_rate_per_s, "replay" if stated else NOT_STATED)


def errors_of(runs: Iterable[Run], most: int) -> dict[str, int]:
    """How often each error ended a request, the most frequent first, at most so many."""
    counts = Counter(text for run in runs for text in run.requests["error"].drop_nulls().to_list())
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:most])


def run_name(run: Run, runs: Sequence[Run]) -> str:
    """A run's load, after its arm where the runs are of several."""
    several = len({each.meta.arm for each in runs}) > 1
    return f"{run.meta.arm} at {run_load(run)}" if several else run_load(run)


NOT_STATED = "load not stated"


def _load(concurrency: int | None, request_rate: float | None, neither: str = "replay") -> str:
    if request_rate is not None:
        return f"{request_rate:g}/s"
    return neither if concurrency is None else f"C={concurrency}"


STORED = (
    Column(""),
    Column("kind", "left"),
    Column("", group="requests"),
    Column("tok/s", group="out"),
    Column("p50", group="TTFT ms"),
    Column("p99", group="TTFT ms"),
    Column("p50", group="TPOT ms"),
    Column("id", "left"),
    Column("name", "left"),
)


def imported(runs: Sequence[Run], console: Console) -> None:
    """What was read from result files, a row a run."""
    grid = _grid("Runs", STORED)
    for run in runs:
        s = run.summary()
        figures = (figure(s.requests), figure(s.output_tok_per_s), *_latencies(s)[:3])
        grid.add(run_load(run), run.meta.kind, *figures, run.id, _clipped(run.meta.name or run.meta.model or "", 34))
    show(grid, console)


def stored(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Rows of the store's index; ``state`` of a row, where any has one, is why not to trust it as it is."""
    states = any(row.get("state") for row in rows)
    grid = _grid("Runs", [*STORED, *([Column("state", "left")] if states else [])])
    for row in rows:
        neither = NOT_STATED if row["kind"] == "imported" else "replay"
        grid.add(
            _load(row["concurrency"], row["request_rate_per_s"], neither),
            row["kind"],
            figure(row["requests"]),
            figure(row["output_tok_per_s"]),
            *(milliseconds(row[key]) for key in ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s")),
            row["id"],
            _clipped(row["name"] or row["model"] or "", 34),
            *([Text(row.get("state", ""), style=BAD)] if states else []),
        )
    show(grid, console)


def run_details(run: Run, console: Console) -> None:
    """One run: what it was, its rates, and the distribution of each latency."""
    meta, summary = run.meta, run.summary()
    say(console, f"{run.id}  {meta.name or meta.model or ''}", style=HEADING)
    facts: dict[str, Any] = {
        "kind": meta.kind, "tool": f"{meta.tool} {meta.tool_version}".strip(), "model": meta.model, "chip": meta.chip,
        "load": run_load(run), "policy": meta.policy, "seed": meta.seed, "created": meta.created, "source": meta.source,
    }  # fmt: skip
    grid = _grid("", [Column("", "left"), Column("", "left")])
    for key, value in facts.items():
        if value not in (None, ""):
            grid.add(Text(key, style=FAINT), str(value))
    show(grid, console)
    for reason in meta.unfit:
        say(console, f"Unfit: {reason}.", style=BAD)
    if meta.partial:
        say(console, f"Not whole: {meta.partial}.", style=BAD)
    for note in meta.notes:
        say(console, note, style=FAINT)
    for text, times in errors_of([run], 2).items():
        line = f"  {times:,} x {' '.join(text.split())}"
        say(console, line if len(line) <= console.width else line[: console.width - 3] + "...", style=BAD)
    rates = {
        "requests": summary.requests, "failed": summary.failed, "out tok/s": summary.output_tok_per_s,
        "total tok/s": summary.total_tok_per_s, "requests/s": summary.request_per_s, "duration s": summary.duration_s,
        "preemptions": summary.preemptions, "Little's law": summary.littles_law,
    }  # fmt: skip
    say(console)
    say(console, "   ".join(f"{key} {figure(value)}" for key, value in rates.items() if value is not None))
    say(console)
    show(_distributions(summary), console)


def _distributions(summary: Summary) -> Grid:
    columns = ("n", "mean", "std", "p50", "p90", "p95", "p99")
    grid = _grid("ms", [Column("", "left"), *map(Column, columns)])
    for name in STAT_NAMES:
        stat: Stat = getattr(summary, name)
        same = name.endswith("_from_scheduled_s") and stat == getattr(summary, name.replace("_from_scheduled", ""))
        if (
            not name.endswith("_per_s")
            and not same
            and any(getattr(stat, column) is not None for column in columns[1:])
        ):
            times = (milliseconds(getattr(stat, column)) for column in columns[1:])
            grid.add(name.removesuffix("_s"), figure(stat.n), *times)
    return grid


# ---------------------------------------------------------------- a score


def score(card: Score, console: Console, *, brief: bool = False) -> None:
    """A prediction beside a measurement: `report.score_view.score`."""
    from inferometer.report import score_view  # it is made of what is here, so it imports this module

    score_view.score(card, console, brief=brief)


def verdict(card: Score) -> str:
    """How many figures are within the tolerance, and the worst error, in one sentence."""
    from inferometer.report import score_view

    return score_view.verdict(card)


def metric_name(metric: str) -> str:
    """A metric as people say it.

    >>> metric_name("ttft_ms.p50"), metric_name("output_tok_per_s")
    ('TTFT p50 ms', 'out tok/s')
    """
    if metric in METRICS:
        return METRICS[metric]
    name, _, part = metric.partition(".")
    return (
        f"{name.removesuffix('_ms').upper()} {part} ms"
        if name.endswith("_ms")
        else metric.replace(".", " ").replace("_", " ")
    )


# ---------------------------------------------------------------- catalogs, and lines


def listing(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], console: Console) -> None:
    """A plain table, its first column in the accent colour under the title."""
    grid = _grid(title, [Column("", "left"), *columns])
    for row in rows:
        grid.add(Text(row[0], style=ACCENT), *row[1:])
    show(grid, console)


def show(grid: Grid, console: Console) -> None:
    """Print a table; lines wider than the terminal are left to it."""
    for line in grid.lines(console.width):
        console.print(line, soft_wrap=True)


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print a line, wrapped at words."""
    console.print(Text(text, style=style))


def command(console: Console, before: str, text: str) -> None:
    """Print a command that can be pasted: never wrapped."""
    console.print(Text.assemble(before, (text, ACCENT)), soft_wrap=True)


def _grid(title: str, columns: Sequence[Column]) -> Grid:
    return Grid(title, columns, accent=HEADING, faint=FAINT)


def _clipped(text: str, width: int) -> Text:
    return Text(text if len(text) <= width else text[: width - 1] + "…")
