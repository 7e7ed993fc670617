"""Results of InferenceX (InferenceMAX): vLLM-like keys without ``_ms``, in seconds, and no requests.

Two shapes are read. The client's own result has ``duration``, totals and throughputs. The aggregated one
(``agg_*.json``) has ``hw``, ``conc``, ``tp``, ``ep``, ``isl``, ``osl`` and throughput per GPU only, which is put back
over the GPUs (tp x pp x pcp) where one node served; of prefill and decode pools it is kept as it is. ``intvty``
(1 / TPOT) says no more than ``tpot``.

A time longer than the whole run is not in seconds, and is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from inferometer.errors import FormatError
from inferometer.records.importers import vllm_bench
from inferometer.records.importers.files import (
    head,
    in_file,
    is_json_with,
    is_number,
    only_numbers,
    read_documents,
    refuse,
    source_fields,
    text,
)
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "an InferenceX result: median_ttft, p99_e2el, ... in seconds, with max_concurrency or conc"

STAT_KEY = re.compile(r"(mean|median|std|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el)")
SNIFF = re.compile(rb'"(?:mean|median|p\d+)_(?:ttft|tpot|e2el)"\s*:')
STATS = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
STATED = {key: path for key, path in vllm_bench.STATED.items() if not key.startswith("max_")}
PARALLEL = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "ep": "expert_parallel_size",
    "dp": "data_parallel_size",
    "dp_attention": "dp_attention",
    "framework": "engine",
    "precision": "precision",
    "image": "image",
    "spec_decoding": "spec_decoding",
}
"""What the aggregated shape says of the deployment, and the names it is kept under."""

PER_GPU = {"tput_per_gpu": "total_tok_per_s", "output_tput_per_gpu": "output_tok_per_s"}


def sniff(path: Path) -> bool:
    """Whether an object names a latency without its unit, as this format does."""
    return is_json_with(path) and SNIFF.search(head(path)) is not None


def read(path: Path) -> list[Run]:
    """One run an object. Raises `FormatError` for a truncated file, no latencies, or times that are not in seconds."""
    documents = read_documents(path, EXPECTED)
    rows = [row for document in documents for row in (document if isinstance(document, list) else [document])]
    several = len(rows) > 1
    return [_run(path, raw, f"{path.stem}-{i}" if several else path.stem) for i, raw in enumerate(rows, 1)]


def _run(path: Path, raw: Any, name: str) -> Run:
    if not isinstance(raw, dict) or not any(STAT_KEY.fullmatch(key) for key in raw):
        refuse(path, "no latencies", EXPECTED)
    return in_file(path, lambda: make_run(_meta(path, raw, name)))


def _meta(path: Path, raw: dict[str, Any], name: str) -> RunMeta:
    concurrency = raw.get("max_concurrency", raw.get("conc"))
    if concurrency is not None and not (is_number(concurrency) and concurrency == int(concurrency) >= 1):
        raise FormatError("concurrency", concurrency, "a whole number of at least 1")
    stated, notes = _stated(raw), []
    if "total_tok_per_s" not in stated and (gpus := _gpus(raw)):
        stated |= {p: raw[key] * gpus for key, p in PER_GPU.items() if is_number(raw.get(key)) and p not in stated}
        notes.append(f"throughput is stated per GPU, here times {gpus:g} GPUs")
    _check_seconds(stated)
    return RunMeta(
        kind="imported",
        name=name,
        tool="InferenceX",
        created=vllm_bench.iso(str(raw.get("date") or "")),
        model=text(raw.get("model_id"), raw.get("model")),
        chip=text(raw.get("hw")),
        deployment={ours: raw[key] for key, ours in PARALLEL.items() if raw.get(key) is not None},
        concurrency=None if concurrency is None else int(concurrency),
        request_rate_per_s=vllm_bench.rate(raw.get("request_rate")),
        duration_s=stated.get("duration_s"),
        workload=_workload(raw),
        stated=stated,
        notes=notes,
        **source_fields(path),
    )


def _stated(raw: dict[str, Any]) -> dict[str, float]:
    stated = only_numbers({path: raw.get(key) for key, path in STATED.items()})
    for key, value in raw.items():
        match = STAT_KEY.fullmatch(key)
        if match and is_number(value):
            stated[f"{STATS[match[2]]}.{'p50' if match[1] == 'median' else match[1]}"] = float(value)
    return stated


def _gpus(raw: dict[str, Any]) -> float | None:
    """The GPUs that a per-GPU figure was divided by; None where several pools served or it is not said."""
    pooled = any(raw.get(key) in (True, "true") for key in ("is_multinode", "disagg"))
    sizes = [raw.get("tp"), raw.get("pp", 1), raw.get("pcp_size", 1)]
    numbers = [size for size in sizes if size is not None and is_number(size)]
    if pooled or len(numbers) < len(sizes):
        return None
    return float(numbers[0] * numbers[1] * numbers[2])


def _check_seconds(stated: dict[str, float]) -> None:
    duration = stated.get("duration_s")
    for path, value in stated.items():
        if duration and path.startswith(("ttft_s.", "e2e_s.")) and value > duration:
            raise FormatError(path, value, f"seconds: it is longer than the run's duration of {duration:g} s")


def _workload(raw: dict[str, Any]) -> dict[str, Any]:
    elsewhere = {"date", "model_id", "model", "hw", "conc", "max_concurrency", "request_rate", *STATED, *PARALLEL}
    others = {key: value for key, value in raw.items() if key not in elsewhere and not STAT_KEY.fullmatch(key)}
    return {key: v for key, v in others.items() if isinstance(v, str | bool) or is_number(v)}
