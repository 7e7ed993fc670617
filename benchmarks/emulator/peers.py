"""Other people's benchmark tools, unmodified, against the emulator: does each finish, are its figures the true ones?

    python benchmarks/emulator/peers.py --envs FOLDER [--only guidellm,aiperf,vllm] [--install]

Environments, adapters and result files are those of `benchmarks/client/peers.py`. The emulator serves the demo study
on core 0 in real time; its own truth is its /metrics histograms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client"))
import peers

from inferometer import load_study
from inferometer.emulator import serve
from inferometer.records import prometheus

STUDY = "demo"


def page(url: str) -> prometheus.Page:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        return prometheus.parse_page(answer.read().decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the tools' environments")
    parser.add_argument("--only", default="guidellm,aiperf,vllm,inference-perf,inferometer")
    parser.add_argument("--install", action="store_true")
    asked = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="peers-emulator-"))
    model = load_study(STUDY).base.deployment.model.name
    load = peers.Load("C = 8", 8, 80, 32, 0.0, 1.0)
    print("| tool | requests | TTFT mean, ms | the emulator's | TPOT mean, ms | the emulator's |")
    print("|---|---|---|---|---|---|")
    with serve(STUDY, cpus=[0]) as url:
        place = peers.Sitting(asked.envs, peers.make_tokenizer(out / "tokenizer"), out, url, model)
        for tool in asked.only.split(","):
            if asked.install:
                peers.install(asked.envs, tool)
            before = page(url)
            found = peers.run_client(tool, load, place, 300.0, cpu=1)
            truth = prometheus.means(prometheus.deltas(before, page(url)))
            if "summary" not in found:
                print(f"| {tool} | {found['fault']} | | | | |", flush=True)
                continue
            ours = found["summary"]
            figures = [ours.ttft_s.mean, truth["ttft_s"], ours.tpot_s.mean, truth["tpot_s"]]
            print(
                f"| {tool} | {ours.completed} | " + " | ".join(peers.ms(value, 2) for value in figures) + " |",
                flush=True,
            )
    print(f"logs in {out}")


if __name__ == "__main__":
    main()
