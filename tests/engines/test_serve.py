"""The script that installs and runs real engines: what it promises can be checked without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from engines import serve

SCRIPTS = Path(serve.__file__).parents[1]
# Two processes, the second of which ignores a request to end.
STUBBORN = "trap '' TERM; echo $$; sleep 300 & echo $!; wait"
MODULE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from engines import serve; from pathlib import Path; import time\n"
)


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and is not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def eventually(true: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    end = time.monotonic() + timeout_s
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def started(log: Path, lines: int) -> list[int]:
    assert eventually(lambda: log.exists() and len(log.read_text().split()) >= lines)
    return [int(pid) for pid in log.read_text().split()]


def test_all_processes_end_with_the_block(tmp_path: Path):
    log = tmp_path / "log"
    with serve.watched(["bash", "-c", "echo $$; sleep 300 & echo $!; wait"], log):
        pids = started(log, 2)
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "log"
    program = f"{MODULE}serve.STOP_TIMEOUT_S = 1; serve.watch(['bash', '-c', {STUBBORN!r}], {{}})"
    with log.open("wb") as output:
        watcher = subprocess.Popen(
            [sys.executable, "-c", program, str(SCRIPTS)], stdin=subprocess.PIPE, stdout=output, process_group=0
        )
    pids = started(log, 2)
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait(10)
    assert not any(alive(pid) for pid in pids)


def test_all_processes_end_when_their_owner_is_killed(tmp_path: Path):
    log = tmp_path / "log"
    command = ["bash", "-c", "echo $$; sleep 300 & echo $!; wait"]
    program = f"{MODULE}with serve.watched({command!r}, Path({str(log)!r})): time.sleep(300)"
    owner = subprocess.Popen([sys.executable, "-c", program, str(SCRIPTS)])
    pids = started(log, 2)
    owner.send_signal(signal.SIGKILL)
    owner.wait(10)
    assert eventually(lambda: not any(alive(pid) for pid in pids))


def test_engine_yields_to_the_client_in_one_session(tmp_path: Path):
    log = tmp_path / "log"
    with serve.watched([sys.executable, "-c", "import os; print(os.getsid(0), os.nice(0))"], log) as watcher:
        watcher.wait(10)
    assert log.read_text().split() == [str(os.getsid(0)), str(os.nice(0) + 5)]


def test_server_that_is_killed_while_starting_is_unavailable(tmp_path: Path):
    log = tmp_path / "log"
    with (
        pytest.raises(serve.EngineUnavailable, match="ended while starting"),
        serve.watched(["bash", "-c", "echo no such instruction; kill -ILL $$"], log) as watcher,
    ):
        serve._await_health(watcher, f"http://{serve.HOST}:{serve.free_port()}", log)


def test_server_that_ends_while_starting_has_failed_with_its_last_error(tmp_path: Path):
    log = tmp_path / "log"
    command = ["bash", "-c", "echo ValueError: no such device; echo goodbye; exit 3"]
    with (
        pytest.raises(serve.EngineFailed, match="ended while starting: ValueError: no such device"),
        serve.watched(command, log) as watcher,
    ):
        serve._await_health(watcher, f"http://{serve.HOST}:{serve.free_port()}", log)


def test_failed_installation_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFEROMETER_ENGINES", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    lock = tmp_path / "lock"
    lock.write_text(f"no-such-package==1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(serve.EngineUnavailable, match="installing failed: ERROR: No matching distribution"):
        serve.install("llamacpp", lock)
    assert not list(tmp_path.glob("*/.ready"))


def test_installed_environment_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFEROMETER_ENGINES", str(tmp_path))
    made = []
    monkeypatch.setattr(serve, "_make_environment", lambda _, folder, __: (folder.mkdir(), made.append(folder)))
    monkeypatch.setattr(serve, "check_machine", lambda *_, **__: None)
    assert serve.install("vllm") == serve.install("vllm") == made[0]
    assert len(made) == 1


def test_too_little_memory_or_disk_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("INFEROMETER_ENGINES", str(tmp_path))
    monkeypatch.setitem(serve.NEEDS_BYTES, "vllm", (10**18, 1))
    with pytest.raises(serve.EngineUnavailable, match=r"vllm needs 1e\+09 GB of memory"):
        serve.check_machine("vllm")
    monkeypatch.setitem(serve.NEEDS_BYTES, "vllm", (1, 10**18))
    serve.check_machine("vllm")
    with pytest.raises(serve.EngineUnavailable, match=r"vllm needs 1e\+09 GB of disk"):
        serve.check_machine("vllm", installing=True)


@pytest.mark.parametrize("engine", serve.ENGINES)
def test_every_package_is_pinned_with_a_hash(engine: str):
    text = (SCRIPTS / "engines" / f"{engine}.lock").read_text()
    lines = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#")]
    assert all(len(line.split("==")) == 2 and "--hash=sha256:" in line for line in lines)
    assert not {line.split("==")[0] for line in lines} & {"torchvision", "torchaudio", "torchcodec"}


def test_tiny_model_has_a_tokenizer_in_which_every_token_has_text(tmp_path: Path):
    folder = serve.make_model(tmp_path / "tiny")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"] == serve.VOCABULARY
    texts = {i: tokenizer.decode([i]) for i in range(config["vocab_size"])}
    assert [i for i, text in texts.items() if not text] == [0, 1, 2]
    assert all(text.isascii() for text in texts.values())
    assert tokenizer.encode("bade kilo\n").ids


def test_tiny_model_has_eleven_million_parameters():
    config = serve.model_config(serve.VOCABULARY)
    hidden, head = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    attention = hidden * head * (2 * heads + 2 * kv_heads) + 2 * head
    layer = attention + 3 * hidden * config["intermediate_size"] + 2 * hidden
    parameters = config["vocab_size"] * hidden + config["num_hidden_layers"] * layer + hidden
    assert parameters == 11_279_488


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fma avx2 avx512f avx512_bf16", "bfloat16"),
        ("avx512f amx_bf16 amx_tile", "bfloat16"),
        ("fma avx2 avx512f", "float32"),
    ],
)
def test_bf16_only_where_the_cores_have_it(tmp_path: Path, flags: str, expected: str):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t\t:\n")
    assert serve.dtype(cpuinfo) == expected
