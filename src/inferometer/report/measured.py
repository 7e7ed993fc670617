"""What ``bench`` prints: the answer, a row a point, why it should not be trusted, and the server's own word on it.

As in `report.terminal`, nothing is computed here: every figure is a Summary's, or was found out by the benchmark and
is in the run's meta.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from inferometer.benchmark.search import Found
from inferometer.errors import InputError
from inferometer.records.metrics import (
    LEAST_SAMPLES,
    LIMITS,
    Summary,
    SweepGoodput,
    sweep_goodput,
    throughput_knee,
    ttft_knee,
)
from inferometer.records.overload import KEPT_UP, overloaded
from inferometer.records.run import Run
from inferometer.report import terminal
from inferometer.report.grid import Cell, Column, Grid, figure, milliseconds, percent, signed
from inferometer.report.terminal import BAD, FAINT, HEADING, LATENCIES, errors_of, run_load, say, sentence, show
from inferometer.specs.slo import Slo
from inferometer.specs.workload import Workload

ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tgi": "TGI",
    "trtllm": "TensorRT-LLM",
    "llamacpp": "llama.cpp",
    "openai": "a server that does not say what it is",
}
DIFFER_S, DIFFER_SHARE = 0.001, 0.01
"""TTFT from sending and from the scheduled time are shown side by side where their p99 differ by more than both."""
_FAILED = re.compile(r"[\d,]+ of [\d,]+ requests? failed")
SHOWN_ERRORS = 2
_GIVEN_UP = "given up"
"""How `RunMeta.partial` of a run begins whose server stopped answering."""


def report(runs: Sequence[Run], workload: Workload, slo: Slo, console: Console, found: Found | None = None) -> None:
    """Everything about measured runs; ``workload`` is one of theirs, ``found`` what a search made of them."""
    heading(runs[0], workload, console)
    say(console)
    for text, bad in answer(runs, slo, found):
        say(console, text, style=BAD if bad else "")
    say(console)
    show(points_grid(runs, slo), console)
    for grid in (_trials_grid(found), _scheduled_grid(runs)):
        if grid is not None:
            say(console)
            show(grid, console)
    _show_servers(runs, console)
    wrong, notes = warnings(runs), _remarks(runs)
    if wrong or notes:
        say(console)
    for line in wrong:
        say(console, line, style=BAD)
    for line in error_lines(runs, console.width):
        say(console, line, style=BAD)
    for line in notes:
        say(console, line, style=FAINT)


def left_out(runs: Sequence[Run], workloads: Sequence[Workload]) -> str:
    """Which of the loads asked for were not measured, and why; empty where all were."""
    done = {(run.meta.request_rate_per_s, run.meta.concurrency) for run in runs}
    rates, users = {rate for rate, _ in done}, {users for _, users in done}
    names = [
        f"{each.rate_per_s:g}/s" if each.rate_per_s is not None else f"C={each.concurrency}"
        for each in workloads
        if (each.rate_per_s or each.concurrency)
        and (each.rate_per_s not in rates if each.rate_per_s is not None else each.concurrency not in users)
    ]
    if not names:
        return ""
    if any(run.meta.partial for run in runs):
        return f"Not measured: {', '.join(names)}."
    return f"Left out: {', '.join(names)}, as a lower load was too much already (--keep-going measures them)."


def heading(run: Run, workload: Workload, console: Console) -> None:
    """What answered where, and the load: one line, or two where it is long; then what it says of itself."""
    server = run.meta.server
    engine = " ".join(str(part) for part in (ENGINES.get(server.get("engine", ""), ""), server.get("version")) if part)
    served, rest = f"{run.meta.model} at {run.meta.source}", f"{engine}   {_load_words(run, workload)}"
    say(console, served + ("   " if len(served) + len(rest) + 3 <= console.width else "\n") + rest, style=HEADING)
    facts = {"endpoint": run.meta.workload.get("endpoint"), "max_model_len": server.get("max_model_len")}
    facts |= {"on": run.meta.chip, "client processes": _whole(run.meta.client.get("workers"))}
    say(console, ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None), style=FAINT)


def _load_words(run: Run, workload: Workload) -> str:
    """The load; lengths of prompts that a file has are not the workload's."""
    words, dataset = terminal.load(workload), run.meta.workload.get("dataset")
    return words if dataset is None else f"{words.rpartition(', ')[0] or words}, prompts of {PurePath(dataset).name}"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


# ---------------------------------------------------------------- the answer


