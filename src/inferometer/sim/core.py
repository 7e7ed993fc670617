"""The compiled schedulers: the rules of `reference`, at native speed.

Plain int64 arrays only, so numba neither counts references nor allocates. State is in three arrays:

- ``slots`` (7, max_num_seqs): the running requests in order of admission, a column each (rows `RID` ...);
- ``state``: scalars that helpers change (indices `RUNNING` ...);
- ``stack`` (2, requests): preempted requests and the outputs they had, the next to resume on top; or, for the policies
  that reserve, the queue as a linked list.

Time is ``hi`` ticks of 2**-40 s and ``lo`` of 2**-54 s. Pure decode steps take the short way through `decode_steps`,
which is where jumping from event to event will go.
"""

from __future__ import annotations

from typing import Any

import numba as nb

from inferometer.sim.rules import SAMPLES, SUBTICKS

# Untyped on purpose: numba specialises each helper on plain arrays and integers.
Array = Any
Int = Any

RID, COMPUTED, TOTAL, LEFT, ROOM, CHUNK, DECODING = range(7)
"""Rows of ``slots``: request, tokens computed, tokens to compute, outputs to come, free places in its blocks,
this step's tokens, and whether it has given a token since it was admitted."""
(
    RUNNING,
    STACKED,
    FREE,
    HELD_SLOTS,
    HELD_BLOCKS,
    NEXT,
    ISSUED,
    DONE,
    STEPS,
    PREEMPTIONS,
    PREFILLING,
    CONTEXT,
    SEEN,
    HEAD,
    TAIL,
    LEAST,
    N_STATE,
) = range(17)
"""Indices of ``state``: requests running; preempted or queued ones; free blocks; slots and blocks that finished
requests still hold; the next arrival and how many are issued; requests done; steps; preemptions; running requests that
have given no token; summed context of the others; the time up to which arrivals are seen; the queue's ends and least
need."""
(
    MAX_SEQS,
    BUDGET,
    BLOCKS,
    BLOCK,
    THRESHOLD,
    RESERVE,
    WATERMARK,
    CHUNKED,
    LAG,
    CONCURRENCY,
    THINK,
    LONE,
) = range(12)
"""Indices into the vector of `Rules`."""
WINDOW, DECODE_KV, MIXED_KV, PAIR, CHUNK_KV = range(5)
"""Rows of ``kinds``: attention layers by how far they look back."""
PROMPT, OUTPUT, CACHED = range(3)
"""Rows of ``asked``, a column a request."""
ADMITTED, FIRST, LAST, PREEMPTED = range(4)
"""Rows of ``told``, a column a request: recorded ticks (-1: never) and a count."""
SAMPLE_COUNT, SAMPLE_DUE, SAMPLE_EVERY, SAMPLE_SEEN = range(4)
SUBTICK_BITS = 14
SUBTICK_MASK = (1 << SUBTICK_BITS) - 1
assert SUBTICKS == 1 << SUBTICK_BITS

jit: Any = nb.njit(cache=True, error_model="numpy", _nrt=False)  # type: ignore[call-overload]  # no reference counts


@jit
def cdiv(a: Int, b: Int) -> Int:
    """Quotient rounded up."""
    return (a + b - 1) // b


# ---------------------------------------------------------------- cost of a step
@jit
def mixed_ticks(mixed: Array, tokens: Int) -> Int:
    """Linear layers of ``tokens``; more than the table holds run in several passes."""
    largest = len(mixed) - 1
    if tokens <= largest:
        return mixed[tokens]
    rest = tokens % largest
    return tokens // largest * mixed[largest] + (mixed[rest] if rest else 0)


@jit
def chunk_ticks(kinds: Array, tokens: Int, start: Int) -> Int:
    """Attention of one prefill chunk of ``tokens`` after ``start``."""
    total = 0
    for k in range(kinds.shape[1]):
        window = kinds[WINDOW, k]
        inside = min(max(window - start, 0), tokens)
        half_pairs = 2 * inside * start + inside * (inside + 1)
        if inside < tokens:
            half_pairs += 2 * (tokens - inside) * window
        total += kinds[PAIR, k] * half_pairs + kinds[CHUNK_KV, k] * min(start, window)
    return total


