"""Measured runs made ready for a fit: each one's load rebuilt, its mean latencies, and a fast simulation of the same.

A closed loop is rebuilt as its users, the lengths measured in order of sending, and when each user's first request
went: a few milliseconds between them decide which prompts share the first step, and so all that follows. An open loop
is rebuilt from its send times. A run that states only aggregates becomes a closed loop of its mean lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.errors import InputError
from inferometer.records.metrics import PerRequest, Stat
from inferometer.records.run import OWN_CLOCK, Run
from inferometer.scoring.likeness import mean_tokens
from inferometer.scoring.loads import hit_rate
from inferometer.scoring.sides import load_name
from inferometer.sim.policies import ENGINE_POLICY, policy_named
from inferometer.sim.rules import RECORD_S
from inferometer.sim.simulate import Engine, deal, engine_rules, fitting_memory, refusals
from inferometer.specs.deployment import Deployment
from inferometer.specs.workload import Workload
from inferometer.steptime.costs import StepCosts
from inferometer.workload import Requests, generate

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
NoiseClass = Literal["tpot", "ttft", "shape"]

STATED_TURNS = 6
"""A run that states only aggregates is simulated with so many requests a user, unless it states more ..."""
SKIPPED_TURNS = 2
"""... and of a live server's, that had no beginning, the first so many a user are left out."""
WAVES = "waves"
"""``meta.workload["arrangement"]`` of a live server's run whose requests come together, not spread over the time."""
WAVE_GAP_S = 1e-3
"""Between two requests that come together: the first is computed alone."""
LEAST_ITL_RATIO = 2.0
"""A p99 gap of more than so many median gaps is a step that carried prefill."""


class Figure(NamedTuple):
    """One measured figure of one run: its logarithm is fitted."""

    metric: str
    """``tpot_s.mean``, ``itl_s.mean``, ``ttft_s.p50``, ``itl_s.p99/tpot``, ..."""
    noise: NoiseClass
    value: float


