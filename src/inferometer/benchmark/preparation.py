"""What is made before the clock starts: the requests drawn, their prompts in the arena, a job for each worker."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.benchmark.datasets import load_dataset, plan_dataset
from inferometer.benchmark.job import Job, Plan
from inferometer.benchmark.options import BenchOptions
from inferometer.benchmark.prompts import FRESH, Prompts, Template, body, make_plan, split_plan
from inferometer.errors import InputError
from inferometer.journal import Journal
from inferometer.specs.workload import FloatArray, Workload
from inferometer.workload import Requests, generate

if TYPE_CHECKING:
    from inferometer.benchmark.point import Point

USERS_PER_WORKER = 512
"""One process on one core holds so many streams with ease (benchmarks/client)."""
RATE_PER_WORKER = 5_000
"""And sends so many requests/s: a quarter of what it does where answers are one token each (benchmarks/client)."""
MOST_REQUESTS = 2_000_000
"""A plan of so many takes 0.55 GB while it is made in a closed loop of 16 tokens, and 1.2 GB (about 1 GiB) at the most:
an open loop of 1,024 tokens with fresh salts and shared prefixes."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the workers of a point need."""

    plans: list[Plan]
    """One for each worker."""
    prompts: Prompts
    template: Template
    requests: int | None
    """How many will be sent; None: as many as ``duration_s`` allows."""
    rate_per_s: float | None
    """The workload's own rate of arrivals, or that of the arrivals given; None for a closed loop."""
    cycle: bool
    """Whether the plan starts again once it is used up."""
    notes: list[str]

    def jobs(self, point: Point, journal: Journal) -> list[Job]:
        """A job for each worker; a closed loop's users and an open loop's cap are dealt out among them."""
        options, workload = point.options, point.workload
        closed = workload.concurrency is not None
        users = _dealt(workload.concurrency if closed else options.max_concurrency, len(self.plans))
        return [
            Job(
                connection=point.connection,
                endpoint=point.endpoint,
                stream=options.stream,
                worker=worker,
                workers=len(self.plans),
                arena=self.prompts.arena,
                head=self.template.head,
                middle=self.template.middle,
                tail=self.template.tail,
                plan=plan,
                total=len(self.prompts.plan.index),
                journal=str(journal.requests(worker)),
                concurrency=users[worker] if closed else 0,
                max_concurrency=0 if closed else users[worker],
                think_time_s=workload.think_time_s,
                ramp_up_s=options.ramp_up_s if closed else 0.0,
                cycle=self.cycle,
                shift_bytes=self.prompts.shift_bytes,
                ring_bytes=self.prompts.ring_bytes,
                drain_timeout_s=options.drain_timeout_s,
                keep_text=workload.kind == "sessions",
            )
            for worker, plan in enumerate(self.plans)
        ]


def _dealt(users: int | None, workers: int) -> list[int]:
    each, rest = divmod(users or 0, workers)
    return [each + (worker < rest) for worker in range(workers)]


def prepare(point: Point, arena: Path) -> Prepared:
    """Draw the requests and write their prompts to ``arena``.

    Raises:
        InputError: a workload or options that cannot be sent so, naming the field.
    """
    workload, options, abilities = point.workload, point.options, point.abilities
    _refuse(point)
    drawn = draw(workload, options, point.seed)
    remarks = [] if options.dataset else _refuse_lengths(point, drawn)
    cycle = _cycles(workload, options, len(drawn))
    made, messages = (
        _from_dataset(point, drawn, arena) if options.dataset else (_random(point, drawn, arena, cycle), False)
    )
    template = body(
        point.endpoint,
        point.server.model,
        stream=options.stream,
        extra_body=options.extra_body | _fixed_salt(options),
        messages=messages,
        **{**abilities.body_options(), "ignore_eos": options.ignore_eos and abilities.takes_ignore_eos},
    )
    if None not in made.asked_prompt_tokens:
        made.plan.prompt_tokens = cast(list[int], made.asked_prompt_tokens)
    rate_per_s = workload.rate_per_s or offered_rate(drawn)
    count = workers(options, workload, rate_per_s)
    return Prepared(
        plans=split_plan(made.plan, count, _dealt(workload.concurrency, count) if workload.concurrency else ()),
        prompts=made,
        template=template,
        requests=_to_send(options, len(made.plan.index), cycle),
        rate_per_s=rate_per_s,
        cycle=cycle,
        notes=[*abilities.notes, *remarks, *made.notes, *_notes(options, made, cycle, count)],
    )