@jit
def context_ticks(kinds: Array, row: Int, slots: Array, running: Int, context: Int) -> Int:
    """KV reads of the decoding sequences; ``context`` is their summed context, only windowed layers look at each."""
    total = 0
    for k in range(kinds.shape[1]):
        window = kinds[WINDOW, k]
        capped = context
        if window < 1 << 40:
            capped = 0
            for i in range(running):
                capped += min(slots[COMPUTED, i] + 1, window) * slots[DECODING, i]
        total += kinds[row, k] * capped
    return total


# ---------------------------------------------------------------- bookkeeping shared by the policies
@jit
def finish(r: Int, hi: Int, told: Array, arrive: Array, state: Array, rules: Array) -> None:
    """Request ``r`` ended: record it, and let its client send the next one."""
    told[LAST, r] = hi
    state[DONE] += 1
    issued = state[ISSUED]
    if issued < len(arrive):
        arrive[issued] = hi + rules[THINK]
        state[ISSUED] = issued + 1


@jit
def emit(r: Int, g: Int, hi: Int, told: Array, tokens: Array, offsets: Array) -> None:
    """Token number ``g`` (from 1) of request ``r`` came."""
    if g == 1:
        told[FIRST, r] = hi
    if len(tokens) > 0:
        tokens[offsets[r] + g - 1] = hi


@jit
def sample(
    until: Int, running: Int, queued: Int, used: Int, arrive: Array, state: Array, samples: Array, meter: Array
) -> None:
    """Keep the samples that fall due before ``until``; the state given has held since the last call.

    ``queued`` are those the scheduler has taken from the arrivals but not admitted.
    """
    while meter[SAMPLE_DUE] < until:
        due = meter[SAMPLE_DUE]
        seen = max(meter[SAMPLE_SEEN], state[NEXT])
        while seen < state[ISSUED] and arrive[seen] <= due:
            seen += 1
        meter[SAMPLE_SEEN] = seen
        n = meter[SAMPLE_COUNT]
        samples[0, n] = due
        samples[1, n] = running
        samples[2, n] = queued + seen - state[NEXT]
        samples[3, n] = used
        samples[4, n] = state[PREEMPTIONS]
        n += 1
        if n == SAMPLES:
            n //= 2
            for i in range(n):
                for j in range(5):
                    samples[j, i] = samples[j, 2 * i]
            meter[SAMPLE_EVERY] *= 2
        meter[SAMPLE_COUNT] = n
        meter[SAMPLE_DUE] = n * meter[SAMPLE_EVERY]


@jit
def waiting(arrive: Array, state: Array) -> Int:
    """Whether the scheduler sees anyone who is not running."""
    return state[STACKED] > 0 or (state[NEXT] < state[ISSUED] and arrive[state[NEXT]] <= state[SEEN])


@jit
def release(state: Array) -> None:
    """Free the slots and blocks that finished requests still held."""
    state[FREE] += state[HELD_BLOCKS]
    state[HELD_BLOCKS] = 0
    state[HELD_SLOTS] = 0


# ---------------------------------------------------------------- vLLM V1
@jit
def blocks_held(slots: Array, i: Int, block: Int) -> Int:
    """KV blocks of running request ``i``: its computed tokens and the free places after them."""
    return (slots[COMPUTED, i] + slots[ROOM, i]) // block


@jit
def fill_slot(slots: Array, i: Int, r: Int, computed: Int, total: Int, left: Int, room: Int, chunk: Int) -> None:
    """Put a request that is about to be prefilled into slot ``i``."""
    slots[RID, i] = r
    slots[COMPUTED, i] = computed
    slots[TOTAL, i] = total
    slots[LEFT, i] = left
    slots[ROOM, i] = room
    slots[CHUNK, i] = chunk
    slots[DECODING, i] = 0


@jit
def preempt_last(slots: Array, stack: Array, asked: Array, told: Array, state: Array, rules: Array) -> None:
    """The last running request gives up its blocks and goes to the front of the queue."""
    v = state[RUNNING] - 1
    state[RUNNING] = v
    state[FREE] += blocks_held(slots, v, rules[BLOCK])
    if slots[DECODING, v]:
        state[CONTEXT] -= slots[COMPUTED, v] + 1
    else:
        state[PREFILLING] -= 1
    r = slots[RID, v]
    stack[0, state[STACKED]] = r
    stack[1, state[STACKED]] = asked[OUTPUT, r] - slots[LEFT, v]
    state[STACKED] += 1
    state[PREEMPTIONS] += 1
    told[PREEMPTED, r] += 1


