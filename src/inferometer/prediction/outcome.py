"""What became of the load that was offered: which requests were refused."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.errors import InputError
from inferometer.records.run import Run
from inferometer.specs.checks import at
from inferometer.specs.study import BASE, Arm
from inferometer.workload import generate


def refused(run: Run) -> dict[str, int]:
    """How many requests were refused, by the engine's reason."""
    errors = run.requests["error"].drop_nulls()
    return dict(errors.value_counts(sort=True).iter_rows()) if errors.len() else {}


def serves(run: Run) -> bool:
    """Whether any request was not refused."""
    return run.requests["error"].null_count() > 0


def refuse_unserved(arm: Arm, runs: Sequence[Run]) -> None:
    """Complain of an arm of which every request of every point is refused: there is nothing to say of it.

    Raises:
        InputError: naming the mean lengths and the engine's reason.
    """
    if not runs or any(serves(run) for run in runs):
        return
    requests = generate(arm.points[0].workload, arm.seed)
    prompt, output = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
    reasons = "; ".join(dict.fromkeys(reason for run in runs for reason in refused(run)))
    with at("" if arm.name == BASE else f"arm {arm.name!r}"):
        raise InputError.because(
            f"every request is refused: prompt_tokens {prompt:.0f} + output_tokens {output:.0f} are {reasons}"
        )
