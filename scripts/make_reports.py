"""Writes the reports of the documentation, `docs/reports/NAME`, by the program's own commands.

    python scripts/make_reports.py [--into FOLDER] [NAME ...]

``a100-qwen3-8b``: the founding sweep, a public table. ``cpu-vllm-q3s``: a real vLLM on one CPU core, from the files of
`INFEROMETER_SHARED` (default ``../shared``). The same files and program give the same text and pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
from pathlib import Path

from inferometer.cli.main import main as inferometer

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("a100-qwen3-8b", "cpu-vllm-q3s")
SHARED = Path(os.environ.get("INFEROMETER_SHARED") or ROOT.parent / "shared")
SWEEPS = ("main_clean", "main_rerun")
"""Folders of results of the CPU engine, each with a server's log of its name."""


def write(name: str, into: Path, formats: str = "md,svg") -> Path:
    """The folder of the report of that name, written below ``into``."""
    folder = into / name
    with tempfile.TemporaryDirectory() as store:
        words = ["--store", store, "--format", formats, "--quiet", "-o", str(folder)]
        if name == "a100-qwen3-8b":
            table = ROOT / "studies" / f"{name}-sweep.csv"
            run("report", str(ROOT / "studies" / f"{name}.toml"), str(table), "--concurrency", "64", *words)
        else:
            run("report", str(ROOT / "studies" / f"{name}.toml"), *_imported(store), *words)
    return folder


def _imported(store: str) -> list[str]:
    """Ids of the CPU engine's runs, joined with what the server said."""
    data, ids = SHARED / "data/cpu_engine", []
    for sweep in SWEEPS:
        joined = ["--metrics", "auto", "--server-log", str(data / f"{sweep}.server.log")]
        ids += run("import", str(data / sweep / "*.json"), *joined, "--store", store, "--quiet").split()
    return ids


def run(*words: str) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = inferometer(words)
    if status:
        raise SystemExit(f"inferometer {' '.join(words)}: exit status {status}")
    return out.getvalue()


def main() -> None:
    """Write those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/reports")
    given = parser.parse_args()
    for name in given.names or NAMES:
        print(write(name, given.into))


if __name__ == "__main__":
    main()
