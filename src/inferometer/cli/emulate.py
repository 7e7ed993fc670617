"""``inferometer emulate``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from inferometer.cli.options import Overrides, StudyFlags, read_study

if TYPE_CHECKING:
    from inferometer.specs.deployment import Deployment

EXAMPLES = """Examples:
  inferometer emulate a100-qwen3-8b --port 8000
  inferometer emulate study.toml --arm base --time-scale 0.1 --api-key secret
  inferometer emulate --model Qwen/Qwen3-8B --chip h100-sxm-80gb --max-num-seqs 1024
  inferometer emulate study.toml --output-tokens '{lognormal={mean=300,sigma=0.8}}'
  inferometer emulate a100-qwen3-8b --fault latency=50ms --fault cut=0.05
"""
ANSWERS = Group("Answers", sort_key=1)


@Parameter(name="*", group=ANSWERS)
@dataclass(frozen=True)
class Answers:
    """How the emulator answers."""

    time_scale: Annotated[float, Parameter(help="Real seconds a simulated second takes: 0.5 is twice as fast.")] = 1.0
    served_model_name: Annotated[str | None, Parameter(help="Name that clients use, instead of the model's.")] = None
    api_key: Annotated[str | None, Parameter(help="Answer 401 to requests without this bearer key.")] = None
    template_tokens: Annotated[int, Parameter(help="Tokens a chat template adds; 4 where not given.")] = 4
    fault: Annotated[
        tuple[str, ...],
        Parameter(
            help="Inject KIND=VALUE: latency=50ms, error-rate=0.1, error-429=0.1, stall=0.05:2s, cut=0.1, "
            "malformed=0.01, tokens-per-chunk=4, role-chunk-first, no-usage, slow-start=10s. Repeatable."
        ),
    ] = ()
    seed: Annotated[int, Parameter(help="Of faults and of drawn output lengths; 0 where not given.")] = 0


def emulate(
    study: str | None = None,
    /,
    *,
    port: Annotated[int, Parameter(help="0: any that is free; 8000 where not given.")] = 8000,
    host: Annotated[str, Parameter(help="Address to listen on; 127.0.0.1 where not given.")] = "127.0.0.1",
    unix_socket: Annotated[str | None, Parameter(help="Path of a socket to listen on, instead.")] = None,
    arm: Annotated[str | None, Parameter(help="Serve this arm of the study; else its base.")] = None,
    log_file: Annotated[str | None, Parameter(help="Write the start-up log here, instead of standard error.")] = None,
    answers: Answers = Answers(),
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
) -> int:
    """Serve a study's deployment as an OpenAI-compatible server, with simulated timing.

    No model is run. The address is printed on standard output once it listens; Ctrl-C ends it.
    Clients send the load: a study's is not used. Answers are as long as they ask for, or drawn
    from --output-tokens.

    Parameters
    ----------
    study
        Study file, or the name of a packaged study.
    """
    from inferometer.emulator.options import Options
    from inferometer.emulator.server import run

    options = Options(
        deployment=served(study, arm, flags, overrides),
        host=host,
        port=port,
        unix_socket=unix_socket,
        api_key=answers.api_key,
        served_model_name=answers.served_model_name,
        time_scale=answers.time_scale,
        output_tokens=drawn(flags),
        template_tokens=answers.template_tokens,
        faults=answers.fault,
        seed=answers.seed,
        log_file=log_file,
    )
    run(options)
    return 0


def served(study: str | None, arm: str | None, flags: StudyFlags, overrides: tuple[str, ...]) -> Deployment:
    """The deployment to serve; a study without a file needs no load here, so a load that is not used is filled in."""
    if study is None:
        flags = replace(
            flags,
            concurrency=flags.concurrency or (None if flags.request_rate else "1"),
            prompt_tokens=flags.prompt_tokens or "1",
            output_tokens=flags.output_tokens or "1",
        )
    read = read_study(study, flags, overrides)
    return (read.arm(arm) if arm else read.base).deployment


def drawn(flags: StudyFlags) -> Any:
    """``--output-tokens`` as a study file would hold it; None where it is not given."""
    return flags.overrides().get("workload.output_tokens")
