"""The bytes of each request's body, put together from the job's parts and its arena without encoding anything."""

from __future__ import annotations

import mmap
import os

import msgspec

from inferometer.benchmark.job import Job
from inferometer.errors import InputError

ANSWERED = b'"},{"role":"assistant","content":"'
ASKED = b'"},{"role":"user","content":"'
"""What stands between the turns of a chat, each turn's text being the inside of a JSON string."""

Piece = bytes | memoryview


class Bodies:
    """Builds the body of every request of a job: ``head + earlier turns + prompt + middle + output_tokens + tail``.

    Raises `InputError` for a plan whose lists differ in length, or whose slices lie outside the arena.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._arena = memoryview(_mapped(job.arena))
        self._head, self._middle, self._tail = job.head.encode(), job.middle.encode(), job.tail.encode()
        _check(job, len(self._arena))

    def prompt(self, row: int, round_: int = 0) -> list[Piece]:
        """The prompt of a row in a round of a cycled plan: its slices, the last one moved on along the ring."""
        slices = self._job.plan.slices[row]
        if round_ and self._job.ring_bytes and slices:
            return [*self._cut(slices[:-2]), *self._moved(slices[-2], slices[-1], round_)]
        return self._cut(slices)

    def build(self, row: int, round_: int = 0, earlier: list[bytes] | None = None) -> list[Piece]:
        """The pieces of a request's body, to be joined. ``earlier`` is what `turn` gave for the turns before."""
        plan = self._job.plan
        tail = self._tail
        if plan.salt and plan.salt[row]:
            before, brace, after = tail.rpartition(b"}")
            tail = b"%b%b%b%b" % (before, _salt(plan.salt[row], round_), brace, after)
        number = b"%d" % plan.output_tokens[row]
        return [self._head, *(earlier or ()), *self.prompt(row, round_), self._middle, number, tail]

    def turn(self, row: int, round_: int, answer: str) -> bytes:
        """An ended turn of a chat as the next one repeats it: its prompt, the answer, and up to the next prompt."""
        return b"".join((*self.prompt(row, round_), ANSWERED, msgspec.json.encode(answer)[1:-1], ASKED))

    def _cut(self, slices: list[int]) -> list[Piece]:
        arena = self._arena
        return [arena[start:stop] for start, stop in zip(slices[::2], slices[1::2], strict=True)]

    def _moved(self, start: int, stop: int, round_: int) -> list[Piece]:
        """The slice ``start:stop`` moved by so many rounds, around the end of the ring as often as it takes."""
        ring = self._job.ring_bytes
        left = stop - start
        if start >= ring:
            return [self._arena[start:stop]]
        at = (start + round_ * self._job.shift_bytes) % ring
        pieces: list[Piece] = []
        while left > 0:
            piece = self._arena[at : min(at + left, ring)]
            pieces.append(piece)
            left -= len(piece)
            at = 0
        return pieces


def _salt(salt: str, round_: int) -> bytes:
    """The salt of a round: of a later one with its number before the closing quote, so that it is a new one."""
    text = salt.encode()
    return b'%b-%d"' % (text[:-1], round_) if round_ else text


def _mapped(path: str) -> mmap.mmap | bytes:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _check(job: Job, arena_bytes: int) -> None:
    plan = job.plan
    rows = len(plan.index)
    for name in ("slices", "output_tokens", "prompt_tokens", "scheduled_s", "session", "salt"):
        values = getattr(plan, name)
        if len(values) != rows and (values or name in ("slices", "output_tokens")):
            raise InputError(f"plan.{name}", f"{len(values)} values", f"{rows}, one a request of plan.index")
    for number, slices in zip(plan.index, plan.slices, strict=True):
        pairs = zip(slices[::2], slices[1::2], strict=False)
        if len(slices) % 2 or not all(0 <= start <= stop <= arena_bytes for start, stop in pairs):
            raise InputError(f"plan.slices of request {number}", slices, f"pairs within 0 to {arena_bytes}")
    if not 0 <= job.ring_bytes <= arena_bytes:
        raise InputError("ring_bytes", job.ring_bytes, f"0 to {arena_bytes}, the size of the arena")
    if any(plan.salt) and "}" not in job.tail:
        raise InputError("tail", job.tail, "a text with the body's last brace, which cache_salt stands before")
    for salt in plan.salt:
        if salt and not salt.endswith('"'):
            raise InputError("plan.salt", salt, "a text with the closing quote of the cache_salt at its end")
