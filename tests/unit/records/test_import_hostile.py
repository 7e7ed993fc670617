"""Files with one value replaced by what it should not be: read, or refused by name, never a crash."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from inferometer.errors import FormatError
from inferometer.records.importers import load
from inferometer.records.run import RunMeta
from shared import shared

FOLDER = "data/bench_outputs/"
JUNK: tuple[Any, ...] = (None, "x", "", -1, 0, 1.5, 1e12, float("nan"), True, [], {}, [None], {"unit": 3}, [[]])


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside; of a long list only the first entries."""
    found = [at] if at else []
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in entries:
        found += places(item, (*at, key))
    return found


def replaced(value: Any, place: tuple[Any, ...], junk: Any) -> Any:
    changed = copy.deepcopy(value)
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = junk
    return changed


def refused(path: Path) -> str | None:
    """Why the file is refused; None where it is read, and every run of it has figures and a sound meta."""
    try:
        for run in load(path):
            run.summary().to_dict()
            msgspec.convert(msgspec.to_builtins(run.meta), RunMeta)
    except FormatError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "file",
    [
        "aiperf/profile_export_aiperf.json",
        "aiperf/profile_export.jsonl",
        "guidellm/guidellm-0.8.1_concurrent1.json",
        "inference-perf/stage_0_lifecycle_metrics.json",
        "inference-perf/per_request_lifecycle_metrics.json",
        "inferencex/minimax_m25_vllm_tep8_isl10240_osl128_conc8.json",
        "llmd-benchmark-report/from_guidellm.br0.2_0.yaml",
        "llmd-benchmark-report/from_vllm.br0.2.yaml",
        "sglang/sglang-0.5.23_rust_details.jsonl",
        "vllm_bench/vllm-0.33.0_detailed.json",
    ],
)
def test_one_value_replaced(file: str, tmp_path: Path) -> None:
    source = shared(FOLDER + file)
    text = source.read_text()
    value = (
        yaml.safe_load(text)
        if source.suffix == ".yaml"
        else json.loads(text.splitlines()[0] if "jsonl" in file else text)
    )
    everywhere, chance = places(value), random.Random(7)
    path = tmp_path / source.name
    for place in chance.sample(everywhere, min(80, len(everywhere))):
        junk = chance.choice(JUNK)
        changed = replaced(value, place, junk)
        path.write_text(yaml.safe_dump(changed) if source.suffix == ".yaml" else json.dumps(changed))
        refusal = refused(path)
        assert refusal is None or source.name in refusal, (place, junk)


BAD_NUMBERS = ("1.0.5", ".", "", "-1", "9" * 30, "9" * 400, "nan", "1e999", "x")


@pytest.mark.parametrize(
    "file", ["main_clean.server.log", "llama_server.log", "sglang.log", "prefix/prefix_on_c4.metrics.prom"]
)
def test_one_number_of_a_log_or_page_replaced(file: str, tmp_path: Path) -> None:
    text = COMPOSED[file] if file in COMPOSED else shared("data/cpu_engine/" + file).read_text()[:60_000]
    numbers, chance = list(re.finditer(r"\d+(?:\.\d+)?", text)), random.Random(7)
    path = tmp_path / file.rpartition("/")[2]
    for number in chance.sample(numbers, min(100, len(numbers))):
        junk = chance.choice(BAD_NUMBERS)
        path.write_text(text[: number.start()] + junk + text[number.end() :])
        refusal = refused(path)
        assert refusal is None or path.name in refusal, (number, junk)


COMPOSED = {
    "llama_server.log": "llama_model_loader: loaded\nload_tensors: CPU model buffer size = 12.50 MiB\n"
    "llama_kv_cache: size = 6.00 MiB (   512 cells,   4 layers,  4/1 seqs), K (f16): 3.00 MiB, V (f16): 3.00 MiB\n"
    "llama_context: n_ctx_seq = 512\nKV self size  = 1.25 MiB\n",
    "sglang.log": "[2025-11-10 19:58:31] KV Cache is allocated. #tokens: 834615, K size: 54.12 GB, V size: 54.12 GB\n"
    "[2025-11-10 20:00:00] Prefill batch. #new-seq: 9, #new-token: 8192, #cached-token: 27, token usage: 0.03, "
    "#running-req: 8, #queue-req: 106,\n[2025-11-10 20:00:01] Decode batch. #running-req: 17, #token: 137, "
    "token usage: 0.05, gen throughput (token/s): 84.20, #queue-req: 97,\n",
}
"""Lines in the form of engines of which no whole log is at hand."""