def _cycles(workload: Workload, options: BenchOptions, drawn: int) -> bool:
    """Whether a closed loop may have to go on past its own number of requests."""
    timed = options.duration_s is not None or options.min_duration_s > 0
    further = timed or options.confidence is not None or options.min_requests > drawn
    return further and workload.kind in ("closed", "sessions")


def _to_send(options: BenchOptions, planned: int, cycle: bool) -> int | None:
    if not cycle:
        return planned
    return None if options.duration_s is not None else max(planned, options.min_requests)


def _notes(options: BenchOptions, made: Prompts, cycle: bool, count: int) -> list[str]:
    """What must be known of how the plan is sent."""
    notes = []
    if cycle and not made.shift_bytes:  # of a plan whose slices move, `make_plan` has said it where it is so
        notes.append(f"prompts repeat after {made.distinct_requests} requests")
    if options.max_concurrency is not None and count > 1:
        notes.append(f"the cap of {options.max_concurrency} is split over {count} client processes")
    if not cycle and options.duration_s is None and options.min_requests > len(made.plan.index):
        notes.append(f"the workload has {len(made.plan.index)} requests, fewer than min_requests")
    return notes


def _fixed_salt(options: BenchOptions) -> dict[str, str]:
    """One text for all requests is a field of their bodies like any other."""
    return {} if options.cache_salt in (None, FRESH) else {"cache_salt": str(options.cache_salt)}


def offered_rate(drawn: Requests) -> float | None:
    """The mean rate of arrivals, requests/s: gaps over the time from the first to the last.

    None for a closed loop, for one request, and where all come at once.
    """
    times = drawn.arrival_s
    if drawn.concurrency or len(times) < 2 or not np.ptp(times) > 0:
        return None
    return float((len(times) - 1) / np.ptp(times))


def _refuse_lengths(point: Point, drawn: Requests) -> list[str]:
    """Refuse requests none of which the server can take, and say how many are too long."""
    options, most = point.options, point.server.max_model_len
    shortest = int(drawn.prompt_tokens.min())
    if options.shared_prefix_len >= shortest and options.shared_prefix_len:
        raise InputError("shared_prefix_len", options.shared_prefix_len, f"less than the prompts have, {shortest}")
    if options.warmup_requests >= len(drawn) and not (options.duration_s or options.min_duration_s):
        raise InputError("warmup_requests", options.warmup_requests, f"fewer than the requests, {len(drawn)}")
    if most is None or point.workload.kind == "sessions":
        return []
    long = int((drawn.prompt_tokens + drawn.output_tokens > most).sum())
    if long == len(drawn):
        total = f"{shortest} and {int(drawn.output_tokens.min())} out"
        raise InputError("prompt_tokens", total, f"at most the server's max_model_len together, {most}")
    return [f"{long} requests are longer than the server's max_model_len, {most}: it will refuse them"] if long else []


def _random(point: Point, drawn: Requests, arena: Path, cycle: bool) -> Prompts:
    options, workload = point.options, point.workload
    return make_plan(
        arena,
        drawn.prompt_tokens,
        drawn.output_tokens,
        point.abilities.calibration,
        seed=point.seed,
        scheduled_s=_schedule(workload, drawn),
        turns=workload.turns or 1,
        cycle=cycle,
        shared_prefix_tokens=options.shared_prefix_len,
        prefix_reuse=options.prefix_reuse,
        fresh_salt=options.cache_salt == FRESH,
    )


def _from_dataset(point: Point, drawn: Requests, arena: Path) -> tuple[Prompts, bool]:
    """The prompts of the dataset, and whether they are lists of messages."""
    options, workload, tokenizer = point.options, point.workload, point.tokenizer
    assert options.dataset is not None
    found = load_dataset(options.dataset, sessions=workload.kind == "sessions", tokenizer=tokenizer)
    made = plan_dataset(
        found,
        arena,
        len(drawn) // (workload.turns or 1),
        seed=point.seed,
        endpoint=point.endpoint,
        output_tokens=options.dataset_output_tokens,
        unsaid_output_tokens=drawn.output_tokens,
        scheduled_s=_schedule(workload, drawn),
        tokenizer=tokenizer,
        fresh_salt=options.cache_salt == FRESH,
    )
    return made, found.has_messages


def _schedule(workload: Workload, drawn: Requests) -> Sequence[float] | npt.NDArray[np.float64]:
    return () if workload.concurrency else drawn.arrival_s


