"""What is made before the clock starts: the requests drawn, their prompts in the arena, a job for each worker."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from inferometer.benchmark.datasets import load_dataset, plan_dataset
from inferometer.benchmark.job import Job, Plan
from inferometer.benchmark.options import BenchOptions
from inferometer.benchmark.prompts import Prompts, Template, body, make_plan, split_plan
from inferometer.errors import InputError
from inferometer.journal import Journal
from inferometer.specs.workload import Workload
from inferometer.workload import Requests, generate

if TYPE_CHECKING:
    from inferometer.benchmark.point import Point

USERS_PER_WORKER = 512
"""One process on one core holds so many streams with ease (benchmarks/client)."""
MOST_REQUESTS = 5_000_000
"""A plan of more does not fit in a worker's memory with room to spare."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the workers of a point need."""

    plans: list[Plan]
    """One for each worker."""
    prompts: Prompts
    template: Template
    requests: int | None
    """How many will be sent; None: as many as the time allows."""
    cycle: bool
    """Whether the plan starts again once it is used up."""
    notes: list[str]

    def jobs(self, point: Point, journal: Journal) -> list[Job]:
        """A job for each worker; a closed loop's users and an open loop's cap are dealt out among them."""
        options, workload = point.options, point.workload
        closed = workload.rate_per_s is None and workload.concurrency is not None
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
                ramp_up_s=options.ramp_up_s,
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
    timed = options.duration_s is not None or options.min_duration_s > 0
    cycle = timed and workload.kind in ("closed", "sessions")
    made, messages = (
        _from_dataset(point, drawn, arena) if options.dataset else (_random(point, drawn, arena, cycle), False)
    )
    template = body(
        point.endpoint,
        point.server.model,
        stream=options.stream,
        extra_body=options.extra_body,
        messages=messages,
        **{**abilities.body_options(), "ignore_eos": options.ignore_eos and abilities.takes_ignore_eos},
    )
    if all(tokens is not None for tokens in made.asked_prompt_tokens):
        made.plan.prompt_tokens = [tokens for tokens in made.asked_prompt_tokens if tokens is not None]
    count = workers(options, workload)
    return Prepared(
        plans=split_plan(made.plan, count),
        prompts=made,
        template=template,
        requests=None if cycle and options.duration_s is not None else len(made.plan.index),
        cycle=cycle,
        notes=[*abilities.notes, *made.notes],
    )


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
        cache_salt=options.cache_salt,
    )


def _from_dataset(point: Point, drawn: Requests, arena: Path) -> tuple[Prompts, bool]:
    """The prompts of the dataset, and whether they are lists of messages."""
    options, workload, tokenizer = point.options, point.workload, point.tokenizer
    assert options.dataset is not None
    found = load_dataset(options.dataset, sessions=workload.kind == "sessions", tokenizer=tokenizer)
    output = options.dataset_output_tokens
    if output is None and None in found.output_tokens and isinstance(workload.output_tokens, int):
        output = workload.output_tokens  # the file does not say, so the workload's own length stands
    made = plan_dataset(
        found,
        arena,
        len(drawn) // (workload.turns or 1),
        seed=point.seed,
        endpoint=point.endpoint,
        output_tokens=output,
        scheduled_s=_schedule(workload, drawn),
        tokenizer=tokenizer,
        cache_salt=options.cache_salt,
    )
    return made, found.has_messages


def _schedule(workload: Workload, drawn: Requests) -> list[float]:
    return [] if workload.concurrency else drawn.arrival_s.tolist()


def _refuse(point: Point) -> None:
    workload, options = point.workload, point.options
    if workload.kind == "sessions" and point.endpoint != "chat":
        raise InputError("endpoint", point.endpoint, "'chat' for sessions: their turns are messages")
    if options.max_concurrency is not None and workload.concurrency is not None:
        raise InputError("max_concurrency", options.max_concurrency, "it only for an open loop: a closed one has users")
    if options.ramp_up_s and workload.concurrency is None:
        raise InputError("ramp_up_s", options.ramp_up_s, "it only for a closed loop")
    if np.any(np.asarray(workload.cached_tokens)):
        raise InputError("cached_tokens", "given", "shared_prefix_len: a real server decides itself what it has cached")


def draw(workload: Workload, options: BenchOptions, seed: int) -> Requests:
    """The workload's requests; an open loop has as many as ``duration_s`` and ``min_duration_s`` need.

    Raises:
        InputError: more requests than a plan can hold; an answer of no tokens, which nobody can ask a server for.
    """
    if workload.kind == "open" and workload.rate_per_s and (options.duration_s or options.min_duration_s):
        longest_s = options.duration_s or options.min_duration_s
        # enough that all arrivals within the time are there: five standard deviations of a Poisson count
        expected = longest_s * workload.rate_per_s
        burst = 1 / min(workload.burstiness or 1.0, 1.0)
        enough = math.ceil(expected + 5 * math.sqrt(expected * burst) + 10)
        least = enough if options.duration_s else max(enough, workload.requests or 0)
        workload = msgspec.structs.replace(workload, requests=_held(least))
    drawn = generate(workload, seed)
    _held(len(drawn))
    if not (drawn.output_tokens > 0).all():
        raise InputError("output_tokens", 0, "at least 1: a server cannot be asked for none")
    if workload.concurrency is None and options.duration_s is not None:
        return _first(drawn, int(np.searchsorted(drawn.arrival_s, options.duration_s, side="right")))
    return drawn


def _first(drawn: Requests, count: int) -> Requests:
    kept = {name: getattr(drawn, name)[: max(count, 1)] for name in _COLUMNS}
    return msgspec.structs.replace(drawn, **kept)


_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens")


def _held(requests: int) -> int:
    if requests > MOST_REQUESTS:
        raise InputError("requests", requests, f"at most {MOST_REQUESTS:,} a point")
    return requests


def workers(options: BenchOptions, workload: Workload) -> int:
    """How many client processes: as asked, else one for every 512 users while cores last (one is the server's)."""
    users = workload.concurrency or options.max_concurrency or 1
    if options.workers is not None:
        return min(options.workers, users) if workload.concurrency else options.workers
    spare = max((os.cpu_count() or 1) - 1, 1)
    return min(spare, math.ceil(users / USERS_PER_WORKER))
