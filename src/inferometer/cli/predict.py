"""``inferometer predict``."""

from __future__ import annotations

from inferometer.cli.options import Output, Overrides, Seed, Storage, StudyFlags, read_study, study_words
from inferometer.cli.output import print_json, progress

EXAMPLES = """Examples:
  inferometer predict studies/a100-qwen3-8b.toml
  inferometer predict study.toml --set deployment.max_num_batched_tokens=8192 --json
  inferometer predict --model Qwen/Qwen3-8B --chip a100-sxm4-80gb --concurrency 1,8 --prompt-tokens 1024
"""


def predict(
    study: str | None = None,
    /,
    *,
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Predict a study: its memory, its roofline, and each of its points, simulated.

    Exit status 1 if an arm does not fit: by how much, and what would make it fit, is the answer then.

    Parameters
    ----------
    study
        Study file, or the name of a packaged study.
    """
    read = read_study(study, flags, overrides)
    from inferometer.prediction.predict import predict as predict_study
    from inferometer.report import terminal

    with progress("Simulating", show=not output.quiet) as tick:
        prediction = predict_study(read, seed=seed, progress=tick)
    if output.json:
        print_json(prediction.to_dict())
    elif output.quiet:
        for arm in prediction.arms:
            print((f"{arm.name}: " if len(prediction.arms) > 1 else "") + terminal.answer(arm)[0])
    else:
        words = study_words(study, flags, overrides)
        terminal.prediction(prediction, terminal.make_console(), words)
    return 0 if prediction.fits else 1
