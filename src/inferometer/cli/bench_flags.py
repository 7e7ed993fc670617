"""The flags of ``inferometer bench``, as dataclasses that cyclopts flattens, and what they say together."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Group, Parameter

from inferometer.cli.options import StudyFlags, read_study
from inferometer.errors import InputError

if TYPE_CHECKING:
    from inferometer.specs.slo import Slo
    from inferometer.specs.study import Arm
    from inferometer.specs.workload import Workload

LOAD = Group("Load: over the study's, or without a study", sort_key=1.1)
PROMPTS = Group("Prompts and answers", sort_key=1.2)
STOP = Group("Warm-up and end of a point", sort_key=1.3)
SWEEP = Group("Sweep and search", sort_key=1.4)
CONNECTION = Group("Connection and client", sort_key=1.5)
SERVER = Group("Server side", sort_key=1.6)


@Parameter(name="*", group=LOAD)
@dataclass(frozen=True)
class Load:
    """What is sent, and when."""

    concurrency: Annotated[
        str | None, Parameter(help="Closed loop: users, such as 1,8,64, or 1..64 for 1, 2, 4 and so on to 64.")
    ] = None
    request_rate: Annotated[str | None, Parameter(help="Open loop: requests a second, such as 0.5,1,2, or 1..16.")] = (
        None
    )
    prompt_tokens: Annotated[
        str | None, Parameter(help="A number, or a distribution as in a study file; else 1024.")
    ] = None
    output_tokens: Annotated[
        str | None, Parameter(help="A number, or a distribution as in a study file; else 1024.")
    ] = None
    requests: Annotated[
        int | None, Parameter(help="Of each point; else 10 a user, or 60 s worth and at least 100 in an open loop.")
    ] = None
    arrivals: Annotated[
        Literal["poisson", "constant", "gamma"] | None, Parameter(help="Open loop; else poisson.", show_choices=True)
    ] = None
    burstiness: Annotated[float | None, Parameter(help="Of gamma arrivals: 1 is Poisson, below 1 comes in bursts.")] = (
        None
    )
    max_concurrency: Annotated[
        int | None, Parameter(help="Open loop: at most so many in flight; the client's queue is reported.")
    ] = None
    think_time_s: Annotated[
        float | None, Parameter(help="Closed loop: from an answer to the same user's next request.")
    ] = None
    ramp_up_s: Annotated[float | None, Parameter(help="Users start one by one, or the rate rises, over so long.")] = (
        None
    )
    trace: Annotated[str | None, Parameter(help="Replay the requests of this trace file at their times.")] = None
    rate_scale: Annotated[float | None, Parameter(help="With --trace: 2 sends twice as fast.")] = None
    turns: Annotated[int | None, Parameter(help="Conversations of so many turns (chat), concurrency at a time.")] = None
    sessions: Annotated[int | None, Parameter(help="With --turns: conversations of each point; else 10 a user.")] = None


@Parameter(name="*", group=PROMPTS)
@dataclass(frozen=True)
class Prompts:
    """What prompts are made of, and how answers are asked for."""

    endpoint: Annotated[
        Literal["completions", "chat"] | None, Parameter(help="Else completions; chat with --turns.", show_choices=True)
    ] = None
    dataset: Annotated[
        str | None, Parameter(help="File of prompts: ShareGPT-style JSON, JSON lines, or lines of text.")
    ] = None
    tokenizer: Annotated[
        str | None, Parameter(help="tokenizer.json or its folder, where the server takes no token ids.")
    ] = None
    shared_prefix_len: Annotated[int | None, Parameter(help="Tokens that prompts share at their start.")] = None
    prefix_reuse: Annotated[int | None, Parameter(help="Requests that share each prefix; else all share one.")] = None
    cache_salt: Annotated[
        str | None, Parameter(help="fresh: a salt a request, so that nothing can be in vLLM's cache.")
    ] = None
    no_ignore_eos: Annotated[bool, Parameter(help="Let answers end before the length asked for.")] = False
    no_stream: Annotated[bool, Parameter(help="Take answers whole: no TTFT and no TPOT then.")] = False
    extra_body: Annotated[
        str | None, Parameter(help="Further fields of each request, in JSON, such as '{\"temperature\": 1}'.")
    ] = None


@Parameter(name="*", group=STOP)
@dataclass(frozen=True)
class Stop:
    """What is left out, and when a point is done."""

    warmup_requests: Annotated[int | None, Parameter(help="The first so many are left out of the figures.")] = None
    warmup_s: Annotated[float | None, Parameter(help="The same by time.")] = None
    duration_s: Annotated[float | None, Parameter(help="Send for so long, however many requests that takes.")] = None
    min_duration_s: Annotated[float | None, Parameter(help="Go on at least so long.")] = None
    min_requests: Annotated[int | None, Parameter(help="Send at least so many, whatever --confidence says.")] = None
    confidence: Annotated[
        float | None, Parameter(help="Stop once mean TTFT and TPOT are known to this share, such as 0.05.")
    ] = None
    confidence_metrics: Annotated[
        str | None, Parameter(help="Whose means: of ttft_s,tpot_s,e2e_s; else the first two.")
    ] = None
    drain_timeout_s: Annotated[float | None, Parameter(help="Wait at most so long for the last; else 600.")] = None
    give_up_after_s: Annotated[float | None, Parameter(help="Stop where for so long none succeeds; else 60.")] = None
    tolerate_failures: Annotated[
        float, Parameter(help="Exit 0 although this share of a point's requests failed; else none may.")
    ] = 0.0


@Parameter(name="*", group=SWEEP)
@dataclass(frozen=True)
class Sweep:
    """Which points are measured, and what is looked for."""

    refine: Annotated[int | None, Parameter(help="So many times, add points around the bend of the curve.")] = None
    repeats: Annotated[int | None, Parameter(help="Measure each point so often, with other prompts.")] = None
    resume: Annotated[bool, Parameter(help="Take points that the store has, whole and fit, from there.")] = False
    keep_going: Annotated[bool, Parameter(help="Measure higher loads although one was too much.")] = False
    search: Annotated[bool, Parameter(help="Find the highest load that meets the limits, from the lowest given.")] = (
        False
    )
    hunt: Annotated[
        Literal["preemption", "ttft-knee"] | None,
        Parameter(
            help="Predict from the study at which concurrency this begins, then find it: preemption or ttft-knee.",
            show_choices=False,
        ),
    ] = None
    arms: Annotated[
        bool, Parameter(help="Every arm of the study that the server can serve as it runs, one after the other.")
    ] = False
    highest: Annotated[
        float | None, Parameter(help="With --search or --hunt: no higher load; else the highest given.")
    ] = None
    resolution: Annotated[float | None, Parameter(help="With --search or --hunt: known to this share; else 0.05.")] = (
        None
    )
    profile: Annotated[
        str | None, Parameter(help="With --hunt: predict with the constants of this file (inferometer calibrate).")
    ] = None
    ttft_ms: Annotated[float | None, Parameter(help="Limit on the time to first token.")] = None
    tpot_ms: Annotated[float | None, Parameter(help="Limit on the time per output token.")] = None
    e2e_ms: Annotated[float | None, Parameter(help="Limit on a whole request.")] = None
    attainment: Annotated[
        float | None, Parameter(help="With --search: share that must meet all limits; else 0.99.")
    ] = None


@Parameter(name="*", group=CONNECTION)
@dataclass(frozen=True)
class Connection:
    """How the server is reached, and by how many processes."""

    api_key: Annotated[str | None, Parameter(help="Bearer token; else INFEROMETER_API_KEY, else OPENAI_API_KEY.")] = (
        None
    )
    header: Annotated[tuple[str, ...], Parameter(help="Send 'NAME: VALUE' too. Repeatable.")] = ()
    no_verify: Annotated[bool, Parameter(help="Take any TLS certificate.")] = False
    ca_file: Annotated[str | None, Parameter(help="Certificates to trust, in PEM.")] = None
    connect_timeout_s: Annotated[float | None, Parameter(help="Else 10.")] = None
    timeout_s: Annotated[float | None, Parameter(help="Of a whole request; else 600.")] = None
    idle_timeout_s: Annotated[float | None, Parameter(help="Between two pieces of an answer; else 120.")] = None
    workers: Annotated[
        int | None, Parameter(help="Client processes; else one, and more above 512 users while cores last.")
    ] = None


@Parameter(name="*", group=SERVER)
@dataclass(frozen=True)
class Server:
    """What is read of the server while it works."""

    model: Annotated[str | None, Parameter(help="As the server names it; else the one it serves.")] = None
    metrics_url: Annotated[str | None, Parameter(help="Its Prometheus page; else /metrics beside URL.")] = None
    gpu_metrics_url: Annotated[tuple[str, ...], Parameter(help="Page of a GPU exporter (DCGM, NVML). Repeatable.")] = ()
    server_log: Annotated[str | None, Parameter(help="File it logs to, on this machine.")] = None
    scrape_interval_s: Annotated[float | None, Parameter(help="Between two looks at those pages; else 1.")] = None
    chip: Annotated[str | None, Parameter(help="What it runs on: a label of the runs; else the study's.")] = None


class Plan(msgspec.Struct, kw_only=True):
    """What a command line asks to be measured."""

    workloads: list[Workload]
    slo: Slo
    endpoint: Literal["completions", "chat"]
    options: dict[str, Any]
    """Those of `benchmark.options`."""
    arm: Arm | None = None
    study: str | None = None
    """As given: a file, or a packaged study's name."""
    flags: StudyFlags = StudyFlags()
    overrides: tuple[str, ...] = ()
    """What the command line changes of the study."""


