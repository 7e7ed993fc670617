"""``inferometer demo``: the main job on an embedded study."""

from __future__ import annotations

from inferometer.cli import founding_sweep
from inferometer.cli.options import Output, Seed, Storage
from inferometer.cli.output import print_json, progress

EXAMPLES = """Example:
  inferometer demo
"""
TOLERANCE = 0.10
PREDICTED = "1. Predicted from the chip's data sheet and the model's config:"
MEASURED = "2. Beside what was measured (vllm bench serve, 2026-07-31, in a public log):"
CAVEAT = (
    "The benchmark repeated its prompts, so its prefix cache hit: at C=1 wholly, at C=2 to 32 for 50 to 66 % of the "
    "prompts. The prediction has no hits, and so its first tokens come later there. At C=128 there were next to none."
)
"""What explains most of the misses."""


def demo(
    *,
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Predict a public sweep of one A100 and lay it beside what was measured.

    Needs no file and no network, and takes some seconds. Always exits 0: a miss is part of the demonstration.
    """
    from inferometer.prediction.predict import predict
    from inferometer.report import terminal
    from inferometer.scoring.score import score
    from inferometer.specs.study import load_study

    study = load_study(founding_sweep.STUDY, {"arm": []})
    with progress("Simulating", show=not output.quiet) as tick:
        prediction = predict(study, seed=seed, progress=tick)
    card = score(prediction, founding_sweep.runs(), TOLERANCE)
    console = terminal.make_console()
    if output.json:
        document = {"prediction": prediction.to_dict(), "score": card.to_dict()}
        print_json({"schema": "inferometer/demo/1", "source": founding_sweep.SOURCE, **document})
    elif output.quiet:
        print(terminal.verdict(card))
    else:
        terminal.say(console, f"{PREDICTED}\n", style=terminal.FAINT)
        terminal.prediction(prediction, console)
        terminal.say(console, f"{MEASURED}\n", style=terminal.FAINT)
        terminal.score(card, console)
        terminal.say(console, f"\n{CAVEAT}\n")
        terminal.command(console, "The study with its other arms:  ", f"inferometer predict {founding_sweep.STUDY}")
    return 0
