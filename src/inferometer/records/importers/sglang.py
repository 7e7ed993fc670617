"""Results of SGLang's ``bench_serving`` (``--output-file``), Python or Rust client, one JSON object a line.

Aggregates are in milliseconds (``*_ms``). With ``--output-details`` six arrays in seconds hold each request's lengths,
TTFT and gaps, but neither when a request was sent nor when it ended: each is on its own clock (`OWN_CLOCK`), ends with
its last token, and nothing is known across requests, so Little's law cannot be checked. ``concurrency`` is the client's
mean in flight, ``max_concurrency`` the configured cap.

Without ``usage`` in the reply this tool takes the length asked for as the length of the reply (sglang#24254). Where its
own count of the retokenised text agrees with the token events, and both are below, the events are counted instead; the
totals that the file states are kept in ``meta.stated``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from inferometer.records.importers import vllm_bench
from inferometer.records.importers.files import (
    in_file,
    is_json_with,
    is_number,
    only_numbers,
    read_documents,
    refuse,
    shaped,
    source_fields,
    stated_stat,
)
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "the result of SGLang's bench_serving (JSON, one object a line)"

MARKS = (b'"total_output_tokens_retokenized"', b'"mean_e2e_latency_ms"')

STATS = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2e_latency": "e2e_s"}
"""The format's metrics, in milliseconds, and ours."""

PARTS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}

STATED = {
    "completed": "completed",
    "total_input_tokens": "prompt_tokens",
    "total_output_tokens": "output_tokens",
    "total_output_tokens_retokenized": "total_output_tokens_retokenized",
    "duration": "duration_s",
    "request_throughput": "request_per_s",
    "output_throughput": "output_tok_per_s",
    "total_throughput": "total_tok_per_s",
    "concurrency": "mean_in_flight",
    "max_output_tokens_per_s": "max_output_tokens_per_s",
    "max_concurrent_requests": "max_concurrent_requests",
}
"""The format's totals and their paths in ``meta.stated``; its peaks are by buckets of a second, and are only kept."""

DETAIL = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")


class Result(msgspec.Struct, kw_only=True):
    """The keys that are read, but for the aggregates."""

    duration: float
    completed: int
    max_concurrency: int | None = None
    request_rate: float | str | None = None
    model_id: str | None = None
    model: str | None = None
    random_output_len: int | None = None
    total_output_tokens_retokenized: int | None = None
    input_lens: list[int | None] | None = None
    output_lens: list[int | None] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    errors: list[str | None] | None = None


def sniff(path: Path) -> bool:
    """Whether the file names the keys that only this format has."""
    return is_json_with(path, *MARKS)


def read(path: Path) -> list[Run]:
    """One run a line. Raises `FormatError` for a truncated file, a missing key, or arrays that do not match."""
    documents = read_documents(path, EXPECTED)
    several = len(documents) > 1
    return [_run(path, raw, f"{path.stem}-{i}" if several else path.stem) for i, raw in enumerate(documents, 1)]


def _run(path: Path, raw: Any, name: str) -> Run:
    result = shaped(path, raw, Result, EXPECTED)
    meta = in_file(path, lambda: _meta(path, raw, result, name))
    if not result.ttfts:
        return make_run(meta)
    if result.output_lens is None or result.input_lens is None:
        refuse(path, "ttfts without input_lens and output_lens", EXPECTED)
    _put_lengths_right(result, meta)
    meta.notes.append("no send and end times: each request is on its own clock and ends with its last token")
    return in_file(path, lambda: vllm_bench.detailed(path, _as_vllm(result), meta, EXPECTED))


def _meta(path: Path, raw: dict[str, Any], result: Result, name: str) -> RunMeta:
    stated = only_numbers({ours: raw.get(key) for key, ours in STATED.items()})
    for key, ours in STATS.items():
        keys = {part: f"{prefix}_{key}_ms" for prefix, part in PARTS.items()}
        stated |= stated_stat(ours, raw, 1e-3, keys)
    return RunMeta(
        kind="imported",
        name=name,
        tool="sglang bench_serving",
        model=result.model_id or result.model,
        concurrency=result.max_concurrency,
        request_rate_per_s=vllm_bench.rate(result.request_rate),
        duration_s=result.duration,
        workload=_workload(raw),
        stated=stated,
        **source_fields(path),
    )


def _workload(raw: dict[str, Any]) -> dict[str, Any]:
    """Every other scalar: the backend, the data set and its lengths, whatever the user tagged."""
    read_elsewhere = {*STATED, *DETAIL, "max_concurrency", "request_rate", "model_id", "model"}
    scalars = {key: value for key, value in raw.items() if key not in read_elsewhere and not key.endswith("_ms")}
    return {key: v for key, v in scalars.items() if isinstance(v, str | bool) or is_number(v)}


def _as_vllm(result: Result) -> vllm_bench.Result:
    """The detail arrays are those of vLLM's client, from which this one descends."""
    return vllm_bench.Result(
        duration=result.duration,
        completed=result.completed,
        total_input_tokens=None,
        total_output_tokens=None,
        request_throughput=None,
        output_throughput=None,
        total_token_throughput=None,
        num_prompts=None,
        input_lens=result.input_lens,
        output_lens=result.output_lens,
        ttfts=result.ttfts,
        itls=result.itls,
        errors=result.errors,
    )


def _put_lengths_right(result: Result, meta: RunMeta) -> None:
    """Count events where the listed lengths are those asked for; otherwise only say that events are fewer."""
    assert result.output_lens is not None
    if result.itls is None or len(result.itls) != len(result.output_lens):
        return
    gaps = result.itls
    if any(a == b for each in gaps for a, b in pairwise(each)):
        meta.notes.append("equal gaps in a row: the client divided a chunk's gap evenly among its tokens")
    fewer = [i for i, n in enumerate(result.output_lens) if n and gaps[i] and len(gaps[i]) + 1 < n]
    if not fewer:
        return
    events = [len(each) + 1 if n and (each or n == 1) else n for each, n in zip(gaps, result.output_lens, strict=True)]
    if sum(n or 0 for n in events) == result.total_output_tokens_retokenized:
        result.output_lens = events
        why = "more than the retokenised text and the token events, which are counted instead"
    else:
        why = "more than the token events: several tokens a chunk, or the length asked for and not that of the reply"
    meta.notes.append(f"{len(fewer)} replies are listed with {why}")