def _refuse(point: Point) -> None:
    workload, options = point.workload, point.options
    if workload.kind == "sessions" and point.endpoint != "chat":
        raise InputError("endpoint", point.endpoint, "'chat' for sessions: their turns are messages")
    if options.max_concurrency is not None and workload.concurrency is not None:
        raise InputError("max_concurrency", options.max_concurrency, "it only for an open loop: a closed one has users")
    if options.ramp_up_s and workload.kind not in ("closed", "open", "sessions"):
        raise InputError(
            "ramp_up_s", options.ramp_up_s, "it only for a closed or an open loop: these arrivals are given"
        )
    if np.any(np.asarray(workload.cached_tokens)):
        raise InputError("cached_tokens", "given", "shared_prefix_len: a real server decides itself what it has cached")


def draw(workload: Workload, options: BenchOptions, seed: int) -> Requests:
    """The workload's requests; an open loop has as many as ``duration_s``, ``min_duration_s``, ``min_requests`` need.

    One whose lengths are listed one by one has as many as there are.

    Raises:
        InputError: more requests than a plan can hold; an answer of no tokens, which nobody can ask a server for.
    """
    listed = isinstance(workload.prompt_tokens, np.ndarray) or isinstance(workload.output_tokens, np.ndarray)
    if workload.kind == "open" and not listed:
        workload = msgspec.structs.replace(workload, requests=_needed(workload, options))
    _held(workload.requests or 0)
    drawn = generate(workload, seed)
    _held(len(drawn))
    if not (drawn.output_tokens > 0).all():
        raise InputError("output_tokens", 0, "at least 1: a server cannot be asked for none")
    if workload.kind == "open" and options.ramp_up_s:
        drawn = msgspec.structs.replace(drawn, arrival_s=ramped(drawn.arrival_s, options.ramp_up_s))
    if workload.concurrency is None and options.duration_s is not None:
        return _first(drawn, int(np.searchsorted(drawn.arrival_s, options.duration_s, side="right")))
    return drawn


def ramped(arrival_s: FloatArray, ramp_s: float) -> FloatArray:
    """The arrivals of a rate that rises evenly from 0 over ``ramp_s`` and then stays: none is left out.

    Arrival times are so stretched that as many come by time t as the rate would have brought: t**2 / (2 ramp_s)
    seconds' worth within the ramp, ramp_s / 2 less than without it after. Poisson arrivals stay Poisson.

    >>> ramped(np.array([0.5, 2.0, 5.0, 9.0]), 10.0).round(2).tolist()
    [3.16, 6.32, 10.0, 14.0]
    """
    within = np.sqrt(2 * ramp_s * arrival_s)
    return np.where(arrival_s < ramp_s / 2, within, arrival_s + ramp_s / 2)


def _needed(workload: Workload, options: BenchOptions) -> int:
    """Requests of an open loop."""
    least = max(workload.requests or 0, options.min_requests)
    longest_s = options.duration_s or options.min_duration_s
    if not longest_s:
        return least
    # enough that all arrivals within the time are there: five standard deviations of a Poisson count
    expected = longest_s * (workload.rate_per_s or 0.0)
    burst = 1 / min(workload.burstiness or 1.0, 1.0)
    enough = math.ceil(expected + 5 * math.sqrt(expected * burst) + 10)
    return enough if options.duration_s else max(enough, least)


def _first(drawn: Requests, count: int) -> Requests:
    kept = {name: getattr(drawn, name)[: max(count, 1)] for name in _COLUMNS}
    return msgspec.structs.replace(drawn, **kept)


_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens")


def _held(requests: int) -> int:
    if requests > MOST_REQUESTS:
        raise InputError("requests", requests, f"at most {MOST_REQUESTS:,} a point")
    return requests


def workers(options: BenchOptions, workload: Workload, rate_per_s: float | None) -> int:
    """How many client processes: as asked, but none without a user, or a request of the cap, of its own.

    Not asked: one, and one more for every 512 users and every 5,000 requests/s while cores last (one is the server's).
    """
    users = workload.concurrency or options.max_concurrency
    spare = max((os.cpu_count() or 1) - 1, 1)
    needed = max(math.ceil((users or 1) / USERS_PER_WORKER), math.ceil((rate_per_s or 0.0) / RATE_PER_WORKER))
    wanted = min(spare, needed) if options.workers is None else options.workers
    return min(wanted, users or wanted)