@jit
def schedule_running(
    slots: Array, stack: Array, asked: Array, told: Array, arrive: Array, state: Array, rules: Array, budget: Int
) -> tuple[Int, Int, Int]:
    """Part A: running requests take tokens and blocks in order of admission.

    Returns how many are scheduled, the budget left, and how many were preempted.
    """
    i = 0
    before = state[PREEMPTIONS]
    alone = state[RUNNING] == 1 and not waiting(arrive, state)
    while i < state[RUNNING] and budget > 0:
        n = slots[TOTAL, i] - slots[COMPUTED, i]
        if rules[THRESHOLD] > 0 and not (rules[LONE] and alone):
            n = min(n, rules[THRESHOLD])
        n = min(n, budget)
        need = 0
        if n > slots[ROOM, i]:
            need = cdiv(n - slots[ROOM, i], rules[BLOCK])
            while need > state[FREE] and state[RUNNING] > i:
                preempt_last(slots, stack, asked, told, state, rules)
            if state[RUNNING] == i:
                break
        state[FREE] -= need
        slots[ROOM, i] += need * rules[BLOCK]
        slots[CHUNK, i] = n
        budget -= n
        i += 1
    return i, budget, state[PREEMPTIONS] - before


@jit
def schedule_waiting(
    slots: Array,
    stack: Array,
    asked: Array,
    told: Array,
    arrive: Array,
    state: Array,
    rules: Array,
    budget: Int,
    hi: Int,
) -> None:
    """Part B: the queue's head is admitted while budget, slots and blocks last; who does not fit blocks the rest."""
    block = rules[BLOCK]
    while budget > 0 and state[RUNNING] + state[HELD_SLOTS] < rules[MAX_SEQS]:
        resumed = state[STACKED] > 0
        if resumed:
            r = stack[0, state[STACKED] - 1]
            generated = stack[1, state[STACKED] - 1]
        elif state[NEXT] < state[ISSUED] and arrive[state[NEXT]] <= state[SEEN]:
            r = state[NEXT]
            generated = 0
        else:
            break
        total = asked[PROMPT, r] + generated
        hit = min(asked[CACHED, r], asked[PROMPT, r] - 1)
        n = total - hit
        if rules[THRESHOLD] > 0:
            n = min(n, rules[THRESHOLD])
        if rules[CHUNKED] == 0 and n > budget:
            break
        n = min(n, budget)
        need = cdiv(hit + n, block)
        watermark = rules[WATERMARK] if state[RUNNING] + state[HELD_SLOTS] > 0 else 0
        if rules[RESERVE] and cdiv(total, block) + watermark > state[FREE]:
            break
        if need + watermark > state[FREE]:
            break
        if resumed:
            state[STACKED] -= 1
        else:
            state[NEXT] += 1
            told[ADMITTED, r] = hi
        i = state[RUNNING]
        state[RUNNING] = i + 1
        state[FREE] -= need
        state[PREFILLING] += 1
        budget -= n
        fill_slot(slots, i, r, hit, total, asked[OUTPUT, r] - generated, need * block - hit, n)


@jit
def batch_ticks(
    slots: Array, scheduled: Int, state: Array, decode: Array, mixed: Array, rows: Array, sequence: Int, kinds: Array
) -> Int:
    """Cost of a step in which the first ``scheduled`` running requests compute their chunks."""
    tokens = 0
    sampled = 0
    decodes = 0
    context = 0
    total = 0
    for i in range(scheduled):
        n = slots[CHUNK, i]
        tokens += n
        sampled += slots[COMPUTED, i] + n == slots[TOTAL, i]
        if slots[DECODING, i]:
            decodes += 1
            context += slots[COMPUTED, i] + 1
        else:
            total += chunk_ticks(kinds, n, slots[COMPUTED, i])
    if decodes == scheduled:
        return context_ticks(kinds, DECODE_KV, slots, scheduled, context) + decode[decodes]
    total += context_ticks(kinds, MIXED_KV, slots, scheduled, context)
    return total + mixed_ticks(mixed, tokens) + rows[sampled] + sequence * scheduled


