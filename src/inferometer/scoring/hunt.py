"""Hunts: the concurrency at which something begins, predicted by the simulator and then found on the server.

``preemption``
    the first concurrency at which the engine preempts a request: the KV pool is too small for all that run.
``ttft-knee``
    the first at which TTFT p99 is more than twice p50.

On the server it is looked for from the prediction outwards, in steps that double, until one level has it and one below
has not, then halved in between. Preemption is predicted in the same way, from the closed form outwards. A TTFT knee can
come and go as the load grows, so it is predicted by trying every concurrency from the lowest up; on the server, the
crossing nearest to the prediction is found.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferometer.benchmark.bench import Bench
from inferometer.benchmark.job import Endpoint
from inferometer.benchmark.progress import Watch
from inferometer.benchmark.sweep import at_level
from inferometer.errors import InputError
from inferometer.prediction.predict import steady
from inferometer.records.metrics import TTFT_KNEE, past_ttft_knee
from inferometer.records.run import Run
from inferometer.scoring.batches import Batches, half_width, least_values, ratio
from inferometer.scoring.preempted import preemption_mode
from inferometer.sim.simulate import fitting_memory, simulate
from inferometer.specs.checks import positive, whole
from inferometer.specs.study import Arm, Study, load_study
from inferometer.specs.workload import Workload
from inferometer.steptime.costs import sheet_costs
from inferometer.steptime.profile import Profile, calibrated_costs
from inferometer.workload import generate

What = Literal["preemption", "ttft-knee"]
WHATS: tuple[What, ...] = ("preemption", "ttft-knee")
BEYOND_GUESS, HIGHEST_KNEE = 4, 64
"""Unless stated, nothing is tried beyond so many times the first guess, or for a knee this concurrency."""
EVERY = 32
"""Up to here, a knee is predicted by every concurrency; then at steps of a tenth."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen on the server at one concurrency; None for what its metrics do not say."""

    concurrency: int
    hit: bool
    """Whether it had begun."""
    preemptions: int | None = None
    running: float | None = None
    waiting: float | None = None
    """Means over the run."""
    kv_usage: float | None = None
    """The highest seen, as a share of the pool."""
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    requests: int = 0
    resolved: bool = True
    """Whether it was told by more than chance: of a knee, whether the interval of p99 / p50 leaves out 2."""