@dataclass(frozen=True)
class Flags:
    """All of them."""

    load: Load
    prompts: Prompts
    stop: Stop
    sweep: Sweep
    connection: Connection
    server: Server

    def plan(self, study: str | None, arm: str | None) -> Plan:
        """The points, limits and options that the flags and the study say. Raises `InputError`."""
        _refuse(self, study, arm)
        _check_values(self)
        if not study and not _loops(self.load):
            raise InputError.because(
                "no load: give --concurrency 1,8 or --request-rate 0.5,1, or a study after the url"
            )
        found = self._of_study(study, arm) if study else self._by_flags()
        if self.load.turns is not None:
            found.workloads = [_sessions(each, self.load) for each in found.workloads]
            found.endpoint = "chat"
        found.endpoint = self.prompts.endpoint or found.endpoint
        found.options = self.options() | found.options
        if self.sweep.search and not found.slo.limits():
            raise InputError.because("--search: needs a limit: --ttft-ms, --tpot-ms or --e2e-ms")
        return found

    def plans(self, study: str | None, arm: str | None) -> tuple[list[Plan], dict[str, str]]:
        """A plan for each arm that a server of this arm (None: the base) can serve, and why for each other one not."""
        first = self.plan(study, arm)
        served = first.arm
        if served is None:
            raise InputError.because("--arms: needs a study, whose arms are measured")
        arms = read_study(study, self.study_flags(), self.overrides()).arms
        why = {each.name: _not_served(each, served) for each in arms}
        plans = [
            first if each.name == served.name else self.plan(study, each.name) for each in arms if not why[each.name]
        ]
        return plans, {name: reason for name, reason in why.items() if reason}

    def options(self) -> dict[str, Any]:
        """The options of `benchmark.options` that were given, by name."""
        given = {
            name: value
            for group in (self.load, self.prompts, self.stop, self.connection, self.server)
            for name, value in _given(group)
            if name in _OPTIONS
        }
        if self.stop.confidence_metrics:
            given["confidence_metrics"] = tuple(self.stop.confidence_metrics.split(","))
        if self.prompts.dataset is not None and self.load.output_tokens is not None:
            given["dataset_output_tokens"] = _whole("--output-tokens", self.load.output_tokens)
        if self.prompts.extra_body is not None:
            given["extra_body"] = _json_object("--extra-body", self.prompts.extra_body)
        given |= {"headers": list(map(_header, self.connection.header))} if self.connection.header else {}
        given |= {"gpu_metrics_urls": self.server.gpu_metrics_url} if self.server.gpu_metrics_url else {}
        refused = {"ignore_eos": self.prompts.no_ignore_eos, "stream": self.prompts.no_stream}
        refused["verify"] = self.connection.no_verify
        return given | {name: False for name, said in refused.items() if said}

    def _by_flags(self) -> Plan:
        from inferometer.specs.slo import Slo

        limits = {name: getattr(self.sweep, f"{name}_ms") for name in ("ttft", "tpot", "e2e")}
        seconds = {f"{name}_s": limit / 1000 for name, limit in limits.items() if limit is not None}
        share = {} if self.sweep.attainment is None else {"attainment": self.sweep.attainment}
        workloads = _workloads(self.load)
        return Plan(workloads=workloads, slo=Slo(**seconds, **share), endpoint="completions", options={})

    def _of_study(self, study: str | None, arm: str | None) -> Plan:
        flags, overrides = self.study_flags(), self.overrides()
        read = read_study(study, flags, overrides)
        of = read.arm(arm) if arm else read.base
        options: dict[str, Any] = {"chip": self.server.chip or of.deployment.chip.id, "name": f"{read.name}:{of.name}"}
        if of.warmup_requests and self.stop.warmup_s is None:
            options["warmup_requests"] = of.warmup_requests
        seed = of.table.get("workload", {}).get("seed")
        return Plan(
            workloads=[point.workload for point in of.points],
            slo=of.slo,
            endpoint="completions",
            options=options | ({} if seed is None else {"seed": seed}),
            arm=of,
            study=study,
            flags=flags,
            overrides=overrides,
        )

    def study_flags(self) -> StudyFlags:
        """Flags that every command with a study has."""
        return StudyFlags(
            prompt_tokens=self.load.prompt_tokens,
            output_tokens=self.load.output_tokens,
            concurrency=_listed("--concurrency", self.load.concurrency),
            request_rate=_listed("--request-rate", self.load.request_rate),
            requests_per_point=self.load.requests,
            warmup_requests=self.stop.warmup_requests,
            ttft_ms=self.sweep.ttft_ms,
            tpot_ms=self.sweep.tpot_ms,
        )

    def overrides(self) -> tuple[str, ...]:
        """What else is laid over the study, as ``--set`` has it."""
        load, sweep = self.load, self.sweep
        values = {
            "workload.arrivals": load.arrivals,
            "workload.burstiness": load.burstiness,
            "workload.think_time_s": load.think_time_s,
            "workload.trace": None if load.trace is None else _trace(load),
            "slo.e2e_ms": sweep.e2e_ms,
            "slo.attainment": sweep.attainment,
        }
        return tuple(f"{key}={value}" for key, value in values.items() if value is not None)


