"""The schedulers' rules in plain Python, one step at a time: the oracle that the compiled core must equal.

Read `VllmV1` beside engines.md 1.1: same order, same names. Nothing here is fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from inferometer.sim.rules import SAMPLE_INTERVAL, SAMPLES, SUBTICKS, Rules
from inferometer.steptime.costs import StepCosts, half_pairs_of


@dataclass(eq=False)
class Request:
    """A request on its way through the engine; times are ticks of 2**-40 s."""

    id: int
    prompt: int
    output: int
    cached: int
    arrival: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    chunk: int = 0
    decoding: bool = False
    admitted: int = -1
    first: int = -1
    last: int = -1
    preemptions: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and what was generated: what must be computed before the next token."""
        return self.prompt + self.generated


@dataclass
class Outcome:
    """What a reference run leaves; samples are (time, running, waiting, used blocks, preemptions so far)."""

    requests: list[Request]
    samples: list[tuple[int, int, int, int, int]]
    steps: int
    preemptions: int


class Arrivals:
    """Requests not yet seen by the engine, in order; in a closed loop a finish lets the next one arrive."""

    def __init__(self, requests: list[Request], rules: Rules) -> None:
        self.all, self.rules = requests, rules
        closed = rules.concurrency
        self.issued = min(closed, len(requests)) if closed else len(requests)
        self.next = 0

    def finish(self, now: int) -> None:
        """A client's request ended at ``now``: it thinks, then sends its next one."""
        if self.issued < len(self.all):
            self.all[self.issued].arrival = now + self.rules.think
            self.issued += 1

    def first(self) -> int:
        """When the next one arrives."""
        return self.all[self.next].arrival

    def until(self, now: int) -> Iterator[Request]:
        """Take what has arrived by ``now``."""
        while self.next < self.issued and self.all[self.next].arrival <= now:
            self.next += 1
            yield self.all[self.next - 1]

    def count(self, now: int) -> int:
        """How many have arrived by ``now`` and were not taken."""
        return sum(r.arrival <= now for r in self.all[self.next : self.issued])