@jit
def advance(
    slots: Array,
    scheduled: Int,
    hi: Int,
    asked: Array,
    told: Array,
    tokens: Array,
    offsets: Array,
    arrive: Array,
    state: Array,
    rules: Array,
) -> None:
    """The step is over: count what was computed, hand out tokens, retire the finished, keep the order of the rest."""
    kept = 0
    for i in range(state[RUNNING]):
        if i < scheduled:
            n = slots[CHUNK, i]
            slots[COMPUTED, i] += n
            slots[ROOM, i] -= n
            if slots[COMPUTED, i] == slots[TOTAL, i]:
                r = slots[RID, i]
                if slots[LEFT, i] > 0:
                    slots[LEFT, i] -= 1
                    emit(r, asked[OUTPUT, r] - slots[LEFT, i], hi, told, tokens, offsets)
                if slots[DECODING, i]:
                    state[CONTEXT] += 1
                else:
                    slots[DECODING, i] = 1
                    state[PREFILLING] -= 1
                    state[CONTEXT] += slots[COMPUTED, i] + 1
                if slots[LEFT, i] == 0:
                    state[CONTEXT] -= slots[COMPUTED, i] + 1
                    state[HELD_BLOCKS] += blocks_held(slots, i, rules[BLOCK])
                    state[HELD_SLOTS] += 1
                    finish(r, hi, told, arrive, state, rules)
                    continue
                slots[TOTAL, i] += 1
        if kept < i:
            for j in range(7):
                slots[j, kept] = slots[j, i]
        kept += 1
    state[RUNNING] = kept


@jit
def decode_all(slots: Array, running: Int, block: Int, hi: Int, asked: Array, tokens: Array, offsets: Array) -> None:
    """Every running request computes one token and gets one; nobody has its last."""
    for i in range(running):
        room = slots[ROOM, i]
        slots[ROOM, i] = (block if room == 0 else room) - 1
        slots[COMPUTED, i] += 1
        slots[TOTAL, i] += 1
        slots[LEFT, i] -= 1
    if len(tokens) > 0:
        for i in range(running):
            r = slots[RID, i]
            tokens[offsets[r] + asked[OUTPUT, r] - slots[LEFT, i] - 1] = hi


@jit
def decode_steps(
    slots: Array,
    hi: Int,
    lo: Int,
    decode: Array,
    kinds: Array,
    asked: Array,
    tokens: Array,
    offsets: Array,
    arrive: Array,
    state: Array,
    rules: Array,
    samples: Array,
    meter: Array,
) -> tuple[Int, Int]:
    """Steps in which all running requests decode and nobody can be admitted, finishes or lacks a block.

    Returns the clock; whatever comes next is a step of the general kind. The seam for jumping between events.
    """
    running = state[RUNNING]
    full = running + state[HELD_SLOTS] >= rules[MAX_SEQS] or rules[BUDGET] <= running
    left = slots[LEFT, 0]
    for i in range(1, running):
        left = min(left, slots[LEFT, i])
    while left > 1:
        if not full and waiting(arrive, state):
            break
        need = 0
        for i in range(running):
            need += slots[ROOM, i] == 0
        if need > state[FREE]:
            break
        started = hi
        lo += context_ticks(kinds, DECODE_KV, slots, running, state[CONTEXT]) + decode[running]
        hi += lo >> SUBTICK_BITS
        lo &= SUBTICK_MASK
        decode_all(slots, running, rules[BLOCK], hi, asked, tokens, offsets)
        left -= 1
        state[CONTEXT] += running
        state[FREE] -= need
        state[SEEN] = started if rules[LAG] else hi
        state[STEPS] += 1
        sample(hi, running, state[STACKED], rules[BLOCKS] - state[FREE], arrive, state, samples, meter)
        if state[HELD_SLOTS] > 0:
            release(state)
            full = running >= rules[MAX_SEQS] or rules[BUDGET] <= running
    return hi, lo