class Measured(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One run, ready: what served it, its load, what it measured."""

    name: str
    run: Run
    deployment: Deployment
    workload: Workload
    counted: Bools
    """Which requests, in order of sending, count: measured and completed."""
    hit_rate: float
    figures: tuple[Figure, ...]
    mean_context: float
    """Tokens: the mean prompt and half the mean output."""
    uncached_tokens: float
    """Mean prompt tokens that were computed."""
    in_flight: float
    """Users of a closed loop, else the mean in flight."""
    notes: tuple[str, ...] = ()

    def has(self, noise: str) -> bool:
        """Whether it holds a figure of this class."""
        return any(figure.noise == noise for figure in self.figures)


def measured_points(
    runs: Sequence[Run],
    deployments: Deployment | Sequence[Deployment],
    prefix_hit_rate: float | None = None,
    lengths: tuple[int, int] | None = None,
) -> list[Measured]:
    """Every run made ready, or one `InputError` that says which run lacks what."""
    if prefix_hit_rate is not None and not 0 <= prefix_hit_rate <= 1:
        raise InputError("prefix_hit_rate", prefix_hit_rate, "a share from 0 to 1")
    each = [deployments] * len(runs) if isinstance(deployments, Deployment) else list(deployments)
    if len(each) != len(runs):
        raise InputError("dep", f"{len(each)} deployments", f"one, or as many as there are runs, {len(runs)}")
    lacking = [line for run, dep in zip(runs, each, strict=True) for line in _lacks(run, dep, prefix_hit_rate, lengths)]
    if lacking:
        raise InputError.because("cannot calibrate: " + "; ".join(lacking))
    names = _distinct(runs)
    return [_measured(*known, prefix_hit_rate, lengths) for known in zip(names, runs, each, strict=True)]


def run_label(run: Run) -> str:
    """What a run is called in a profile: its name, else its file, else its load."""
    return run.meta.name or run.meta.source or _run_load(run)


def _run_load(run: Run) -> str:
    return load_name(run.meta.concurrency, run.meta.request_rate_per_s)


def _distinct(runs: Sequence[Run]) -> list[str]:
    """The points of one benchmark share its name and are told apart by their loads; what is left, by numbers."""
    names = [run_label(run) for run in runs]
    names = [_run_load(run) if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]
    return [f"{name} ({i + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _lacks(run: Run, dep: Deployment, given_rate: float | None, lengths: tuple[int, int] | None) -> list[str]:
    """What must be known of a run and is not, a clause each."""
    name, missing = run_label(run), []
    if known_hit_rate(run, dep) is None and given_rate is None:
        missing.append("its prefix-cache hit rate (join the server's metrics, or give prefix_hit_rate)")
    if token_budget(run, dep) is None:
        missing.append("max_num_batched_tokens (join the server's log, or set the flag of the deployment)")
    if not _known_lengths(run, lengths):
        missing.append("its prompt and output tokens")
    if run.requests.height and not _sends_known(run) and run.meta.concurrency is None:
        missing.append("when its requests were sent, or its concurrency")
    if not run.requests.height and run.meta.concurrency is None and not run.summary().mean_in_flight:
        missing.append("its concurrency")
    if not missing and not _figures(run):
        missing.append("any TPOT, ITL or TTFT")
    return [f"{name} lacks {each}" for each in missing]


# ---------------------------------------------------------------- what must be known of a run
def known_hit_rate(run: Run, dep: Deployment) -> float | None:
    """Prompt tokens found in the prefix cache over prompt tokens; None where nothing says.

    As `loads.hit_rate`, and 0 where the server's flags, its log or the deployment say that it caches no prefixes.
    """
    found = hit_rate(run, run.summary())
    return 0.0 if found is None and _no_prefix_cache(run, dep) else found


def _no_prefix_cache(run: Run, dep: Deployment) -> bool:
    said = [run.meta.server.get("prefix_caching"), served_flags(run).get("enable_prefix_caching")]
    known = next((value for value in said if isinstance(value, bool)), dep.resolved().enable_prefix_caching)
    return not known


def served_flags(run: Run) -> dict[str, Any]:
    """The server's flags as the run has them: from its log, or the resolved ones of a simulation."""
    flags = dict(run.meta.deployment.get("flags") or {}) if isinstance(run.meta.deployment, Mapping) else {}
    found = run.meta.server.get("flags")
    flags |= dict(found) if isinstance(found, Mapping) else {}
    facts = {k: run.meta.server[k] for k in ("max_num_batched_tokens", "max_num_seqs") if k in run.meta.server}
    return {**flags, **facts}


def token_budget(run: Run, dep: Deployment) -> int | None:
    """``max_num_batched_tokens``: the run's server's, else the deployment's where it is given; never a default."""
    said = served_flags(run).get("max_num_batched_tokens")
    if isinstance(said, int):
        return said
    given = {key.removeprefix("--").replace("-", "_"): value for key, value in dep.flags.items()}
    return given.get("max_num_batched_tokens")


def as_served(run: Run, dep: Deployment) -> tuple[Deployment, tuple[str, ...]]:
    """The deployment with the batch limits and prefix caching of the run's server, and a note for each that differs."""
    said, resolved = served_flags(run), dep.resolved()
    if isinstance(caching := run.meta.server.get("prefix_caching"), bool):
        said["enable_prefix_caching"] = caching
    names = [n for n in ("max_num_batched_tokens", "max_num_seqs") if isinstance(said.get(n), int)]
    names += [n for n in ("enable_prefix_caching",) if isinstance(said.get(n), bool)]
    other = {n: said[n] for n in names if said[n] != getattr(resolved, n)}
    if not other:
        return dep, ()
    kept = {k: v for k, v in dep.flags.items() if k.removeprefix("--").replace("-", "_") not in other}
    notes = tuple(f"{run_label(run)} was served with {n} {v}, taken instead of the study's" for n, v in other.items())
    return msgspec.structs.replace(dep, flags={**kept, **other}), notes


def _known_lengths(run: Run, lengths: tuple[int, int] | None) -> bool:
    if run.requests.height:
        prompt, output = (run.requests[name] for name in ("prompt_tokens", "output_tokens"))
        return not prompt.is_null().all() and bool((output > 0).any())
    return lengths is not None or all(mean_tokens(run, name) for name in ("prompt_tokens", "output_tokens"))


def _sends_known(run: Run) -> bool:
    return run.meta.clock != OWN_CLOCK and not run.requests["sent_s"].is_null().any()


# ---------------------------------------------------------------- making a run ready
def _measured(
    name: str, run: Run, dep: Deployment, given_rate: float | None, lengths: tuple[int, int] | None
) -> Measured:
    # what the run itself says stands over what is given, and that over what its flags let one suppose
    rates = (hit_rate(run, run.summary()), given_rate, known_hit_rate(run, dep))
    rate = next((rate for rate in rates if rate is not None), 0.0)
    served, notes = as_served(run, dep)
    workload, counted = _rebuilt(run, rate) if run.requests.height else _from_means(run, rate, lengths)
    prompt, output = np.asarray(workload.prompt_tokens), np.asarray(workload.output_tokens)
    cached = np.asarray(workload.cached_tokens)
    return Measured(
        name=name,
        run=run,
        deployment=served,
        workload=workload,
        counted=counted,
        hit_rate=rate,
        figures=tuple(_figures(run)),
        mean_context=float(prompt.mean() + output.mean() / 2),
        uncached_tokens=float((prompt - cached).mean()),
        in_flight=float(workload.concurrency or run.summary().mean_in_flight or 1.0),
        notes=(*notes, *_doubts(name, run)),
    )


def _doubts(name: str, run: Run) -> list[str]:
    failed = run.summary().failed
    doubts = [f"{failed} failed requests of {name} are left out"] if failed else []
    doubts += [f"{name}: {why}" for why in run.meta.unfit]
    return doubts + ([f"{name} is not whole: {run.meta.partial}"] if run.meta.partial else [])


def _figures(run: Run) -> list[Figure]:
    """The level of the gaps between tokens and of the wait for the first, and how long a mixed step is beside them."""
    summary = run.summary()
    found = []
    gap = _first_known([("tpot_s", summary.tpot_s), ("itl_s", summary.itl_s)])
    if gap is not None:
        found.append(Figure(gap[0], "tpot", gap[1]))
    wait = _first_known([("ttft_s", summary.ttft_s)])
    if wait is not None:
        found.append(Figure(wait[0], "ttft", wait[1]))
    itl = summary.itl_s
    if gap is not None and itl.p99 and itl.p50 and itl.p99 > LEAST_ITL_RATIO * itl.p50:
        found.append(Figure(f"itl_s.p99/{gap[0]}", "shape", itl.p99 / gap[1]))
    return found


def _first_known(stats: list[tuple[str, Stat]]) -> tuple[str, float] | None:
    """The first mean that is known and above 0, else the first median."""
    for part in ("mean", "p50"):
        for name, stat in stats:
            if value := getattr(stat, part):
                return f"{name}.{part}", float(value)
    return None


def _rebuilt(run: Run, rate: float) -> tuple[Workload, Bools]:
    """The load of a run of requests, in order of sending; a request of unknown length is taken for a mean one."""
    each = PerRequest(run)
    sends = _sends_known(run)
    order = np.argsort(each.sent, kind="stable") if sends else np.arange(run.requests.height)
    prompt = np.maximum(_whole(each.prompt)[order], 1)
    output = _whole(each.output)[order]
    cached = _cached(each.column("cached_tokens")[order], prompt, rate)
    counted = each.completed[order]
    if run.meta.concurrency is None or run.meta.request_rate_per_s is not None:
        sent = each.sent[order]
        return Workload.from_requests(sent - sent[0], prompt, output, cached), counted
    users = run.meta.concurrency
    loop = Workload.closed_loop(users, len(prompt), prompt, output, cached_tokens=cached)
    starts = _first_sends(each, order, users) if sends else None
    return msgspec.structs.replace(loop, arrival_s=starts), counted


def _whole(values: Floats) -> npt.NDArray[np.int64]:
    return np.rint(np.where(np.isnan(values), np.nanmean(values), values)).astype(np.int64)


def _cached(known: Floats, prompt: npt.NDArray[np.int64], rate: float) -> npt.NDArray[np.int64]:
    return np.where(np.isnan(known), np.rint(rate * prompt), known).astype(np.int64)


def _first_sends(each: PerRequest, order: npt.NDArray[np.int64], users: int) -> Floats | None:
    """When each user's first request went, from the first on; None where they did not all go before any had ended."""
    sent = each.sent[order][:users]
    ended = np.nanmin(np.append(each.end, np.inf))
    return np.asarray(sent - sent[0]) if sent[-1] < ended else None


def _from_means(run: Run, rate: float, lengths: tuple[int, int] | None) -> tuple[Workload, Bools]:
    """A closed loop of the mean lengths; one that stands for a live server begins spread over a request's time."""
    summary = run.summary()
    users = run.meta.concurrency or max(1, round(summary.mean_in_flight or 1.0))
    found = [mean_tokens(run, name) for name in ("prompt_tokens", "output_tokens")]
    prompt, output = (max(1, round(own or given)) for own, given in zip(found, lengths or (1, 1), strict=True))
    live = run.meta.concurrency is None
    turns = STATED_TURNS + (SKIPPED_TURNS if live else 0)
    count = turns * users if live else summary.completed or summary.requests or turns * users
    loop = Workload.closed_loop(users, count, prompt, output, cached_tokens=round(rate * prompt))
    counted = np.ones(count, dtype=np.bool_)
    if live:
        counted[: SKIPPED_TURNS * users] = False
        waves = run.meta.workload.get("arrangement") == WAVES
        gap_s = WAVE_GAP_S if waves else 0.8 * (summary.e2e_s.mean or 0.0) / users
        loop = msgspec.structs.replace(loop, arrival_s=gap_s * np.arange(users))
    return loop, counted


# ---------------------------------------------------------------- the same figures, simulated
class Simulator:
    """Simulates one measured run again and again with other step costs; what does not depend on them is made once."""

    def __init__(self, point: Measured, shape: bool = False) -> None:
        dep = point.deployment
        self.point, self.shape = point, shape
        self.figures = [f for f in point.figures if shape or f.noise != "shape"]
        self.policy = policy_named(ENGINE_POLICY[dep.engine])
        memory = fitting_memory(dep)
        self.requests: Requests = generate(point.workload)
        errors = refusals(dep, memory, self.policy, self.requests)
        if errors is not None:
            first = next(error for error in errors if error is not None)
            raise InputError.because(f"{point.name} does not fit the deployment: a request is {first}")
        self.parts = deal(self.requests, errors, dep.data_parallel_size)
        self.rules = engine_rules(dep, memory, self.policy, self.requests, np.concatenate(self.parts))

    def logs(self, costs: StepCosts) -> Floats:
        """The logarithm of each of the run's figures with these costs."""
        engine = Engine(self.policy, self.rules, costs)
        n = len(self.requests)
        sent, first, last, gaps = np.empty(n), np.empty(n), np.empty(n), []
        for i, part in enumerate(self.parts):
            trace = engine.run(self.requests, self.parts, i, token_times=self.shape).trace
            sent[part], first[part], last[part] = trace.arrive, trace.first, trace.last
            gaps.append(_gaps(trace.token_ticks, self.requests.output_tokens[part]) if self.shape else np.empty(0))
        seconds = [np.asarray(ticks * RECORD_S, np.float64) for ticks in (sent, first, last, np.concatenate(gaps))]
        values = self._stats(*seconds)
        return np.log(np.maximum([self._value(figure.metric, values) for figure in self.figures], 1e-9))

    def _stats(self, sent: Floats, first: Floats, last: Floats, gaps: Floats) -> dict[str, Any]:
        counted, output = self.point.counted, self.requests.output_tokens
        decoding = counted & (output >= 2)
        spans, tokens = (last - first)[decoding], (output - 1)[decoding]
        return {
            "ttft_s": (first - sent)[counted & (output >= 1)],
            "tpot_s": spans / tokens,
            # the mean over gaps is a mean over tokens; the median gap is taken for that of the requests' TPOT
            "itl_s.mean": spans.sum() / max(tokens.sum(), 1),
            "itl_s.p50": np.median(spans / tokens) if tokens.size else np.nan,
            "itl_s.p99": np.percentile(gaps, 99) if gaps.size else np.nan,
        }

    def _value(self, metric: str, values: dict[str, Any]) -> float:
        if "/" in metric:
            top, bottom = metric.split("/")
            return self._value(top, values) / self._value(bottom, values)
        if metric in values:
            return float(values[metric])
        name, part = metric.split(".")
        return float(np.mean(values[name]) if part == "mean" else np.median(values[name]))


def _gaps(ticks: npt.NDArray[np.int64], output: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Gaps between the tokens of each request."""
    inside = np.ones(max(ticks.size - 1, 0), dtype=np.bool_)
    borders = np.cumsum(output)[:-1]
    inside[borders[(borders > 0) & (borders < ticks.size)] - 1] = False
    return np.diff(ticks)[inside]