class Sampler:
    """The server's state at whole multiples of an interval; at `SAMPLES` every second one goes and it doubles."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.interval = SAMPLE_INTERVAL

    def hold(self, until: int, running: int, queued: int, used: int, preemptions: int) -> None:
        """The state given has held since the last call and until ``until``."""
        while (due := len(self.rows) * self.interval) < until:
            self.rows.append((due, running, queued + self.arrivals.count(due), used, preemptions))
            if len(self.rows) == SAMPLES:
                self.rows = self.rows[::2]
                self.interval *= 2


def step_ticks(costs: StepCosts, contexts: list[int], chunks: list[tuple[int, int]], rows: int) -> int:
    """Cost of a step in ticks of 2**-54 s: contexts of the decoding sequences, chunks as (start, tokens)."""
    total = 0
    for k in range(len(costs.window)):
        window = int(costs.window[k])
        total += int((costs.mixed_kv if chunks else costs.decode_kv)[k]) * sum(min(c, window) for c in contexts)
        for start, tokens in chunks:
            total += int(costs.pair[k]) * half_pairs_of(tokens, start, window)
            total += int(costs.chunk_kv[k]) * min(start, window)
    if not chunks:
        return total + int(costs.decode[len(contexts)])
    largest = len(costs.mixed) - 1
    whole, rest = divmod(len(contexts) + sum(tokens for _, tokens in chunks), largest)
    total += whole * int(costs.mixed[largest]) + (int(costs.mixed[rest]) if rest else 0)
    return total + int(costs.rows[rows]) + costs.sequence * (len(contexts) + len(chunks))


class VllmV1:
    """vLLM V1 (``vllm/v1/core/sched/scheduler.py:schedule``), first come first served, without prefix caching."""

    def __init__(self, requests: list[Request], rules: Rules, costs: StepCosts) -> None:
        self.requests, self.rules, self.costs = requests, rules, costs
        self.arrivals = Arrivals(requests, rules)
        self.sampler = Sampler(self.arrivals)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.leaving: list[Request] = []
        """Finished, but the asynchronous scheduler still holds their slot and blocks."""
        self.now = self.seen = 0
        """Ticks of 2**-54 s; arrivals up to ``seen`` are visible to the scheduler."""
        self.free = rules.blocks
        self.steps = self.preemptions = 0

    def run(self) -> Outcome:
        """Step until every request has ended."""
        while self.arrivals.next < len(self.requests) or self.waiting or self.running:
            self.see()
            scheduled = self.plan()
            self.step(scheduled)
            self.complete(scheduled)
        return Outcome(self.requests, self.sampler.rows, self.steps, self.preemptions)

    def see(self) -> None:
        """Queue what has arrived; an idle engine sees at once, and sleeps until the next arrival."""
        if not self.running:
            self.release()
            if not self.waiting and not self.arrivals.count(self.now // SUBTICKS):
                self.now = self.arrivals.first() * SUBTICKS
                self.sampler.hold(self.now // SUBTICKS, 0, 0, 0, self.preemptions)
            self.seen = self.now
        self.waiting.extend(self.arrivals.until(self.seen // SUBTICKS))

    def plan(self) -> list[Request]:
        """Choose the next batch: who runs first, then who waits, unless somebody was preempted."""
        before = self.preemptions
        scheduled, budget = self.schedule_running()
        if self.preemptions == before:
            scheduled += self.schedule_waiting(budget)
        return scheduled

    def complete(self, scheduled: list[Request]) -> None:
        """The batch has run: free what had ended before it, and what ended in it unless the lag holds that back."""
        self.release()
        self.settle(scheduled)
        if not self.rules.async_scheduling:
            self.release()

    def schedule_running(self) -> tuple[list[Request], int]:
        """Part A: running requests take tokens and blocks, in order of admission; also returns the budget left."""
        budget = self.rules.max_num_batched_tokens
        scheduled: list[Request] = []
        alone = len(self.running) == 1 and not self.waiting
        while len(scheduled) < len(self.running) and budget > 0:
            r = self.running[len(scheduled)]
            n = r.num_tokens - r.computed
            if not (self.rules.uncapped_lone_prefill and alone):
                n = self.capped(n)
            n = min(n, budget)
            while self.blocks(r.computed + n) - r.blocks > self.free and r in self.running:
                self.preempt(self.running[-1])
            if r not in self.running:
                break
            self.allocate(r, n)
            budget -= n
            scheduled.append(r)
        return scheduled, budget

    def preempt(self, victim: Request) -> None:
        """Take all blocks of the last running request; it goes to the front of the queue and keeps its outputs."""
        self.running.remove(victim)
        self.free += victim.blocks
        victim.blocks = victim.computed = 0
        victim.decoding = False
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(victim)

    def schedule_waiting(self, budget: int) -> list[Request]:
        """Part B: admit the queue's head while budget, slots and blocks last; whoever does not fit blocks the rest."""
        rules, admitted = self.rules, list[Request]()
        while budget > 0 and self.waiting and len(self.running) + len(self.leaving) < rules.max_num_seqs:
            r = self.waiting[0]
            hit = min(r.cached, r.prompt - 1)
            n = self.capped(r.num_tokens - hit)
            if not rules.enable_chunked_prefill and n > budget:
                break
            n = min(n, budget)
            watermark = rules.watermark_blocks if self.running or self.leaving else 0
            if rules.scheduler_reserve_full_isl and self.blocks(r.num_tokens) + watermark > self.free:
                break
            if self.blocks(hit + n) + watermark > self.free:
                break
            self.running.append(self.waiting.popleft())
            r.computed = hit
            r.admitted = self.now // SUBTICKS if r.admitted < 0 else r.admitted
            self.allocate(r, n)
            budget -= n
            admitted.append(r)
        return admitted

    def step(self, scheduled: list[Request]) -> None:
        """The batch runs; under the asynchronous lag the next one is scheduled as this one starts."""
        started = self.now
        contexts = [r.computed + 1 for r in scheduled if r.decoding]
        chunks = [(r.computed, r.chunk) for r in scheduled if not r.decoding]
        rows = sum(r.computed + r.chunk == r.num_tokens for r in scheduled)
        self.now += step_ticks(self.costs, contexts, chunks, rows)
        self.seen = started if self.rules.async_scheduling else self.now
        self.steps += 1
        used = self.rules.blocks - self.free
        self.sampler.hold(self.now // SUBTICKS, len(self.running), len(self.waiting), used, self.preemptions)

    def settle(self, scheduled: list[Request]) -> None:
        """Count what was computed, hand out tokens, retire who has them all."""
        now = self.now // SUBTICKS
        for r in scheduled:
            r.computed += r.chunk
            if r.computed < r.num_tokens:
                continue
            r.decoding = True
            if r.output:
                r.generated += 1
                r.tokens.append(now)
                r.first = r.tokens[0]
            if r.generated >= r.output:
                r.last = now
                self.running.remove(r)
                self.leaving.append(r)
                self.arrivals.finish(now)

    def release(self) -> None:
        """Free what finished requests still held."""
        self.free += sum(r.blocks for r in self.leaving)
        self.leaving = []

    def allocate(self, r: Request, tokens: int) -> None:
        """Schedule ``tokens`` of a request and give it the blocks it lacks for them."""
        need = max(0, self.blocks(r.computed + tokens) - r.blocks)
        r.chunk = tokens
        r.blocks += need
        self.free -= need

    def capped(self, tokens: int) -> int:
        """Under the threshold for long prefills, 0 for none."""
        return min(tokens, self.rules.long_prefill_token_threshold or tokens)

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.rules.block_size)