class Hunt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Where something was predicted to begin, and where it does.

    >>> Hunt(what="preemption", predicted=23, found=24, bracket=(23, 24), closed_form=22).error_pct
    -4.166666666666666
    """

    what: What
    predicted: int | None
    """By simulated bisection; None: not up to the highest concurrency allowed."""
    closed_form: int | None
    """Of preemption: KV cache tokens over the mean prompt plus output. Of the knee: of `PredictedArm`."""
    found: int | None
    """The lowest that has it; None: none of those tried."""
    bracket: tuple[int | None, int | None]
    """The highest without it, the lowest with it."""
    trials: tuple[Trial, ...] = ()
    """In order of concurrency."""
    mode: Literal["recomputed", "swapped"] | None = None
    """What became of preempted requests; None where none was, or the server does not say."""
    resolved: bool = False
    """Whether the two ends are as close as asked, told by more than chance, and no trial speaks against them."""
    interrupted: str = ""
    """Why it was broken off; empty where it came to its end."""
    server_closed_form: int | None = None
    """The closed form with the KV pool that the server states, where it states one."""
    runs: tuple[Run, ...] = ()
    """As measured."""

    @property
    def error_pct(self) -> float | None:
        """Of the prediction, in percent of what was found."""
        if self.predicted is None or self.found is None:
            return None
        return (self.predicted - self.found) / self.found * 100

    def to_dict(self) -> dict[str, Any]:
        """``hunt`` in the JSON of ``bench``: runs by their ids."""
        names = [name for name in self.__struct_fields__ if name != "runs"]
        values = {name: msgspec.to_builtins(getattr(self, name)) for name in names}
        return {**values, "error_pct": self.error_pct, "runs": [run.id for run in self.runs]}


def hunt(
    url: str,
    study: Study | Arm | str | os.PathLike[str] | Mapping[str, Any],
    what: What = "preemption",
    *,
    arm: str | None = None,
    lowest: int = 1,
    highest: int | None = None,
    resolution: float = 0.05,
    model: str | None = None,
    endpoint: Endpoint = "completions",
    metrics_url: str | None = None,
    server_log: str | None = None,
    profile: Profile | str | Path | None = None,
    watch: Watch | None = None,
    on_run: Callable[[Run], None] | None = None,
    **options: Any,
) -> Hunt:
    """Predict where preemption, or the TTFT knee, begins; then find it on a server, a measured point at a time.

    Args:
        url: as `bench`, as are the other arguments that it has.
        study: what the server runs and the lengths of the load: a study or one arm of it, with a closed loop.
        what: ``preemption`` (needs the server's counter) or ``ttft-knee``.
        arm: this arm of the study; None: its base.
        lowest: try no lower concurrency.
        highest: try no higher one; None: 4 times the closed form, of preemption at most a fourth more than the engine
            has slots, of a knee at least 64.
        resolution: stop once the two ends are within this share of each other, or 1 apart.
        profile: of calibrated constants, for the simulation.
        on_run: called with each run as it is measured.

    Raises:
        InputError: as `bench`; a study without a closed loop; a server that does not count preemptions.
        DoesNotFitError: the study's weights leave no room for a KV cache.

    >>> hunt("http://127.0.0.1:8000", "a100-qwen3-8b", "a knee")
    Traceback (most recent call last):
    inferometer.errors.InputError: what: 'a knee' is not allowed; give preemption or ttft-knee
    """
    _check(what, lowest, highest, resolution)
    forecast = Forecast(_arm(study, arm), what, profile)
    span = lowest, max(lowest, forecast.highest if highest is None else highest)
    predicted = forecast.first(*span)
    setup = Bench(url, model, endpoint, metrics_url, server_log, watch, {**forecast.labels, **options})
    return _Ground(setup, forecast, what, on_run).hunted(predicted, span, resolution)


def _check(what: str, lowest: int, highest: int | None, resolution: float) -> None:
    if what not in WHATS:
        raise InputError("what", what, " or ".join(WHATS))
    positive("resolution", resolution), whole("lowest", lowest, 1)
    if highest is not None and whole("highest", highest, 1) < lowest:
        raise InputError("highest", highest, f"at least the lowest, {lowest}")


def _arm(study: Study | Arm | str | os.PathLike[str] | Mapping[str, Any], name: str | None) -> Arm:
    if isinstance(study, Arm):
        return study
    read = study if isinstance(study, Study) else load_study(study)
    return read.base if name is None else read.arm(name)


def search(
    guess: int, lowest: int, highest: int, hit: Callable[[int], bool | None], resolution: float
) -> tuple[int | None, int | None]:
    """The highest level without and the lowest with, from a guess outwards and then between; ``hit`` None ends it.

    >>> tried = []
    >>> search(20, 1, 100, lambda level: tried.append(level) or level >= 24, 0.0), tried
    ((23, 24), [20, 21, 23, 27, 25, 24])
    """
    without: int | None = None
    having: int | None = None
    level, step = min(max(guess, lowest), highest), 1 if resolution == 0 else max(1, int(resolution * guess))
    while (found := hit(level)) is not None:
        without, having = (without, level) if found else (level, having)
        if without is not None and having is not None:
            if having - without <= max(1.0, resolution * without):
                break
            level = (without + having) // 2
        elif level == (lowest if found else highest):
            break
        else:
            level = max(level - step, lowest) if found else min(level + step, highest)
            step *= 2
    return without, having


class Forecast:
    """What the simulator says of an arm at any concurrency.

    Raises:
        InputError: an arm without a closed loop, or of a model that cannot be simulated.
        DoesNotFitError: no room for a KV cache.
    """

    def __init__(self, arm: Arm, what: What, profile: Profile | str | Path | None = None) -> None:
        closed = [point.workload for point in arm.points if point.concurrency is not None]
        if not closed:
            raise InputError("study", arm.name, "an arm with a closed loop (concurrency): its level is what is hunted")
        self.arm, self.what, self.loads = arm, what, closed
        requests = generate(closed[0], arm.seed)
        self.mean_tokens = float((requests.prompt_tokens + requests.output_tokens).mean())
        self.costs = calibrated_costs(arm.deployment, profile) if profile else sheet_costs(arm.deployment)
        self.pool_tokens = fitting_memory(arm.deployment).kv_cache_tokens
        self.prompt_tokens = float(requests.prompt_tokens.mean())

    @property
    def labels(self) -> dict[str, Any]:
        """What the runs of a hunt are called, unless they are given other names."""
        arm = self.arm
        return {
            "chip": arm.deployment.chip.id,
            "arm": arm.name,
            "name": f"{arm.name}:{self.what}",
            "slo": arm.slo.table(),
        }

    @property
    def slots(self) -> int:
        """Requests that the engine runs at once, at most."""
        return self.arm.deployment.resolved().max_num_seqs * self.arm.deployment.data_parallel_size

    @property
    def closed_form(self) -> int | None:
        """The arithmetic without a simulation: where the pool is full, or where a wave's last prompt waits too long."""
        if self.what == "preemption":
            return self.requests_held(self.pool_tokens)
        from inferometer.steptime.roofline import roofline

        roof = roofline(self.arm.deployment, context_tokens=round((self.prompt_tokens + self.mean_tokens) / 2))
        return roof.ttft_knee(self.prompt_tokens)

    def requests_held(self, pool_tokens: float) -> int:
        """Requests of the mean prompt and output that pools of so many tokens hold, over all replicas."""
        return int(pool_tokens / self.mean_tokens) * self.arm.deployment.data_parallel_size

    @property
    def guess(self) -> int:
        """Where to look first."""
        return max(1, self.closed_form or 1)

    @property
    def highest(self) -> int:
        """Where to stop looking: beyond its slots an engine preempts no more than with all of them busy."""
        most = BEYOND_GUESS * self.guess
        return min(most, self.slots + self.slots // 4) if self.what == "preemption" else max(most, HIGHEST_KNEE)

    def first(self, lowest: int, highest: int) -> int | None:
        """The concurrency at which it begins in the simulation; None: at none of these."""
        if self.what == "preemption":
            return search(self.guess, lowest, highest, self.hit, 0.0)[1]
        level = lowest
        while level <= highest and not self.hit(level):
            level = level + 1 if level < EVERY else math.ceil(level * 1.1)
        return level if level <= highest else None

    def load(self, concurrency: int) -> Workload:
        """The arm's load at this concurrency: as many requests a user as its nearest point has."""

        def apart(workload: Workload) -> float:
            return abs(math.log(concurrency / (workload.concurrency or 1)))

        return at_level(min(self.loads, key=apart), concurrency)

    def hit(self, concurrency: int) -> bool:
        """Whether it has begun, in the simulation."""
        run = simulate(self.arm.deployment, self.load(concurrency), costs=self.costs, seed=self.arm.seed)
        summary = steady(run, self.arm.warmup_requests).summary()
        return past_ttft_knee(summary) if self.what == "ttft-knee" else bool(run.summary().preemptions)


class _Ground:
    """The server on which it is looked for."""

    def __init__(self, setup: Bench, forecast: Forecast, what: What, on_run: Callable[[Run], None] | None) -> None:
        self.setup, self.forecast, self.what, self.on_run = setup, forecast, what, on_run
        self.trials: dict[int, Trial] = {}
        self.runs: list[Run] = []
        self.interrupted = ""

    def hunted(self, predicted: int | None, span: tuple[int, int], resolution: float) -> Hunt:
        """Look for it from the prediction on; where nothing is predicted, at the highest load first."""
        if self.what == "preemption" and not self.setup.server(self.forecast.loads[0]).metrics_urls:
            raise _uncounted("no /metrics page was found beside it")
        without, having = search(span[1] if predicted is None else predicted, *span, self.hit, resolution)
        return Hunt(
            what=self.what,
            predicted=predicted,
            closed_form=self.forecast.closed_form,
            found=having,
            bracket=(without, having),
            trials=tuple(self.trials[level] for level in sorted(self.trials)),
            mode=mode if (mode := preemption_mode(self.runs)[0]) in ("recomputed", "swapped") else None,
            resolved=self._resolved(without, having, span, resolution),
            interrupted=self.interrupted,
            server_closed_form=self._server_closed_form(),
            runs=tuple(self.runs),
        )

    def hit(self, concurrency: int) -> bool | None:
        """Measure one level and say whether it has begun there; None once the work was broken off."""
        try:
            run = self.setup.point(self.forecast.load(concurrency), number=len(self.runs), points=None)
        except KeyboardInterrupt:
            if not self.runs:
                raise
            self.interrupted = "interrupted"
            return None
        self.runs.append(run)
        if self.on_run:
            self.on_run(run)
        if run.meta.partial:
            self.interrupted = run.meta.partial
            return None
        self.trials[concurrency] = trial = seen(run, concurrency, self.what)
        return trial.hit

    def _resolved(self, without: int | None, having: int | None, span: tuple[int, int], resolution: float) -> bool:
        if self.interrupted or not self.trials:
            return False
        ends = [self.trials[level] for level in (without, having) if level is not None]
        tight = without is None or having is None or having - without <= max(1.0, resolution * without)
        known = [
            trial for trial in self.trials.values() if trial.hit is not (trial.concurrency >= (having or math.inf))
        ]
        return tight and not known and all(end.resolved for end in ends)

    def _server_closed_form(self) -> int | None:
        if self.what != "preemption" or not self.runs:
            return None
        flags = {**self.runs[0].meta.server, **self.runs[0].meta.server.get("flags", {})}
        blocks, size = flags.get("num_gpu_blocks"), flags.get("block_size")
        return self.forecast.requests_held(blocks * size) if blocks and size else None


def seen(run: Run, concurrency: int, what: What) -> Trial:
    """A measured point as a trial. Raises `InputError` where the server does not count preemptions."""
    summary = run.summary()
    if what == "preemption" and summary.preemptions is None:
        raise _uncounted("its /metrics page has no counter of them")
    return Trial(
        concurrency=concurrency,
        hit=past_ttft_knee(summary) if what == "ttft-knee" else bool(summary.preemptions),
        preemptions=summary.preemptions,
        running=summary.running,
        waiting=summary.waiting,
        kv_usage=_peak(run, "kv_usage"),
        ttft_p50_s=summary.ttft_s.p50,
        ttft_p99_s=summary.ttft_s.p99,
        requests=summary.requests or 0,
        resolved=what == "preemption" or beyond_chance(run),
    )


def _uncounted(why: str) -> InputError:
    return InputError.because(
        f"hunt: how often the server preempts is not known: {why}; give metrics_url where its page is elsewhere"
    )


def _peak(run: Run, gauge: str) -> float | None:
    """The highest that the server reported."""
    most = run.server[gauge].max() if gauge in run.server.columns else None
    return float(most) if isinstance(most, int | float) else None


def beyond_chance(run: Run, confidence: float = 0.95) -> bool:
    """Whether the interval of TTFT p99 / p50 leaves out the factor of a knee; not with too few requests for a p99."""
    batches = Batches.of([run])
    if batches.fault:
        return False
    values, batch = batches.values(lambda each: each.ttft)
    if values.size < least_values(0.99, confidence) or not values.min() > 0:
        return False
    found = ratio(values, batch, batches.count, "p99", "p50")
    return abs(found.centre - math.log(TTFT_KNEE)) > half_width(found, confidence)
