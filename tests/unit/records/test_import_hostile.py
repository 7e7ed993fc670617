"""Files with one value replaced by what it should not be: read, or refused by name, never a crash."""

from __future__ import annotations

import copy
import json
import random
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
