"""What an explanation of a gap consists of: the steps of its waterfall, the settings tried, and the sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from inferometer.scoring.sides import load_name

SCHEMA = "inferometer/explanation/1"

IDEAL = "ideal: weights read once"
KV_PROMPT = "KV reads of the prompt"
KV_OUTPUT = "KV reads of the output"
DECODE = "embedding, decode compute"
LOAD = "slots filled and drained"
PREFILL = "prefill compute"
MIXED = "mixed steps, token budget"
HITS = "prefix hits"
RATES = "bandwidth and FLOP/s reached"
STEP = "per-step overhead"
SEQUENCE = "per-sequence overhead"
QUEUEING = "queueing and arrivals"
CLIENT = "client"
UNEXPLAINED = "unexplained"
EFFECTS = (
    *(IDEAL, KV_PROMPT, KV_OUTPUT, DECODE),
    *(LOAD, PREFILL, MIXED, HITS, RATES, STEP, SEQUENCE, QUEUEING, CLIENT, UNEXPLAINED),
)
"""Every step of a waterfall, in order. The first four are closed forms, the rest but the last are simulated."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One effect switched on, all before it still on."""

    effect: str
    """One of `EFFECTS`."""
    tok_per_s: float
    """Output throughput after it; of the last step what was measured."""
    change: float
    """Against the step before; 0 of the first."""
    seconds: float | None
    """Users over throughput: what a token of one user takes, prompts and waiting included. Changes of it add up too."""
    tpot_s: float | None = None
    """Median TPOT after it; of a closed form, the step."""
    note: str = ""


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that the server may have had, judged by the tails that it would have given."""

    name: str
    """``max_num_batched_tokens=2048``."""
    setting: str
    """``max_num_batched_tokens``, ``async_scheduling`` or ``prefix_hit_rate``: settings are judged among their own."""
    value: float
    stated: bool
    """Whether it is what the runs' servers state, else the deployment."""
    error: float
    """Root mean square of ln(simulated / measured) over `figures`."""
    figures: dict[str, tuple[float, float]]
    """Simulated and measured seconds by ``POINT METRIC``, such as ``C=64 ttft_s.p50``."""
    supported: bool
    """Whether it fits the tails, and no other of its setting much better."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Where the throughput of one measured point went, from the ideal to what was measured.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> work = im.Workload.closed_loop(concurrency=2, requests=4, prompt_tokens=64, output_tokens=8)
    >>> [effect for effect, tok_per_s in im.explain(dep, im.simulate(dep, work))][-1]
    'unexplained'
    """

    run: str
    """The run's name, else its id."""
    arm: str | None = None
    concurrency: int | None
    request_rate: float | None = None
    users: int
    """The batch of the closed forms: the users of a closed loop, else the mean in flight."""
    prompt_tokens: float
    output_tokens: float
    """Means over the requests."""
    prefix_hit_rate: float | None = None
    """Share of the prompts' tokens that were not computed; None: not known, and taken for 0."""
    roofline_tok_per_s: float
    """The decode roofline at the prompt's context, at most the compute roof: what one would write down beforehand."""
    steps: tuple[Step, ...]
    measured_tpot_s: float | None = None
    """The median."""
    hypotheses: tuple[Hypothesis, ...] = ()
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is not known or was left out."""

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """Each effect with the throughput after it."""
        return ((step.effect, step.tok_per_s) for step in self.steps)

    def step(self, effect: str) -> Step:
        """The step of that effect."""
        return next(step for step in self.steps if step.effect == effect)

    def change_s(self, *effects: str) -> float:
        """Seconds a user's token that these effects add together; of the ideal itself all of its seconds."""
        after = [step.seconds or 0.0 for step in self.steps]
        deltas = {step.effect: s - b for step, s, b in zip(self.steps, after, [0.0, *after], strict=False)}
        return sum(deltas[effect] for effect in effects)

    @property
    def load(self) -> str:
        """``C=64``, ``2/s`` or ``replay``."""
        return load_name(self.concurrency, self.request_rate)

    @property
    def measured_tok_per_s(self) -> float:
        """What was measured."""
        return self.steps[-1].tok_per_s

    @property
    def unexplained_pct(self) -> float:
        """What is left, in per cent of the measured throughput; negative: measured is below the last counterfactual."""
        return 100 * self.steps[-1].change / self.measured_tok_per_s

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``explain``."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        names = ("load", "measured_tok_per_s", "unexplained_pct")
        return {**values, **{name: getattr(self, name) for name in names}}


class SweepExplanation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Every point of a sweep explained, and what its tails say of the server's settings."""

    explanations: tuple[Explanation, ...]
    hypotheses: tuple[Hypothesis, ...] = ()
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Runs that could not be explained and points set aside, each with the reason."""

    def __iter__(self) -> Iterator[Explanation]:
        """The points."""
        return iter(self.explanations)

    def at(self, concurrency: int | None = None) -> Explanation:
        """The point of that concurrency; None: of the most users.

        Raises:
            InputError: there is none.
        """
        from inferometer.errors import InputError

        if concurrency is None:
            return max(self.explanations, key=lambda e: e.users)
        for found in self.explanations:
            if found.concurrency == concurrency:
                return found
        known = ", ".join(str(e.concurrency) for e in self.explanations if e.concurrency is not None)
        raise InputError("concurrency", concurrency, f"one of the points measured: {known or 'none has a concurrency'}")

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``explain``, one arm."""
        return {
            "points": [each.to_dict() for each in self.explanations],
            "hypotheses": msgspec.to_builtins(self.hypotheses),
            "findings": list(self.findings),
            "notes": list(self.notes),
        }