# ---------------------------------------------------------------- the policies, one signature
@jit
def vllm_v1(
    arrive: Array,
    asked: Array,
    rules: Array,
    decode: Array,
    mixed: Array,
    rows: Array,
    sequence: Int,
    kinds: Array,
    told: Array,
    tokens: Array,
    offsets: Array,
    samples: Array,
    meter: Array,
    state: Array,
    slots: Array,
    stack: Array,
) -> None:
    """vLLM V1, first come first served (``vllm/v1/core/sched/scheduler.py``); the twin of `reference.VllmV1`."""
    hi = lo = 0
    while state[DONE] < len(arrive):
        if state[RUNNING] == 0:
            release(state)
            if state[STACKED] == 0 and arrive[state[NEXT]] > hi:
                hi = arrive[state[NEXT]]
                lo = 0
                sample(hi, 0, 0, 0, arrive, state, samples, meter)
            state[SEEN] = hi
        elif state[PREFILLING] == 0 and state[RUNNING] <= rules[BUDGET]:
            hi, lo = decode_steps(
                slots, hi, lo, decode, kinds, asked, tokens, offsets, arrive, state, rules, samples, meter
            )
        scheduled, budget, lost = schedule_running(slots, stack, asked, told, arrive, state, rules, rules[BUDGET])
        if lost == 0:
            before = state[RUNNING]
            schedule_waiting(slots, stack, asked, told, arrive, state, rules, budget, hi)
            scheduled += state[RUNNING] - before
        started = hi
        lo += batch_ticks(slots, scheduled, state, decode, mixed, rows, sequence, kinds)
        hi += lo >> SUBTICK_BITS
        lo &= SUBTICK_MASK
        state[SEEN] = started if rules[LAG] else hi
        state[STEPS] += 1
        sample(hi, state[RUNNING], state[STACKED], rules[BLOCKS] - state[FREE], arrive, state, samples, meter)
        release(state)
        advance(slots, scheduled, hi, asked, told, tokens, offsets, arrive, state, rules)
        if rules[LAG] == 0:
            release(state)


@jit
def enqueue(stack: Array, asked: Array, arrive: Array, state: Array, rules: Array, hi: Int) -> None:
    """Append what has arrived to the queue: a linked list, ``stack[0, r]`` the request after r, -1 at the end."""
    while state[NEXT] < state[ISSUED] and arrive[state[NEXT]] <= hi:
        r = state[NEXT]
        stack[0, r] = -1
        if state[STACKED] > 0:
            stack[0, state[TAIL]] = r
        else:
            state[HEAD] = r
        state[TAIL] = r
        state[STACKED] += 1
        state[NEXT] += 1
        state[LEAST] = min(state[LEAST], cdiv(asked[PROMPT, r] + asked[OUTPUT, r], rules[BLOCK]))


@jit
def take_fitting(
    slots: Array,
    taken: Int,
    stack: Array,
    asked: Array,
    told: Array,
    arrive: Array,
    state: Array,
    rules: Array,
    hi: Int,
) -> Int:
    """Fill slots from ``taken`` on with what fits now, prompt and whole output, in order of arrival; skip the rest.

    ``state[LEAST]`` is no more than the least need in the queue: below it nothing can fit. Returns how many slots are
    filled.
    """
    enqueue(stack, asked, arrive, state, rules, hi)
    if state[STACKED] == 0:
        return taken
    r = state[HEAD]
    before = -1
    least = 1 << 62
    while r >= 0 and taken < rules[MAX_SEQS] and state[LEAST] <= state[FREE]:
        following = stack[0, r]
        need = cdiv(asked[PROMPT, r] + asked[OUTPUT, r], rules[BLOCK])
        if need <= state[FREE]:
            reserve(slots, taken, r, need, asked, told, state, rules, hi)
            taken += 1
            if before >= 0:
                stack[0, before] = following
            else:
                state[HEAD] = following
            if following < 0:
                state[TAIL] = before
        else:
            before = r
            least = min(least, need)
        r = following
    if r < 0:
        state[LEAST] = least
    return taken


@jit
def reserve(
    slots: Array, i: Int, r: Int, need: Int, asked: Array, told: Array, state: Array, rules: Array, hi: Int
) -> None:
    """Request ``r`` leaves the queue for slot ``i`` with ``need`` blocks, its whole prompt to compute."""
    state[FREE] -= need
    state[STACKED] -= 1
    told[ADMITTED, r] = hi
    hit = min(asked[CACHED, r], asked[PROMPT, r] - 1)
    fill_slot(slots, i, r, hit, asked[PROMPT, r], asked[OUTPUT, r], need * rules[BLOCK] - hit, asked[PROMPT, r] - hit)