def answer(runs: Sequence[Run], slo: Slo, found: Found | None = None) -> list[tuple[str, bool]]:
    """Sentences in order of weight, each with whether it is bad news."""
    lines = [(text, True) for text in _troubles(runs)]
    if found is not None:
        return [*lines, *((text, found.level is None) for text in found_lines(found))]
    alive = [run for run in runs if answered(run)]
    if not alive:
        return lines
    if len({run_load(run) for run in runs}) == 1:
        texts = _one(alive[0], slo) if len(alive) == 1 else _repeated(alive, slo)
    else:
        texts = _open_sweep(alive) if runs[0].meta.request_rate_per_s is not None else _closed_sweep(alive, runs)
        texts += terminal.goodput(sweep_goodput_of(alive, slo), slo)
    return [*lines, *((text, False) for text in texts)]


def answered(run: Run) -> bool:
    """Whether any request of it was answered: without, it has no figures to speak of."""
    return run.requests["error"].null_count() > 0


def _troubles(runs: Sequence[Run]) -> list[str]:
    unfit = [run for run in runs if run.meta.unfit]
    lost = [run for run in runs if run.meta.partial.startswith(_GIVEN_UP)]
    broken = [run for run in runs if run.meta.partial and run not in lost]
    lines = [f"The server stopped answering during {run_load(run)}: {_failures([run])}." for run in lost]
    if unfit:
        which = f"{len(unfit)} of {len(runs)} points ({_names(unfit)})" if len(runs) > 1 else "this measurement"
        lines.append(f"Unfit: {which} should not be trusted, for the reasons below.")
    if broken:
        lines.append(f"Not whole: {', '.join(f'{run_load(run)} ({run.meta.partial})' for run in broken)}.")
    if any(map(_failed, runs)) and (not lost or any(_failed(run) for run in runs if run not in lost)):
        lines.append(f"{_failures(runs)}{' in all' if lost else ''}.")
    return lines


def _failed(run: Run) -> int:
    return run.requests.height - run.requests["error"].null_count()


def _failures(runs: Iterable[Run]) -> str:
    failed, total = sum(map(_failed, runs)), sum(run.requests.height for run in runs)
    return f"{failed:,} of {total:,} {'request' if total == 1 else 'requests'} failed"


def _repeated(runs: Sequence[Run], slo: Slo) -> list[str]:
    """A load that was measured several times: the median and range of its figures, then what each met."""
    found = [run.summary() for run in runs]
    rate = _spread([s.output_tok_per_s for s in found], figure, "tok/s")
    times = [
        f"{name} {_spread([pick(s) for s in found], milliseconds, 'ms')}"
        for name, pick in _REPEATED.items()
        if any(pick(s) is not None for s in found)
    ]
    lines = [f"{run_load(runs[0])}, median (and range) of {len(runs)} repeats: {rate}; {', '.join(times)}."]
    shares = [share for s in found if (share := attained(s, slo)) is not None]
    if shares:
        lines.append(f"{_spread([x * 100 for x in shares], figure, '%')} of the requests meet {terminal.limits(slo)}.")
    return [*lines, *_caps([run for run in runs if _held_back(run)][:1])]


_REPEATED: dict[str, Callable[[Summary], float | None]] = {
    "TTFT p50": lambda s: s.ttft_s.p50,
    "p99": lambda s: s.ttft_s.p99,
    "TPOT p50": lambda s: s.tpot_s.p50,
    "E2E p50": lambda s: s.e2e_s.p50,
}


