"""``inferometer predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from inferometer.cli.options import Output, Overrides, Seed, Storage, StudyFlags, read_study, study_words
from inferometer.cli.output import print_json, progress, writing

if TYPE_CHECKING:
    from inferometer.prediction.predict import Prediction

EXAMPLES = """Examples:
  inferometer predict studies/a100-qwen3-8b.toml
  inferometer predict study.toml --set deployment.max_num_batched_tokens=8192 --json
  inferometer predict --model Qwen/Qwen3-8B --chip a100-sxm4-80gb --concurrency 1,8 --prompt-tokens 1024
  inferometer predict study.toml --seal --claim output_tok_per_s@64=5060 --claim ttft_knee_concurrency=4
"""

LOAD = ("concurrency", "request_rate", "prompt_tokens", "output_tokens")
"""The flags of a study that ``bench`` takes too."""


def predict(
    study: str | None = None,
    /,
    *,
    seal: Annotated[
        bool, Parameter(negative=(), help="Write it down in ink: a file whose hash finds any later change.")
    ] = False,
    claim: Annotated[
        tuple[str, ...],
        Parameter(help="A figure of your own, scored beside the model's: PATH[@CONCURRENCY]=VALUE. Repeatable."),
    ] = (),
    profile: Annotated[
        str | None, Parameter(help="Calibration (TOML) whose constants stand for the chip family's.")
    ] = None,
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Predict a study: its memory, its roofline, and each of its points, simulated.

    With --seal the prediction is kept in the store's predictions folder, hashed and dated,
    before anything is measured. --claim adds figures of your own: PATH is a path in the JSON,
    at a point (output_tok_per_s@64, ttft_ms.p99@2/s) or of the sweep (memory.num_gpu_blocks);
    VALUE a number or none. A study can hold them too, in [claims].

    Exit status 1 if an arm does not fit: by how much, and what would make it fit, is the
    answer then.

    Parameters
    ----------
    study
        Study file, or the name of a packaged study.
    """
    read = read_study(study, flags, overrides)
    from inferometer.prediction.predict import predict as predict_study
    from inferometer.report import terminal

    with progress("Simulating", show=not output.quiet) as tick:
        prediction = predict_study(read, seed=seed, progress=tick, profile=profile, claims=claim)
    path = _sealed(prediction, storage) if seal else None
    if output.json:
        print_json(prediction.to_dict() if path is None else _document(path))
    elif output.quiet:
        for arm in prediction.arms:
            print((f"{arm.name}: " if len(prediction.arms) > 1 else "") + terminal.answer(arm)[0])
        if path is not None:
            print(_seal_line(path))
    else:
        words = study_words(study, flags, overrides)
        sealed_to_run = seal and prediction.base.fits
        terminal.prediction(prediction, terminal.make_console(), "" if sealed_to_run else words)
        _ink(prediction, path, _bench_words(study, flags))
    return 0 if prediction.fits else 1


def _sealed(prediction: Prediction, storage: Storage) -> Path:
    from inferometer.store import Store

    store = Store(storage.store)
    with writing(store):
        return prediction.seal(store)


def _document(path: Path) -> dict[str, Any]:
    """The sealed file's, with a path that can be opened from here."""
    from inferometer.prediction.verification import read_file

    document = read_file(path).document
    return {**document, "sealed": {**document["sealed"], "path": str(path)}}


def _seal_line(path: Path) -> str:
    sealed = _document(path)["sealed"]
    return f"Sealed: {path}  sha256 {sealed['sha256']}  at {sealed['time']}"


def _bench_words(study: str | None, flags: StudyFlags) -> str:
    """The same load, as ``bench`` takes it."""
    load = {name: value for name, value in flags.given() if name in LOAD}
    return study_words(study, StudyFlags(**load), ())


def _ink(prediction: Prediction, path: Path | None, words: str) -> None:
    """The calibration, the claims, and the seal with the commands that come next."""
    from inferometer.prediction.claims import claim_lines
    from inferometer.report import terminal

    console = terminal.make_console()
    if prediction.profile is not None:
        terminal.say(console, f"Constants from calibration {prediction.profile.name!r}.", style=terminal.FAINT)
    if prediction.claims:
        terminal.say(console)
        for line in claim_lines(prediction.claims, prediction.to_dict()):
            terminal.say(console, line)
    if path is not None:
        terminal.say(console)
        terminal.command(console, "", _seal_line(path))
    if path is not None and prediction.base.fits:
        terminal.command(console, "Measure it:       ", f"inferometer bench URL {words}")
        terminal.command(console, "Then score it:    ", f"inferometer score {path} RUN...")