@jit
def prefill_padded(
    hi: Int, lo: Int, batch: Int, longest: Int, context: Int, mixed: Array, sequence: Int, kinds: Array
) -> tuple[Int, Int]:
    """The clock after a padded prefill; added up piece by piece, since the whole may exceed what 64 bits count."""
    for _ in range(batch):
        lo += chunk_ticks(kinds, longest, context - longest) + sequence
        hi += lo >> SUBTICK_BITS
        lo &= SUBTICK_MASK
    largest = len(mixed) - 1
    for _ in range(longest * batch // largest):
        lo += mixed[largest]
        hi += lo >> SUBTICK_BITS
        lo &= SUBTICK_MASK
    rest = longest * batch % largest
    return hi, lo + (mixed[rest] if rest else 0)


@jit
def static(
    arrive: Array,
    asked: Array,
    rules: Array,
    decode: Array,
    mixed: Array,
    rows: Array,
    sequence: Int,
    kinds: Array,
    told: Array,
    tokens: Array,
    offsets: Array,
    samples: Array,
    meter: Array,
    state: Array,
    slots: Array,
    stack: Array,
) -> None:
    """Static batching: admitted together, padded to the longest, released together; the twin of `reference.static`."""
    hi = lo = 0
    while state[DONE] < len(arrive):
        batch = take_fitting(slots, 0, stack, asked, told, arrive, state, rules, hi)
        if batch == 0:
            hi = arrive[state[NEXT]]
            lo = 0
            sample(hi, 0, 0, 0, arrive, state, samples, meter)
            continue
        longest = context = outputs = 0
        for i in range(batch):
            longest = max(longest, slots[CHUNK, i])
            context = max(context, slots[TOTAL, i])
            outputs = max(outputs, slots[LEFT, i])
        hi, lo = prefill_padded(hi, lo, batch, longest, context, mixed, sequence, kinds)
        lo += rows[batch]
        state[STEPS] += 1
        for generated in range(1, max(outputs, 1) + 1):
            if generated > 1:
                context += 1
                state[STEPS] += 1
                lo += decode[batch]
                for k in range(kinds.shape[1]):
                    lo += kinds[DECODE_KV, k] * batch * min(context, kinds[WINDOW, k])
            hi += lo >> SUBTICK_BITS
            lo &= SUBTICK_MASK
            if generated == 1 or len(tokens) > 0:
                for i in range(batch):
                    if generated <= slots[LEFT, i]:
                        emit(slots[RID, i], generated, hi, told, tokens, offsets)
        sample(hi, batch, state[STACKED], rules[BLOCKS] - state[FREE], arrive, state, samples, meter)
        for i in range(batch):
            finish(slots[RID, i], hi, told, arrive, state, rules)
        state[FREE] = rules[BLOCKS]


@jit
def continuous(
    arrive: Array,
    asked: Array,
    rules: Array,
    decode: Array,
    mixed: Array,
    rows: Array,
    sequence: Int,
    kinds: Array,
    told: Array,
    tokens: Array,
    offsets: Array,
    samples: Array,
    meter: Array,
    state: Array,
    slots: Array,
    stack: Array,
) -> None:
    """Continuous batching that reserves prompt + output on admission; the twin of `reference.continuous`."""
    hi = lo = 0
    while state[DONE] < len(arrive):
        running = take_fitting(slots, state[RUNNING], stack, asked, told, arrive, state, rules, hi)
        if running == 0:
            hi = arrive[state[NEXT]]
            lo = 0
            sample(hi, 0, 0, 0, arrive, state, samples, meter)
            continue
        new = running - state[RUNNING]
        state[RUNNING] = running
        state[PREFILLING] += new
        state[SEEN] = hi
        for i in range(running - new):
            slots[CHUNK, i] = 1
        if new == 0:
            hi, lo = decode_steps(
                slots, hi, lo, decode, kinds, asked, tokens, offsets, arrive, state, rules, samples, meter
            )
            if state[RUNNING] < rules[MAX_SEQS] and state[NEXT] < state[ISSUED] and arrive[state[NEXT]] <= hi:
                continue
        lo += batch_ticks(slots, running, state, decode, mixed, rows, sequence, kinds)
        hi += lo >> SUBTICK_BITS
        lo &= SUBTICK_MASK
        state[STEPS] += 1
        sample(hi, running, state[STACKED], rules[BLOCKS] - state[FREE], arrive, state, samples, meter)
        advance(slots, running, hi, asked, told, tokens, offsets, arrive, state, rules)
        release(state)
