"""``inferometer demo``: the whole loop, predict, seal, emulate, measure, score, and then a score of a real chip."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from inferometer.cli import founding_sweep
from inferometer.cli.options import Output, Seed, Storage
from inferometer.cli.output import print_json, progress, run_dict

if TYPE_CHECKING:
    from rich.console import Console

    from inferometer.prediction.predict import Prediction
    from inferometer.prediction.seal import Sealed
    from inferometer.records.run import Run
    from inferometer.scoring.score import Score
    from inferometer.specs.study import Study

EXAMPLES = """Example:
  inferometer demo
"""
STUDY = "demo"
TOLERANCE = 0.10
INTERRUPTED = 130
SCRAPE_S = 0.25
"""Points are some seconds long, so the server is looked at more often than usual."""
PREDICTED = "1. Predicted, from the chip's data sheet and the model's config:"
MEASURED = "2. Served by an emulator on this machine, and measured there request by request:"
SCORED = "3. The prediction beside the measurement:"
HONEST = (
    "The emulator's timing is the simulator's own. So agreement here says that the client, the server and all between "
    "them do what they should, not that the model of the chip is right. What is off is this machine's own delay, and "
    "that its users send one after the other, where the simulator's send at one instant. "
    "Whether the model is right, only a real chip can say:"
)
REAL = "4. Beside a real A100 (Qwen3-8B, vllm bench serve, 2026-07-31, in a public log):"
CAVEAT = (
    "That benchmark repeated its prompts, so its prefix cache hit: at C=1 wholly, at C=2 to 32 for 50 to 66 % of the "
    "prompts. The prediction has no hits, and so its first tokens come later there."
)
"""What explains most of the misses."""


def demo(
    *,
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Predict a small study, seal that, serve it by an emulator, measure, score; then score a real A100.

    Needs no file, no network and no GPU, takes about a minute and keeps nothing. A miss is part
    of the demonstration: the exit status is 0 all the same.
    """
    from inferometer.report import terminal
    from inferometer.specs.study import load_study

    console, shown = terminal.make_console(), not (output.json or output.quiet)
    study = load_study(STUDY)
    prediction = _predicted(study, seed, output)
    sealed = _sealed(prediction)
    if shown:
        _show_prediction(prediction, sealed, console)
    runs = _measured(study, seed, output)
    if not runs or runs[-1].meta.partial == "interrupted":
        return INTERRUPTED
    card = _score(sealed, runs)
    if shown:
        _show_measurement(prediction, runs, card, console)
    founding = _predicted(load_study(founding_sweep.STUDY, {"arm": []}), seed, output)
    real = _score(founding, founding_sweep.runs())
    if output.json:
        print_json(_document(prediction, runs, card, founding, real))
    elif output.quiet:
        print(f"Emulated: {terminal.verdict(card)} Real: {terminal.verdict(real)}")
    else:
        _show_real(real, console)
    return 0


def _predicted(study: Study, seed: int | None, output: Output) -> Prediction:
    from inferometer.prediction.predict import predict

    with progress("Simulating", show=not output.quiet) as tick:
        return predict(study, seed=seed, progress=tick)


def _sealed(prediction: Prediction) -> Sealed:
    """The prediction as its seal has it; the seal's own file is not kept."""
    from inferometer.prediction.seal import read_sealed

    with tempfile.TemporaryDirectory(prefix="inferometer-") as store:
        return read_sealed(prediction.seal(store))


def _measured(study: Study, seed: int | None, output: Output) -> list[Run]:
    """The study's points, measured at an emulator that lives as long as that takes."""
    from inferometer.benchmark.sweep import bench_sweep
    from inferometer.emulator import serve
    from inferometer.report.live import View
    from inferometer.report.terminal import make_console

    workloads = [point.workload for point in study.base.points]
    options: dict[str, Any] = {"seed": seed, "scrape_interval_s": SCRAPE_S, "store": False}
    options["chip"] = study.base.deployment.chip.id
    with View(make_console(stderr=True), show=not output.quiet) as view, serve(study) as url:
        return bench_sweep(
            url, workloads, stop_when_overloaded=False, watch=view.watch, on_run=view.finished, **options
        )


def _score(prediction: Prediction | Sealed, runs: list[Run]) -> Score:
    from inferometer.scoring.score import score

    return score(prediction, runs, TOLERANCE)


def _show_prediction(prediction: Prediction, sealed: Sealed, console: Console) -> None:
    from inferometer.report import terminal

    base = prediction.base
    terminal.say(console, f"{PREDICTED}\n", style=terminal.FAINT)
    terminal.heading(base.arm.deployment, base.arm.points[0].workload, console, base.memory)
    terminal.say(console)
    for line in terminal.answer(base):
        terminal.say(console, line)
    terminal.say(console)
    terminal.sweep(base, console)
    if sealed.verification is not None:
        short = (sealed.verification.sha256 or "")[:8]
        terminal.say(console, f"\nSealed {short}, before the measurement: its hash covers every figure and the time.")
    terminal.say(console)


def _show_measurement(prediction: Prediction, runs: list[Run], card: Score, console: Console) -> None:
    from inferometer import __version__
    from inferometer.report import measured, plot, terminal

    terminal.say(console, f"{MEASURED}\n", style=terminal.FAINT)
    terminal.show(measured.points_grid(runs, prediction.base.arm.slo), console)
    for line in measured.warnings(runs):
        terminal.say(console, line, style=terminal.BAD)
    terminal.say(console, f"\n{SCORED}\n", style=terminal.FAINT)
    terminal.score(card, console, brief=True)
    terminal.say(console)
    caption = f"{prediction.base.arm.deployment.name}, predicted and measured by Inferometer {__version__}"
    plot.curves(prediction.points, runs, console, caption)
    terminal.say(console, f"\n{HONEST}\n")


def _show_real(card: Score, console: Console) -> None:
    from inferometer.report import score_view, terminal

    terminal.say(console, f"{REAL}\n", style=terminal.FAINT)
    score_view.score(card, console, brief=True, seal=False)
    terminal.say(console, f"\n{CAVEAT}\n")
    terminal.command(console, "That study with its other arms:  ", f"inferometer predict {founding_sweep.STUDY}")
    terminal.command(console, "A server to try things on:       ", f"inferometer emulate {STUDY}")
    terminal.command(console, "Measure it, or your own:         ", f"inferometer bench http://127.0.0.1:8000 {STUDY}")


def _document(
    prediction: Prediction, runs: list[Run], card: Score, founding: Prediction, real: Score
) -> dict[str, Any]:
    """As JSON: the loop, and the real chip's prediction and score."""
    loop = {
        "prediction": prediction.to_dict(),
        "runs": [run_dict(run) for run in runs],
        "score": card.to_dict(),
    }
    return {
        "schema": "inferometer/demo/1",
        "loop": loop,
        "source": founding_sweep.SOURCE,
        "prediction": founding.to_dict(),
        "score": real.to_dict(),
    }