def vllm_v1(requests: list[Request], rules: Rules, costs: StepCosts) -> Outcome:
    """A run of `VllmV1`."""
    return VllmV1(requests, rules, costs).run()


def take_fitting(queue: list[Request], slots: int, free: int, rules: Rules) -> list[Request]:
    """Take from the queue, in order of arrival, what fits now with its whole output; skip what does not."""
    taken: list[Request] = []
    for r in list(queue):
        r.blocks = -(-(r.prompt + r.output) // rules.block_size)
        if len(taken) < slots and r.blocks <= free:
            taken.append(r)
            queue.remove(r)
            free -= r.blocks
    return taken


def static(requests: list[Request], rules: Rules, costs: StepCosts) -> Outcome:
    """Static batching: admitted together, padded to the longest prompt and the longest output, released together."""
    arrivals = Arrivals(requests, rules)
    sampler = Sampler(arrivals)
    queue: list[Request] = []
    now = steps = done = 0
    while done < len(requests):
        queue.extend(arrivals.until(now // SUBTICKS))
        if not queue:
            now = max(now, requests[arrivals.next].arrival * SUBTICKS)
            sampler.hold(now // SUBTICKS, 0, 0, 0, 0)
            continue
        batch = take_fitting(queue, rules.max_num_seqs, rules.blocks, rules)
        longest = max(r.prompt - min(r.cached, r.prompt - 1) for r in batch)
        context = max(r.prompt for r in batch)
        for r in batch:
            r.admitted = now // SUBTICKS
        now += step_ticks(costs, [], [(context - longest, longest)] * len(batch), len(batch))
        steps += 1
        for generated in range(1, max(r.output for r in batch) + 1):
            if generated > 1:
                context += 1
                now += step_ticks(costs, [context] * len(batch), [], len(batch))
                steps += 1
            for r in batch:
                if generated <= r.output:
                    r.tokens.append(now // SUBTICKS)
        sampler.hold(now // SUBTICKS, len(batch), len(queue), sum(r.blocks for r in batch), 0)
        for r in batch:
            r.first = r.tokens[0] if r.output else -1
            r.last = now // SUBTICKS
            arrivals.finish(r.last)
        done += len(batch)
    return Outcome(requests, sampler.rows, steps, 0)


def continuous(requests: list[Request], rules: Rules, costs: StepCosts) -> Outcome:
    """Continuous batching that reserves prompt + output on admission: arrive, retire, admit, step."""
    arrivals = Arrivals(requests, rules)
    sampler = Sampler(arrivals)
    queue: list[Request] = []
    running: list[Request] = []
    now = steps = done = 0
    free = rules.blocks
    while done < len(requests):
        queue.extend(arrivals.until(now // SUBTICKS))
        if not queue and not running:
            now = max(now, requests[arrivals.next].arrival * SUBTICKS)
            sampler.hold(now // SUBTICKS, 0, 0, 0, 0)
            continue
        admitted = take_fitting(queue, rules.max_num_seqs - len(running), free, rules)
        for r in admitted:
            r.admitted, r.computed = now // SUBTICKS, min(r.cached, r.prompt - 1)
        free -= sum(r.blocks for r in admitted)
        contexts = [r.prompt + r.generated for r in running]
        running += admitted
        now += step_ticks(costs, contexts, [(r.computed, r.prompt - r.computed) for r in admitted], len(running))
        steps += 1
        sampler.hold(now // SUBTICKS, len(running), len(queue), rules.blocks - free, 0)
        for r in list(running):
            if r.output:
                r.generated += 1
                r.tokens.append(now // SUBTICKS)
                r.first = r.tokens[0]
            if r.generated >= r.output:
                r.last = now // SUBTICKS
                done += 1
                running.remove(r)
                free += r.blocks
                arrivals.finish(r.last)
    return Outcome(requests, sampler.rows, steps, 0)


POLICIES = {"vllm-v1": vllm_v1, "static": static, "continuous": continuous}