def _not_served(arm: Arm, served: Arm) -> str:
    """Why a server of one arm cannot serve another; empty where it can."""
    import numpy as np

    mine, theirs = (_settings(each) for each in (arm, served))
    changed = [f"{name} {mine.get(name)}" for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
    if arm.deployment != served.deployment:
        return f"needs another server ({', '.join(changed) or 'another deployment'})"
    if any(np.any(np.asarray(point.workload.cached_tokens)) for point in arm.points):
        return "states cached_tokens, which a server decides itself"
    return ""


def _settings(arm: Arm) -> dict[str, Any]:
    described = arm.deployment.describe()
    return {**described, **described.pop("flags")}


_OPTIONS = (
    *("max_concurrency", "ramp_up_s", "dataset", "tokenizer", "shared_prefix_len", "prefix_reuse", "cache_salt"),
    *("warmup_requests", "warmup_s", "duration_s", "min_duration_s", "min_requests", "confidence"),
    *("drain_timeout_s", "give_up_after_s", "api_key", "ca_file", "connect_timeout_s", "timeout_s", "idle_timeout_s"),
    *("workers", "scrape_interval_s", "chip"),
)
"""Flags that go by the name of their option."""


def _given(group: Any) -> list[tuple[str, Any]]:
    pairs = ((field.name, getattr(group, field.name)) for field in fields(group))
    return [(name, value) for name, value in pairs if value is not None]


_BELONGS = {
    "request_rate": ("arrivals", "burstiness", "max_concurrency"),
    "concurrency": ("think_time_s", "turns"),
    "trace": ("rate_scale",),
    "turns": ("sessions",),
}
_LOOPS = ("concurrency", "request_rate", "trace")
_UNLIKE = {
    "rate_per_s": "request_rate",
    "requests_per_point": "requests",
    "dataset_output_tokens": "output_tokens",
    "gpu_metrics_urls": "gpu_metrics_url",
    "headers": "header",
    "ignore_eos": "no_ignore_eos",
    "stream": "no_stream",
    "verify": "no_verify",
    "path": "trace",
}
"""Fields of the library whose flags are spelled otherwise."""
_SEARCHES = {"highest": "--search or --hunt", "resolution": "--search or --hunt", "attainment": "--search"}


def _refuse(flags: Flags, study: str | None, arm: str | None) -> None:
    """What does not go together, said by the flags' own names."""
    load, sweep = flags.load, flags.sweep
    loops = _loops(load)
    if len(loops) > 1:
        raise InputError.because(f"give exactly one of {', '.join(map(_flag, loops))}: a load is one or the other")
    if flags.prompts.dataset is not None and load.prompt_tokens is not None:
        raise InputError("--prompt-tokens", load.prompt_tokens, "it only without --dataset: its prompts have lengths")
    if arm and not study:
        raise InputError("--arm", arm, "it only with a study")
    for needed, names in _BELONGS.items():
        for name in names:
            # that there is no load at all is said once the values are known to be sound
            unknown = not loops and not study and needed in _LOOPS
            if getattr(load, name) is not None and not unknown and not _goes(needed, name, loops, load, study):
                raise InputError(_flag(name), getattr(load, name), f"it only with {_flag(needed)}")
    for name, needed in _SEARCHES.items():
        if getattr(sweep, name) is not None and not (sweep.search or (sweep.hunt and "--hunt" in needed)):
            raise InputError(_flag(name), getattr(sweep, name), f"it only with {needed}")
    _refuse_hunt(flags, study)
    if not 0 <= flags.stop.tolerate_failures <= 1:
        raise InputError("--tolerate-failures", flags.stop.tolerate_failures, "a share from 0 to 1")
    if sweep.search and (sweep.refine or sweep.repeats or sweep.resume or sweep.keep_going):
        raise InputError.because(
            "--search chooses its points itself: leave --refine, --repeats, --resume and so on out"
        )


def _refuse_hunt(flags: Flags, study: str | None) -> None:
    """What does not go with --hunt and --arms."""
    sweep = flags.sweep
    given = [name for name in ("search", "hunt", "arms") if getattr(sweep, name)]
    if len(given) > 1:
        raise InputError.because(f"give only one of {', '.join(map(_flag, given))}")
    if sweep.hunt is None and sweep.profile is not None:
        raise InputError("--profile", sweep.profile, "it only with --hunt")
    if given and given != ["search"] and not study:
        raise InputError.because(f"{_flag(given[0])}: needs a study after the url: what is predicted follows from it")
    if sweep.hunt and (sweep.refine or sweep.repeats or sweep.resume or sweep.keep_going):
        raise InputError.because("--hunt chooses its points itself: leave --refine, --repeats, --resume and so on out")
    if sweep.hunt and (flags.load.request_rate is not None or flags.load.trace is not None or flags.load.turns):
        raise InputError.because("--hunt looks for a concurrency: leave --request-rate, --trace and --turns out")


def _loops(load: Load) -> list[str]:
    return [name for name in _LOOPS if getattr(load, name) is not None]


def _check_values(flags: Flags) -> None:
    """Raise what is wrong with a value by itself, before what is missing, and before the server is asked anything."""
    from inferometer.benchmark.options import options

    options(flags.options())
    if not _loops(flags.load):
        is_open = flags.load.arrivals is not None
        _workloads(replace(flags.load, request_rate="1") if is_open else replace(flags.load, concurrency="1"))


def by_flag(error: InputError, flags: Flags) -> InputError:
    """An error about an option or a field that a flag gave, by that flag's name; any other as it is.

    >>> load = Flags(Load(), Prompts(), Stop(confidence=5.0), Sweep(), Connection(), Server())
    >>> print(by_flag(InputError("confidence", 5.0, "a share with min_requests"), load))
    --confidence: 5.0 is not allowed; give a share with --min-requests
    """
    limit = error.field.removeprefix("slo.").removesuffix("_s") + "_ms"
    if error.field.startswith("slo.") and getattr(flags.sweep, limit, None) is not None:
        return InputError(_flag(limit), getattr(flags.sweep, limit), "a time above 0 ms")
    flag = _flag_of(error.field, flags)
    if type(error) is not InputError or flag is None:
        return error
    said = re.sub(r"[a-z0-9]+(?:_[a-z0-9]+)+", lambda found: _known(found[0]) or found[0], error.allowed)
    if said:
        return InputError(flag, error.value, said)
    return InputError.because(str(error).replace(error.field, flag, 1))


def _flag_of(field: str, flags: Flags) -> str | None:
    """The flag that gave this field; None where none did: it is then the study's, or the server's."""
    name = _UNLIKE.get(field, field.removeprefix("workload.").removeprefix("slo."))
    groups = (flags.load, flags.prompts, flags.stop, flags.sweep, flags.connection, flags.server)
    given = {each for group in groups for each, value in _given(group) if value != () and value is not False}
    return _flag(name) if name in given else None


def _known(option: str) -> str | None:
    """The flag that goes by an option's name, or stands for it."""
    names = {each.name for group in (Load, Prompts, Stop, Sweep, Connection, Server) for each in fields(group)}
    name = _UNLIKE.get(option, option)
    return _flag(name) if name in names else None


def _goes(needed: str, name: str, loops: list[str], load: Load, study: str | None) -> bool:
    """Whether what a flag needs is there, as far as the flags can tell: a study may have it."""
    if needed == "turns":
        return load.turns is not None
    if name == "max_concurrency" and loops == ["trace"]:
        return True
    return needed in loops or bool(study and not loops and needed != "trace")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _workloads(load: Load) -> list[Workload]:
    """The points that flags alone say, in the order given."""
    from inferometer.specs.study import LEAST_OPEN_REQUESTS, PER_RATE_S
    from inferometer.specs.workload import Workload

    lengths = {name: _length(getattr(load, name)) for name in ("prompt_tokens", "output_tokens")}
    sizes = {name: value for name, value in lengths.items() if value is not None}
    if load.trace is not None:
        return [Workload.from_trace(load.trace, 1.0 if load.rate_scale is None else load.rate_scale)]
    if load.concurrency is not None:
        users = levels("--concurrency", load.concurrency, whole_numbers=True)
        think = load.think_time_s or 0.0
        return [Workload.closed_loop(int(each), load.requests, think_time_s=think, **sizes) for each in users]
    rates = levels("--request-rate", load.request_rate or "", whole_numbers=False)
    count = {rate: load.requests or max(LEAST_OPEN_REQUESTS, round(PER_RATE_S * rate)) for rate in rates}
    arrivals: dict[str, Any] = {"arrivals": load.arrivals or "poisson", "burstiness": load.burstiness}
    return [Workload.open_loop(rate, count[rate], **sizes, **arrivals) for rate in rates]


def _sessions(workload: Workload, load: Load) -> Workload:
    """Conversations in place of a closed loop, of its users and lengths."""
    from inferometer.specs.workload import Workload as Made

    if workload.concurrency is None:
        raise InputError("--turns", load.turns, "it only with a closed loop (--concurrency)")
    return Made.sessions(
        workload.concurrency,
        load.sessions,
        load.turns or 1,
        workload.prompt_tokens,
        workload.output_tokens,
        workload.think_time_s,
    )


def _length(given: str | None) -> Any:
    from inferometer.specs.merge import overrides

    return None if given is None else overrides([f"value={given}"])["value"]


def levels(flag: str, text: str, *, whole_numbers: bool) -> list[float]:
    """What a list of levels means: numbers, ranges ``1..64`` that double, and ``1..100:7``, seven at equal ratios.

    >>> levels("--concurrency", "1..24,64", whole_numbers=True)
    [1, 2, 4, 8, 16, 24, 64]
    >>> levels("--request-rate", "0.5..8:3", whole_numbers=False)
    [0.5, 2.0, 8.0]
    """
    found: list[float] = []
    for part in text.split(","):
        first, dots, rest = part.partition("..")
        low = _number(flag, text, first, whole_numbers)
        found += _range(flag, text, low, rest, whole_numbers) if dots else [low]
    return list(dict.fromkeys(found))


def _range(flag: str, text: str, low: float, rest: str, whole_numbers: bool) -> list[float]:
    last, colon, count = rest.partition(":")
    high = _number(flag, text, last, whole_numbers)
    if high < low:
        raise InputError(flag, text, "ranges that go up, such as 1..64")
    if colon:
        from inferometer.benchmark.sweep import geometric

        return geometric(low, high, int(_number(flag, text, count, True)), whole_numbers=whole_numbers)
    return _doubled(low, high)


def _doubled(low: float, high: float) -> list[float]:
    doubled = [low]
    while doubled[-1] * 2 < high:
        doubled.append(doubled[-1] * 2)
    return [*doubled, high]


def _number(flag: str, text: str, part: str, whole_numbers: bool) -> float:
    kind = "whole numbers of at least 1" if whole_numbers else "numbers above 0"
    example = "1,8,64 or 1..64" if whole_numbers else "0.5,1,2 or 1..16"
    try:
        number = int(part) if whole_numbers else float(part)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise InputError(flag, text, f"{kind} or ranges of them, such as {example}")
    return number


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(flag, text, "a whole number with a dataset, whose prompts have lengths of their own")
    return int(text)


def _listed(flag: str, text: str | None) -> str | None:
    """Levels one by one, as other commands take them."""
    if text is None:
        return None
    return ",".join(f"{each:g}" for each in levels(flag, text, whole_numbers=flag == "--concurrency"))


def _trace(load: Load) -> str:
    scale = 1.0 if load.rate_scale is None else load.rate_scale
    return f"{{path={msgspec.json.encode(load.trace).decode()}, rate_scale={scale!r}}}"


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as why:
        raise InputError(flag, text, f"a JSON object ({why})") from why
    if not isinstance(found, dict):
        raise InputError(flag, text, 'a JSON object, such as {"temperature": 1}')
    return found


def _header(text: str) -> tuple[str, str]:
    from inferometer.benchmark.target import parse_header

    try:
        return parse_header(text)
    except InputError as why:  # which names the field, not the flag, and does not show the value
        raise InputError.because(f"--{why}") from None
