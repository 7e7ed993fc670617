"""Real engines for the tests: installed and started once a session, by scripts/engines/serve.py."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from engines.serve import EngineUnavailable, Server, running


def engine(name: str, folders: pytest.TempPathFactory) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running(name, folders.mktemp(name) / "server.log"))
        except EngineUnavailable as reason:
            pytest.skip(f"{name}: {reason}")
        yield server


@pytest.fixture(scope="session")
def vllm_cpu_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """vLLM on the CPU, serving 11 million dummy parameters."""
    yield from engine("vllm", tmp_path_factory)


@pytest.fixture(scope="session")
def llamacpp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """llama.cpp's server with four slots, serving a real model of 270 million parameters."""
    yield from engine("llamacpp", tmp_path_factory)