def _spread(values: Iterable[float | None], form: Callable[[float | None], str], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, high = form(min(known)), form(max(known))
    return f"{form(median(known))} {unit}" + (f" ({low}-{high})" if low != high else "")


def _one(run: Run, slo: Slo) -> list[str]:
    s = run.summary()
    rate = f"{run_load(run)}: {figure(s.output_tok_per_s)} tok/s"
    closed = run.meta.request_rate_per_s is None and s.per_user_tok_per_s is not None
    user = f", {figure(s.per_user_tok_per_s)} a user" if closed else ""
    times = f"E2E p50 {_ms(s.e2e_s.p50)}, p99 {_ms(s.e2e_s.p99)}"
    if s.ttft_s.p50 is not None:
        times = f"TTFT p50 {_ms(s.ttft_s.p50)}, p99 {_ms(s.ttft_s.p99)}; TPOT p50 {_ms(s.tpot_s.p50)}"
    lines = [*_waited(run, s), f"{rate}{user}; {times}.", *_caps([run] if _held_back(run) else [])]
    if not _held_back(run) and overloaded(run, s):
        lines.append(f"Overloaded: it served {_done(run)}, and the queue grew.")
    share = attained(s, slo)
    return lines if share is None else [*lines, f"{share * 100:.3g} % of the requests meet {terminal.limits(slo)}."]


def _waited(run: Run, s: Summary) -> list[str]:
    """What users saw of a load that a cap held back: it comes first, for TTFT from sending is not theirs."""
    if not _held_back(run) or s.ttft_from_scheduled_s.p50 is None:
        return []
    own = f", {_ms(s.client_queue_s.p50)} of it in the client's queue" if s.client_queue_s.p50 is not None else ""
    return [f"Users waited {_ms(s.ttft_from_scheduled_s.p50)} (p50) for a first token{own}."]


def _ms(time_s: float | None) -> str:
    text = milliseconds(time_s)
    return text if text.endswith("s") or time_s is None else f"{text} ms"


def _closed_sweep(runs: Sequence[Run], asked: Sequence[Run]) -> list[str]:
    """Of the runs that were answered; where some of all were not, or not to their end, nothing is said of bends."""
    best = max(runs, key=_tok_per_s)
    most = f"the most is {figure(_tok_per_s(best))} tok/s at {run_load(best)}"
    if len(runs) < len(asked) or any(run.meta.partial for run in runs):
        return [f"{most[0].upper()}{most[1:]}."]
    knee = throughput_knee(runs)
    at = next((run for run in runs if run.meta.concurrency == knee), None)
    if knee is None or at is None:
        first = f"No knee in throughput up to {run_load(runs[-1])}; {most}."
    elif at is best:
        first = f"Throughput bends at {run_load(at)}, {figure(_tok_per_s(at))} tok/s, and does not rise beyond."
    else:
        first = f"Throughput bends at {run_load(at)}, {figure(_tok_per_s(at))} tok/s; {most}."
    users = ttft_knee(runs)
    return [first, f"TTFT knee (p99 > 2 x p50) at C={users}." if users else "No TTFT knee (p99 > 2 x p50) up to here."]


def _open_sweep(runs: Sequence[Run]) -> list[str]:
    held = [run for run in runs if _held_back(run)]
    over = [run for run in runs if run not in held and overloaded(run, run.summary())]
    fine = [run for run in runs if run not in held and run not in over]
    kept = f"Kept up with {run_load(fine[-1])}" if fine else "Kept up with no rate"
    if over:
        first = f"{kept}; overloaded at {run_load(over[0])}, of which it served {_done(over[0])}: the queue grew."
    else:
        first = f"{kept}{'' if held else ', the highest rate offered'}."
    return [first, *_caps(held)]


def _caps(held: Iterable[Run]) -> list[str]:
    return [
        f"At {run_load(run)} at most {run.meta.concurrency} in flight let {_done(run)} through: the rest waited in the "
        "client, and counts from its scheduled time."
        for run in held
    ]


def _held_back(run: Run) -> bool:
    """Whether a cap kept an open loop from its rate."""
    s = run.summary()
    if run.meta.concurrency is None or s.request_rate_per_s is None or s.request_per_s is None:
        return False
    return s.peak_in_flight == run.meta.concurrency and s.request_per_s < KEPT_UP * s.request_rate_per_s


def _done(run: Run) -> str:
    return f"{figure(run.summary().request_per_s)}/s"


def _tok_per_s(run: Run) -> float:
    return run.summary().output_tok_per_s or 0.0


def found_lines(found: Found) -> list[str]:
    """What a search found, and how sure that is; the first line is the answer."""
    last = _unfinished(found)
    if last is not None:
        ends = [("met", found.level), ("missed", found.beyond)]
        known = ", ".join(f"{word} at {_level(found, level)}" for word, level in ends if level not in (None, last))
        text = f"{known}{', ' if known else ''}{_level(found, last)} not finished."
        return [f"Broken off: no verdict. {text[0].upper()}{text[1:]}"]
    share = f"{found.slo.attainment * 100:g} % of the requests meet {terminal.limits(found.slo)}"
    if found.level is None:
        lowest = f", the lowest tried ({_level(found, found.trials[0].level)})" if found.trials else ""
        return [f"At no load do {share}{lowest}."]
    trial = next(each for each in found.trials if each.level == found.level)
    beyond = "no higher one was tried" if found.beyond is None else f"at {_level(found, found.beyond)} they do not"
    how = f"{trial.attainment * 100:.4g} % of {trial.requests:,} did, 95 % interval {_interval(trial.low, trial.high)}"
    sure = "Resolved: the intervals decide." if found.resolved else _UNRESOLVED
    return [f"Up to {_level(found, found.level)}, {share}; {beyond}.", f"There {how}. {sure}"]


def _unfinished(found: Found) -> float | None:
    """The level at which a search was broken off."""
    if not found.runs or not found.runs[-1].meta.partial:
        return None
    meta = found.runs[-1].meta
    return meta.concurrency if found.by == "concurrency" else meta.request_rate_per_s


_UNRESOLVED = "Not resolved: an interval holds the share asked for, so more requests a point would tell."


def _level(found: Found, level: float) -> str:
    return f"C={level:g}" if found.by == "concurrency" else f"{level:.4g}/s"


def _interval(low: float, high: float) -> str:
    return f"{low * 100:.1f}-{high * 100:.1f}"


def attained(summary: Summary, slo: Slo) -> float | None:
    """Share of the requests that met every limit; None without limits, or where the run cannot say."""
    limits: dict[str, Any] = dict(slo.limits())
    try:
        return summary.goodput(**limits).attainment if limits else None
    except InputError:
        return None


def sweep_goodput_of(runs: Sequence[Run], slo: Slo) -> SweepGoodput | None:
    """Goodput by marginal percentile; None without limits, or where the runs cannot say."""
    limits = {name: limit for name, limit in slo.limits().items() if name in LIMITS}
    try:
        return sweep_goodput(runs, **limits) if limits else None
    except InputError:
        return None


# ---------------------------------------------------------------- tables


def points_grid(runs: Sequence[Run], slo: Slo) -> Grid:
    """A row a point: rates, latencies, Little's law, in flight by the client and by the server, failures."""
    is_open, limited = _is_open(runs), bool(slo.limits())
    last = Column("req/s", group="done") if is_open else Column("tok/s", group="per user")
    columns = [
        Column("req/s" if is_open else "C"),
        *([last] if is_open else []),
        Column("tok/s", group="out"),
        *([] if is_open else [last]),
        *LATENCIES,
        Column("law", group="Little's"),
        Column("client", group="in flight"),
        Column("server", group="in flight"),
        Column("", group="failed"),
        *([Column("% met", group="SLO")] if limited else []),
    ]
    grid = Grid("Measured", columns, accent=HEADING, faint=FAINT)
    for run in runs:
        grid.add(*_point_cells(run, slo, is_open, limited))
    return grid


def _is_open(runs: Sequence[Run]) -> bool:
    return any(run.meta.request_rate_per_s is not None for run in runs)


def _point_cells(run: Run, slo: Slo, is_open: bool, limited: bool) -> list[Cell]:
    s = run.summary()
    rates = [figure(s.request_per_s), figure(s.output_tok_per_s)]
    if not is_open:
        rates = [figure(s.output_tok_per_s), figure(s.per_user_tok_per_s)]
    return [
        Text(run_load(run).removeprefix("C=").removesuffix("/s"), style=BAD if run.meta.unfit else ""),
        *rates,
        *(milliseconds(value) for stat in (s.ttft_s, s.tpot_s) for value in (stat.p50, stat.p99)),
        figure(s.littles_law),
        figure(s.mean_in_flight),
        figure(s.server_in_flight if run.server.height >= LEAST_SAMPLES else None),
        Text(figure(s.failed), style=BAD if s.failed else ""),
        *([percent(attained(s, slo))] if limited else []),
    ]


def _trials_grid(found: Found | None) -> Grid | None:
    """What a search saw at each level."""
    if found is None or not found.trials:
        return None
    columns = (
        Column("C" if found.by == "concurrency" else "req/s"),
        Column("", group="requests"),
        Column("%", group="met"),
        Column("95 %", "left", group="interval"),
        Column("", "left", group=f"{found.slo.attainment * 100:g} %"),
    )
    grid = Grid("Search", columns, accent=HEADING, faint=FAINT)
    for trial in found.trials:
        verdict = Text("met" if trial.passed else "missed", style="" if trial.passed else BAD)
        verdict.append("" if trial.resolved else ", not resolved")
        verdict = Text("not finished", style=BAD) if trial.level == _unfinished(found) else verdict
        cells = (figure(trial.requests), f"{trial.attainment * 100:.4g}", _interval(trial.low, trial.high))
        grid.add(f"{trial.level:.4g}", *cells, verdict)
    return grid


def _scheduled_grid(runs: Sequence[Run]) -> Grid | None:
    """Open loops whose client sent late, or was not allowed to send: what users saw from the time they came."""
    late = [run for run in runs if _is_late(run)]
    if not late:
        return None
    columns = (
        Column("req/s"),
        Column("most", group="in flight"),
        Column("p50", group="client's queue ms"),
        Column("p99", group="client's queue ms"),
        Column("p50", group="TTFT from sending"),
        Column("p99", group="TTFT from sending"),
        Column("p50", group="from schedule"),
        Column("p99", group="from schedule"),
    )
    grid = Grid("Client's queue", columns, accent=HEADING, faint=FAINT)
    for run in late:
        s = run.summary()
        stats = (s.client_queue_s, s.ttft_s, s.ttft_from_scheduled_s)
        times = [milliseconds(value) for stat in stats for value in (stat.p50, stat.p99)]
        grid.add(run_load(run).removesuffix("/s"), figure(run.meta.concurrency), *times)
    return grid


def _is_late(run: Run) -> bool:
    """Whether it matters from when TTFT counts; a closed loop has no schedule."""
    s = run.summary()
    raw, scheduled = s.ttft_s.p99, s.ttft_from_scheduled_s.p99
    if raw is None or scheduled is None or (run.meta.request_rate_per_s is None and run.meta.concurrency is not None):
        return False
    return scheduled - raw > max(DIFFER_S, DIFFER_SHARE * raw)


def _show_servers(runs: Sequence[Run], console: Console) -> None:
    grid = _server_grid(runs)
    if grid is None:
        return
    say(console)
    if any(run.meta.window_s and run.meta.window_s[0] for run in runs):
        say(console, "The server's own means, warm-up included (and so are ours beside them):", style=FAINT)
    show(grid, console)


_OWN_MEANS = ("ttft_s", "tpot_s", "e2e_s")


def _server_grid(runs: Sequence[Run]) -> Grid | None:
    """Our means beside those of the server's own histograms, over all requests of each run."""
    shown = [run for run in runs if any(name in run.meta.server.get("means", {}) for name in _OWN_MEANS)]
    if not shown:
        return None
    groups = [f"{name[:-2].upper()} mean ms" for name in _OWN_MEANS]
    columns = [Column(part, group=group) for group in groups for part in ("ours", "server's", "%")]
    grid = Grid("Server's own", [Column(""), *columns], accent=HEADING, faint=FAINT)
    for run in shown:
        # its counters know no warm-up
        whole = msgspec.structs.replace(run, meta=msgspec.structs.replace(run.meta, window_s=None)).summary()
        grid.add(run_load(run), *(cell for name in _OWN_MEANS for cell in _beside(run, whole, name)))
    return grid


def _beside(run: Run, summary: Summary, name: str) -> list[str]:
    ours, theirs = getattr(summary, name).mean, run.meta.server["means"].get(name)
    apart = None if ours is None or not theirs else (ours / theirs - 1) * 100
    return [milliseconds(ours), milliseconds(theirs), signed(apart)]


# ---------------------------------------------------------------- what a reader must know


def warnings(runs: Sequence[Run]) -> list[str]:
    """Why these runs should not be trusted, are not whole, or failed in part: one line each."""
    said = [
        (run, text)
        for run in runs
        for text in [
            *(f"unfit: {reason}" for reason in run.meta.unfit),
            *([f"not whole: {run.meta.partial}"] if run.meta.partial else []),
            *filter(_FAILED.match, run.meta.notes),
        ]
    ]
    return _grouped(said, runs)


def error_lines(runs: Sequence[Run], width: int) -> list[str]:
    """The most frequent errors as the server or the connection gave them, with how often, clipped to the width."""
    found = errors_of(runs, SHOWN_ERRORS + 1)
    lines = [f"  {count:,} x {' '.join(text.split())}" for text, count in list(found.items())[:SHOWN_ERRORS]]
    lines += ["  and others: inferometer runs show ID --json lists them"] if len(found) > SHOWN_ERRORS else []
    return [line if len(line) <= width else line[: width - 3] + "..." for line in lines]


def _remarks(runs: Sequence[Run]) -> list[str]:
    return _grouped([(run, note) for run in runs for note in run.meta.notes if not _FAILED.match(note)], runs)


def _grouped(said: Iterable[tuple[Run, str]], runs: Sequence[Run]) -> list[str]:
    """Each text once, after the loads it is said of; without them where it is said of all."""
    by_text: dict[str, list[Run]] = {}
    for run, text in said:
        by_text.setdefault(text, []).append(run)
    return [sentence(text) if len(of) == len(runs) else f"{_names(of)}: {text}." for text, of in by_text.items()]


def _names(runs: Iterable[Run]) -> str:
    return ", ".join(dict.fromkeys(map(run_load, runs)))
