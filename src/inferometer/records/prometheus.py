"""What engines and GPU exporters publish at ``/metrics``, by our names.

`parse_page` reads one page in the Prometheus text format of vLLM (V0, and V1 with its old and new names), SGLang, TGI,
TensorRT-LLM, llama.cpp's server, and the GPU exporters DCGM, ``nvidia_smi_*`` and ``nvidia_gpu_*`` (NVML).
`server_table` turns many pages into `Run.server`, `deltas` says what happened between two.

Our names. Gauges: ``running``, ``waiting``, ``kv_usage`` (0 to 1). Counters: ``prompt_tokens``, ``generation_tokens``,
``cached_prompt_tokens``, ``prefix_cache_queries`` and ``prefix_cache_hits`` (tokens), ``preemptions``,
``requests_finished`` (also by reason: ``requests_finished.stop``), ``spec_decode_*``. Histograms: ``ttft_s``,
``itl_s`` (gaps between tokens), ``tpot_s`` (per request), ``e2e_s``, ``queue_s``, ``prefill_s``, ``decode_s``,
``inference_s``. GPUs: ``gpu_util`` (0 to 1), ``gpu_memory_used_bytes``, ``gpu_power_w``, ``gpu_temperature_c``.

A name that a version lacks is absent, never 0. Where a version has both an old and a new name, the new one is read.
Sources: vLLM 0.8 to 0.32 ``v1/metrics/loggers.py``, SGLang 0.5 ``metrics/collector.py``, TGI v3, the documentation of
TensorRT-LLM, llama.cpp and the exporters.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from inferometer.errors import InputError
from inferometer.units import MIB

Kind = Literal["sum", "max", "counter", "histogram"]


class Metric(NamedTuple):
    """One of our names and where an engine has it."""

    ours: str
    kind: Kind
    """``sum`` and ``max`` are gauges, and say how series of one replica are put together."""
    theirs: tuple[str, ...]
    """Their names without engine prefix and ``_total``, the one that is preferred first."""
    part: str = ""
    """A label whose values are kept apart too, as ``OURS.VALUE``."""


VLLM = (
    Metric("running", "sum", ("num_requests_running",)),
    Metric("waiting", "sum", ("num_requests_waiting",)),
    Metric("waiting_by_reason", "sum", ("num_requests_waiting_by_reason",), "reason"),
    Metric("swapped", "sum", ("num_requests_swapped",)),
    Metric("kv_usage", "max", ("kv_cache_usage_perc", "gpu_cache_usage_perc")),
    Metric("cpu_kv_usage", "max", ("cpu_cache_usage_perc",)),
    Metric("prefix_cache_hit_rate", "max", ("gpu_prefix_cache_hit_rate",)),
    Metric("spec_decode_acceptance_rate", "max", ("spec_decode_draft_acceptance_rate",)),
    Metric("preemptions", "counter", ("num_preemptions",)),
    Metric("prompt_tokens", "counter", ("prompt_tokens",)),
    Metric("prompt_tokens_by_source", "counter", ("prompt_tokens_by_source",), "source"),
    Metric("generation_tokens", "counter", ("generation_tokens",)),
    Metric("cached_prompt_tokens", "counter", ("prompt_tokens_cached",)),
    Metric("recomputed_prompt_tokens", "counter", ("prompt_tokens_recomputed",)),
    Metric("prefix_cache_queries", "counter", ("prefix_cache_queries", "gpu_prefix_cache_queries")),
    Metric("prefix_cache_hits", "counter", ("prefix_cache_hits", "gpu_prefix_cache_hits")),
    Metric("external_prefix_cache_queries", "counter", ("external_prefix_cache_queries",)),
    Metric("external_prefix_cache_hits", "counter", ("external_prefix_cache_hits",)),
    Metric("mm_cache_queries", "counter", ("mm_cache_queries",)),
    Metric("mm_cache_hits", "counter", ("mm_cache_hits",)),
    Metric("requests_finished", "counter", ("request_success",), "finished_reason"),
    Metric("admission_rejections", "counter", ("admission_rejections",), "reason"),
    Metric("corrupted_requests", "counter", ("corrupted_requests",)),
    Metric("spec_decode_drafts", "counter", ("spec_decode_num_drafts",)),
    Metric("spec_decode_draft_tokens", "counter", ("spec_decode_num_draft_tokens",)),
    Metric("spec_decode_accepted_tokens", "counter", ("spec_decode_num_accepted_tokens",)),
    Metric("spec_decode_accepted_per_pos", "counter", ("spec_decode_num_accepted_tokens_per_pos",), "position"),
    Metric("estimated_flops_per_gpu", "counter", ("estimated_flops_per_gpu",)),
    Metric("estimated_read_bytes_per_gpu", "counter", ("estimated_read_bytes_per_gpu",)),
    Metric("estimated_write_bytes_per_gpu", "counter", ("estimated_write_bytes_per_gpu",)),
    Metric("ttft_s", "histogram", ("time_to_first_token_seconds",)),
    Metric("itl_s", "histogram", ("inter_token_latency_seconds", "time_per_output_token_seconds")),
    Metric("tpot_s", "histogram", ("request_time_per_output_token_seconds",)),
    Metric("e2e_s", "histogram", ("e2e_request_latency_seconds",)),
    Metric("queue_s", "histogram", ("request_queue_time_seconds", "time_in_queue_requests")),
    Metric("prefill_s", "histogram", ("request_prefill_time_seconds",)),
    Metric("decode_s", "histogram", ("request_decode_time_seconds",)),
    Metric("inference_s", "histogram", ("request_inference_time_seconds",)),
    Metric("step_tokens", "histogram", ("iteration_tokens_total",)),
)
"""vLLM, V0 and V1. ``time_per_output_token_seconds`` is the old name of the gaps between tokens (both in 0.10-0.14)."""

SGLANG = (
    Metric("running", "sum", ("num_running_reqs",)),
    Metric("waiting", "sum", ("num_queue_reqs",)),
    Metric("kv_usage", "max", ("token_usage", "full_token_usage")),
    Metric("kv_used_tokens", "sum", ("num_used_tokens",)),
    Metric("kv_cache_tokens", "sum", ("max_total_num_tokens",)),
    Metric("prefix_cache_hit_rate", "max", ("cache_hit_rate",)),
    Metric("generation_tok_per_s", "sum", ("gen_throughput",)),
    Metric("spec_decode_accept_length", "max", ("spec_accept_length",)),
    Metric("preemptions", "counter", ("num_retracted_requests",)),
    Metric("prompt_tokens", "counter", ("prompt_tokens",)),
    Metric("generation_tokens", "counter", ("generation_tokens",)),
    Metric("cached_prompt_tokens", "counter", ("cached_tokens",)),
    Metric("evicted_tokens", "counter", ("evicted_tokens",)),
    Metric("requests_finished", "counter", ("num_requests",)),
    Metric("requests_aborted", "counter", ("num_aborted_requests",)),
    Metric("ttft_s", "histogram", ("time_to_first_token_seconds",)),
    Metric("itl_s", "histogram", ("inter_token_latency_seconds",)),
    Metric("tpot_s", "histogram", ("time_per_output_token_seconds",)),
    Metric("e2e_s", "histogram", ("e2e_request_latency_seconds",)),
    Metric("queue_s", "histogram", ("queue_time_seconds",)),
)
"""SGLang. ``prompt_tokens`` counts finished requests, whole prompts; ``preemptions`` are its retractions."""

TGI = (
    Metric("running", "sum", ("batch_current_size",)),
    Metric("waiting", "sum", ("queue_size",)),
    Metric("prompt_tokens", "counter", ("request_input_length_sum",)),
    Metric("generation_tokens", "counter", ("request_generated_tokens_sum",)),
    Metric("requests_started", "counter", ("request_count",)),
    Metric("requests_finished", "counter", ("request_success",)),
    Metric("requests_failed", "counter", ("request_failure",), "err"),
    Metric("steps", "counter", ("batch_inference_count",), "method"),
    Metric("tpot_s", "histogram", ("request_mean_time_per_token_duration",)),
    Metric("e2e_s", "histogram", ("request_duration",)),
    Metric("queue_s", "histogram", ("request_queue_duration",)),
    Metric("inference_s", "histogram", ("request_inference_duration",)),
)
"""TGI v3. It has no token counters: the sums of its length histograms are the same thing."""

TRTLLM = (
    Metric("running", "sum", ("num_requests_running",)),
    Metric("waiting", "sum", ("num_requests_waiting",)),
    Metric("kv_usage", "max", ("kv_cache_utilization",)),
    Metric("prefix_cache_hit_rate", "max", ("kv_cache_hit_rate",)),
    Metric("prompt_tokens", "counter", ("prompt_tokens",)),
    Metric("generation_tokens", "counter", ("generation_tokens",)),
    Metric("kv_reused_blocks", "counter", ("kv_cache_reused_blocks",)),
    Metric("kv_missed_blocks", "counter", ("kv_cache_missed_blocks",)),
    Metric("requests_finished", "counter", ("request_success",), "finished_reason"),
    Metric("ttft_s", "histogram", ("time_to_first_token_seconds",)),
    Metric("tpot_s", "histogram", ("time_per_output_token_seconds",)),
    Metric("e2e_s", "histogram", ("e2e_request_latency_seconds",)),
    Metric("queue_s", "histogram", ("request_queue_time_seconds",)),
)
"""TensorRT-LLM's ``/prometheus/metrics``, with prefix or (first versions) without."""

LLAMACPP = (
    Metric("running", "sum", ("requests_processing",)),
    Metric("waiting", "sum", ("requests_deferred",)),
    Metric("kv_usage", "max", ("kv_cache_usage_ratio",)),
    Metric("kv_used_tokens", "sum", ("kv_cache_tokens",)),
    Metric("prompt_tok_per_s", "sum", ("prompt_tokens_seconds",)),
    Metric("generation_tok_per_s", "sum", ("predicted_tokens_seconds",)),
    Metric("busy_slots_per_step", "max", ("n_busy_slots_per_decode",)),
    Metric("computed_prompt_tokens", "counter", ("prompt_tokens",)),
    Metric("cached_prompt_tokens", "counter", ("prompt_tokens_cached",)),
    Metric("generation_tokens", "counter", ("tokens_predicted",)),
    Metric("prompt_s", "counter", ("prompt_seconds",)),
    Metric("generation_s", "counter", ("tokens_predicted_seconds",)),
    Metric("steps", "counter", ("n_decode",)),
    Metric("spec_decode_drafts", "counter", ("spec_decode_num_drafts",)),
    Metric("spec_decode_draft_tokens", "counter", ("spec_decode_num_draft_tokens",)),
    Metric("spec_decode_accepted_tokens", "counter", ("spec_decode_num_accepted_tokens",)),
)
"""llama.cpp's server. Its prompt counter leaves cached tokens out: ``prompt_tokens`` here is computed + cached."""

ENGINES: dict[str, tuple[str, tuple[Metric, ...]]] = {
    "vllm": (r"(?:ray_)?vllm[:_]", VLLM),
    "sglang": (r"sglang[:_]", SGLANG),
    "tgi": (r"tgi_", TGI),
    "trtllm": (r"(?:py)?trtllm[:_]", TRTLLM),
    "llamacpp": (r"llamacpp:", LLAMACPP),
}
"""Engines by name: what their sample names begin with, and their metrics."""

BARE = {
    f"{name}_{end}"
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds")
    for end in ("sum", "count")
}
"""Sample names without any prefix, as TensorRT-LLM first had them."""

GPU: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util", 0.01),
    "DCGM_FI_DEV_FB_USED": ("gpu_memory_used_bytes", MIB),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power_w", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu_temperature_c", 1),
    "nvidia_smi_utilization_gpu_ratio": ("gpu_util", 1),
    "nvidia_smi_memory_used_bytes": ("gpu_memory_used_bytes", 1),
    "nvidia_smi_power_draw_watts": ("gpu_power_w", 1),
    "nvidia_smi_temperature_gpu": ("gpu_temperature_c", 1),
    "nvidia_gpu_duty_cycle": ("gpu_util", 0.01),
    "nvidia_gpu_memory_used_bytes": ("gpu_memory_used_bytes", 1),
    "nvidia_gpu_power_usage_milliwatts": ("gpu_power_w", 0.001),
    "nvidia_gpu_temperature_celsius": ("gpu_temperature_c", 1),
    "nv_gpu_utilization": ("gpu_util", 1),
    "nv_gpu_memory_used_bytes": ("gpu_memory_used_bytes", 1),
    "nv_gpu_power_usage": ("gpu_power_w", 1),
}
"""Samples of the GPU exporters: our name and the factor to our unit."""

UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
INDEX_LABELS = ("gpu", "GPU", "index", "minor_number")
REPLICA_LABELS = ("engine", "dp_rank", "dp")
RANK_LABELS = ("tp_rank", "pp_rank")
MODEL_LABELS = ("model_name", "model")


class Histogram(msgspec.Struct):
    """Sum and count of a histogram, and its cumulative buckets by upper bound where it has any."""

    sum: float | None = None
    count: float | None = None
    buckets: dict[float, float] = {}

    @property
    def mean(self) -> float | None:
        """Sum over count; None where nothing was counted."""
        return self.sum / self.count if self.sum is not None and self.count else None


class Replica(msgspec.Struct):
    """What one engine (data-parallel replica) of a page says, by our names."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}


class Page(msgspec.Struct):
    """One page of ``/metrics`` by our names."""

    engine: str | None = None
    """``vllm``, ``sglang``, ``tgi``, ``trtllm``, ``llamacpp``; None: no engine's names are on the page."""
    models: tuple[str, ...] = ()
    replicas: dict[int, Replica] = {}
    gpus: dict[str, dict[str, float]] = {}
    """Each GPU's telemetry, by its UUID where the exporter gives it, else by ``Hostname/index``, else by index."""
    cache_labels: dict[str, str] = {}
    """Labels of vLLM's ``cache_config_info``, of the first replica, as they are."""
    process_start_unix_s: float | None = None
    notes: list[str] = []


Sample = tuple[str, dict[str, str], float]


def parse_page(text: str, model: str | None = None) -> Page:
    """A page of ``/metrics``. Series of several ``model_name`` labels are summed (usages: the highest), with a note.

    Raises `InputError` where ``model`` is given and the page has series of other models only. Never raises for the
    text: a line that does not parse is left out, with a note.

    >>> page = parse_page('vllm:num_requests_running{engine="0",model_name="m"} 3.0')
    >>> page.engine, page.replicas[0].gauges
    ('vllm', {'running': 3.0})
    """
    notes: list[str] = []
    samples = [sample for sample in _samples(text, notes) if math.isfinite(sample[2])]
    engine = _engine(name for name, _, _ in samples)
    page = Page(engine=engine, notes=notes, gpus=_gpus(samples), process_start_unix_s=_process_start(samples))
    if engine is not None:
        known = _known(samples, engine, page)
        page.models = tuple(sorted({name for _, labels, _ in known if (name := _model(labels)) is not None}))
        page.replicas = _replicas(_of_model(known, page, model), page)
        page.cache_labels = next((labels for name, labels, _ in samples if name.endswith("cache_config_info")), {})
    return page


def _samples(text: str, notes: list[str]) -> list[Sample]:
    """All samples of the text; where it is not sound as a whole, those of its sound lines."""
    try:
        return list(_read(text))
    except (ValueError, OverflowError):
        return list(_read_by_line(text, notes))


def _read(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, float(sample.value)


def _read_by_line(text: str, notes: list[str]) -> Iterator[Sample]:
    wrong: list[str] = []
    for line in text.splitlines():
        try:
            yield from list(_read(line)) if line.strip() and not line.startswith("#") else ()
        except (ValueError, OverflowError):
            wrong.append(line.strip())
    notes.append(
        f"{len(wrong)} malformed line(s) left out, the first: {wrong[0][:80]!r}" if wrong else "malformed comments"
    )


def _engine(names: Iterable[str]) -> str | None:
    """The engine whose names are on the page; the first in the order of `ENGINES` where there are several."""
    seen = set(names)
    for engine in ENGINES:
        if any(_prefix(engine).match(name) for name in seen):
            return engine
    return "trtllm" if seen & BARE else None


@cache
def _prefix(engine: str) -> re.Pattern[str]:
    return re.compile(ENGINES[engine][0])


class Role(NamedTuple):
    """What a sample name is: of which metric, how far down its list of names, and which part of a histogram."""

    metric: Metric
    rank: int
    piece: str


@cache
def _roles(engine: str) -> dict[str, Role]:
    """Every sample name of an engine, without prefix."""
    roles: dict[str, Role] = {}
    for metric in ENGINES[engine][1]:
        for rank, name in enumerate(metric.theirs):
            ends: tuple[str, ...] = ("_sum", "_count", "_bucket") if metric.kind == "histogram" else ("",)
            ends += ("_total",) if metric.kind == "counter" else ()
            for end in ends:
                roles[name + end] = Role(metric, rank, end if metric.kind == "histogram" else "")
    return roles


Known = tuple[Role, dict[str, str], float]


def _known(samples: Iterable[Sample], engine: str, page: Page) -> list[Known]:
    """The samples that have one of our names, each metric by the most preferred name that is there."""
    roles, prefix = _roles(engine), _prefix(engine)
    found: list[Known] = []
    for name, labels, value in samples:
        match = prefix.match(name)
        role = roles.get(name[match.end() :] if match else name)
        if role is not None and (match or engine == "trtllm"):
            found.append((role, labels, value))
    best: dict[str, int] = {}
    for role, _, _ in found:
        best[role.metric.ours] = min(role.rank, best.get(role.metric.ours, role.rank))
    return _one_rank([known for known in found if known[0].rank == best[known[0].metric.ours]], page)


def _one_rank(known: list[Known], page: Page) -> list[Known]:
    """Without the copies of tensor- and pipeline-parallel ranks, and the parts by priority beside their total."""
    total = any(labels.get("priority") == "" for _, labels, _ in known)
    kept = [
        k for k in known if not _is_copy(k[1]) and not (total and k[1].get("priority") and k[0].metric.kind == "sum")
    ]
    if len(kept) < len(known) and any(_is_copy(labels) for _, labels, _ in known):
        page.notes.append("several tensor- or pipeline-parallel ranks report: rank 0 is read")
    return kept


def _is_copy(labels: Mapping[str, str]) -> bool:
    """With a data-parallel label the ranks are replicas, not copies."""
    return not labels.get("dp_rank") and any(labels.get(name, "0") not in ("0", "") for name in RANK_LABELS)


def _model(labels: Mapping[str, str]) -> str | None:
    return next((labels[name] for name in MODEL_LABELS if labels.get(name)), None)


def _of_model(known: list[Known], page: Page, model: str | None) -> list[Known]:
    if model is None or not page.models:
        if len(page.models) > 1:
            page.notes.append(f"series of {len(page.models)} models are summed: {', '.join(page.models)}")
        return known
    if model not in page.models:
        raise InputError("model", model, f"one that the page has: {', '.join(page.models)}")
    return [k for k in known if _model(k[1]) in (model, None)]


def _replicas(known: list[Known], page: Page) -> dict[int, Replica]:
    """Each replica's values. A series without a replica label belongs to the first replica."""
    numbers = _replica_numbers(known)
    first = min(numbers.values(), default=0)
    replicas: dict[int, Replica] = {}
    wrong: set[str] = set()
    for role, labels, value in known:
        number = numbers.get(_replica_label(labels), first)
        if role.piece == "_bucket" and not _is_bound(bound := labels.get("le", "")):
            wrong.add(bound)
        else:
            _add(replicas.setdefault(number, Replica()), role, labels, value)
    if wrong:
        page.notes.append(f"histogram buckets left out, whose bound is no number: {', '.join(sorted(wrong))[:80]!r}")
    for replica in replicas.values():
        _add_prompt_tokens(replica)
    if any(not h.buckets for replica in replicas.values() for h in replica.histograms.values()):
        page.notes.append("a histogram without buckets: its sum and count are read")
    return dict(sorted(replicas.items()))


def _replica_label(labels: Mapping[str, str]) -> str | None:
    return next((labels[name] for name in REPLICA_LABELS if labels.get(name)), None)


def _replica_numbers(known: list[Known]) -> dict[str | None, int]:
    """The number of each replica label: itself where all are numbers, else its place in the order of names."""
    names = sorted({name for _, labels, _ in known if (name := _replica_label(labels)) is not None})
    if all(name.isdecimal() and len(name) < 10 for name in names):
        return {name: int(name) for name in names}
    return {name: i for i, name in enumerate(names)}


def _add(replica: Replica, role: Role, labels: Mapping[str, str], value: float) -> None:
    metric = role.metric
    if metric.kind == "histogram":
        _add_to_histogram(replica.histograms.setdefault(metric.ours, Histogram()), role.piece, labels, value)
        return
    store = replica.counters if metric.kind == "counter" else replica.gauges
    part = labels.get(metric.part) if metric.part else None
    for name in (metric.ours, f"{metric.ours}.{part}") if part else (metric.ours,):
        old = store.get(name)
        store[name] = value if old is None else max(old, value) if metric.kind == "max" else old + value


def _add_to_histogram(histogram: Histogram, piece: str, labels: Mapping[str, str], value: float) -> None:
    if piece == "_sum":
        histogram.sum = (histogram.sum or 0.0) + value
    elif piece == "_count":
        histogram.count = (histogram.count or 0.0) + value
    else:
        bound = float(labels["le"])  # `_replicas` has left out what is no number
        histogram.buckets[bound] = histogram.buckets.get(bound, 0.0) + value


def _is_bound(text: str) -> bool:
    """Whether a bucket's upper bound is one: a number, ``+Inf`` too."""
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _add_prompt_tokens(replica: Replica) -> None:
    """Where an engine counts computed and cached prompt tokens apart, their sum."""
    computed = replica.counters.get("computed_prompt_tokens")
    if computed is not None:
        replica.counters["prompt_tokens"] = computed + replica.counters.get("cached_prompt_tokens", 0.0)


def _gpus(samples: Iterable[Sample]) -> dict[str, dict[str, float]]:
    found = [(labels, *GPU[name], value) for name, labels, value in samples if name in GPU]
    uuids = {_place(labels): uuid for labels, *_ in found if (uuid := _label(labels, UUID_LABELS))}
    gpus: dict[str, dict[str, float]] = {}
    for labels, ours, scale, value in found:
        # some exporters give the UUID with one of a GPU's metrics only
        gpu = _label(labels, UUID_LABELS) or uuids.get(_place(labels)) or _place(labels)
        gpus.setdefault(gpu, {})[ours] = value * scale
    return gpus


def _place(labels: Mapping[str, str]) -> str:
    """A GPU's index, which every node counts from 0, after its node's name where that is given."""
    index = _label(labels, INDEX_LABELS) or "0"
    return f"{labels['Hostname']}/{index}" if labels.get("Hostname") else index


def _label(labels: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


def _process_start(samples: Iterable[Sample]) -> float | None:
    return next((value for name, _, value in samples if name == "process_start_time_seconds"), None)


LIVE = ("running", "waiting", "kv_usage", "generation_tokens")
"""What `gauges_now` looks for."""


@cache
def _live_names(engine: str) -> tuple[tuple[str, bool, tuple[str, ...]], ...]:
    """Of each live figure: our name, whether it is a usage, and the line starts to look for, preferred first."""
    prefix = {"vllm": "vllm:", "sglang": "sglang:", "tgi": "tgi_", "trtllm": "trtllm_", "llamacpp": "llamacpp:"}[engine]
    metrics = {metric.ours: metric for metric in ENGINES[engine][1]}
    return tuple(
        (
            ours,
            metrics[ours].kind == "max",
            tuple(f"\n{prefix}{name}{end}" for name in metrics[ours].theirs for end in ends),
        )
        for ours in LIVE
        if ours in metrics
        for ends in [("_total", "") if metrics[ours].kind == "counter" else ("",)]
    )


def gauges_now(text: str) -> dict[str, float]:
    """The few figures of a live view from a page: ``running``, ``waiting``, ``kv_usage`` and ``generation_tokens``.

    Looks for their lines only (about 50 us on a page of 50 kB, against 6 ms for `parse_page`). Summed over replicas
    and models; ``kv_usage`` is the highest. What is not there is absent.

    >>> gauges_now('vllm:num_requests_running{engine="0"} 2.0\\nvllm:num_requests_running{engine="1"} 1.0')
    {'running': 3.0}
    """
    text = "\n" + text
    engine = next((e for e, mark in _LIVE_MARKS if mark in text), None)
    if engine is None:
        return {}
    figures: dict[str, float] = {}
    for ours, is_usage, starts in _live_names(engine):
        values = next((found for start in starts if (found := _values_at(text, start))), None)
        if values:
            figures[ours] = max(values) if is_usage else sum(values)
    return figures


_LIVE_MARKS = (
    ("vllm", "\nvllm:"),
    ("sglang", "\nsglang:"),
    ("tgi", "\ntgi_"),
    ("trtllm", "\ntrtllm_"),
    ("llamacpp", "\nllamacpp:"),
)


def _values_at(text: str, start: str) -> list[float]:
    """The values of the series of one sample name; its lines stand together."""
    values: list[float] = []
    at = text.find(start)
    while at >= 0:
        end = text.find("\n", at + 1)
        line = text[at + len(start) : end if end >= 0 else len(text)]
        if line[:1] in ("{", " ", "\t"):
            _keep_value(values, line)
        elif values:
            break
        at = text.find(start, at + 1)
    return values


def _keep_value(values: list[float], line: str) -> None:
    try:
        value = float(line[line.rfind("}") + 1 :].split()[0])
    except (ValueError, IndexError):
        return
    if math.isfinite(value):
        values.append(value)


def deltas(before: Page, after: Page) -> dict[str, float]:
    """What the counters counted between two pages, over all replicas; of a histogram ``NAME.sum`` and ``NAME.count``.

    A replica with a counter that went down, or whose process started anew, has restarted: its values after are taken
    whole, and ``after.notes`` says so. A counter that is new counts from 0; one that is gone is left out, with a note.
    """
    total: dict[str, float] = {}
    for number, replica in after.replicas.items():
        then, now = _flat(before.replicas.get(number, Replica())), _flat(replica)
        if _restarted(before, after) or any(now[name] < value for name, value in then.items() if name in now):
            after.notes.append(f"replica {number} restarted in between: its counters are taken from 0")
            then = {}
        for name in then.keys() - now.keys():
            after.notes.append(f"counter {name} of replica {number} is gone")
        for name, value in now.items():
            total[name] = total.get(name, 0.0) + value - then.get(name, 0.0)
    for number in before.replicas.keys() - after.replicas.keys():
        after.notes.append(f"replica {number} is gone: what it counted is not in the differences")
    return total


def _restarted(before: Page, after: Page) -> bool:
    then, now = before.process_start_unix_s, after.process_start_unix_s
    return then is not None and now is not None and now > then + 1


def _flat(replica: Replica) -> dict[str, float]:
    """Every counter, and each histogram's sum and count, by name."""
    flat = dict(replica.counters)
    for name, histogram in replica.histograms.items():
        for piece in ("sum", "count"):
            value = getattr(histogram, piece)
            if value is not None:
                flat[f"{name}.{piece}"] = value
    return flat


def means(counted: Mapping[str, float]) -> dict[str, float]:
    """The mean of each histogram in `deltas`: ``NAME.sum / NAME.count``, where anything was counted.

    >>> means({"ttft_s.sum": 1.5, "ttft_s.count": 3.0})
    {'ttft_s': 0.5}
    """
    ends = [name[: -len(".count")] for name, value in counted.items() if name.endswith(".count") and value > 0]
    return {name: counted[f"{name}.sum"] / counted[f"{name}.count"] for name in ends if f"{name}.sum" in counted}


def server_table(
    pages: Sequence[tuple[float, str]], model: str | None = None
) -> tuple[dict[str, list[Any]], list[str]]:
    """Columns for `Run.server` from pages with their times (seconds on the run's clock), and what was noted.

    A row for each page and replica: the columns of `SERVER_SCHEMA`, every other gauge, every counter, and each
    histogram's ``NAME.sum`` and ``NAME.count``; null where a page lacks one. GPU telemetry stands in the first row of
    its page, over all GPUs: memory and power summed, utilization the mean, temperature the highest.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for time_s, text in pages:
        page = parse_page(text, model)
        rows += _rows(time_s, page)
        notes += [note for note in page.notes if note not in notes]
    names = ["time_s", "replica", "running", "waiting", "kv_usage", "preemptions"]
    names += sorted({name for row in rows for name in row} - set(names))
    return {name: [row.get(name) for row in rows] for name in names}, notes


def _rows(time_s: float, page: Page) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"time_s": time_s, "replica": number, **replica.gauges, **_flat(replica)}
        for number, replica in page.replicas.items()
    ]
    if page.gpus:
        rows = rows or [{"time_s": time_s, "replica": None}]
        rows[0] |= gpu_totals(page)
    return rows


def gpu_totals(page: Page) -> dict[str, float]:
    """A page's GPU telemetry over all GPUs: memory and power summed, utilization the mean, temperature the highest."""
    totals: dict[str, float] = {}
    for name in ("gpu_util", "gpu_memory_used_bytes", "gpu_power_w", "gpu_temperature_c"):
        values = [gpu[name] for gpu in page.gpus.values() if name in gpu]
        if values:
            totals[name] = {"gpu_util": sum(values) / len(values), "gpu_temperature_c": max(values)}.get(
                name, sum(values)
            )
    return totals


def cache_config(page: Page) -> dict[str, Any]:
    """What vLLM's ``cache_config_info`` says, typed: ``num_gpu_blocks``, ``block_size``, ``cache_dtype``, ...

    Labels whose value is None are left out; so are the labels that name the series.

    >>> cache_config(parse_page('vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0"} 1.0'))
    {'block_size': 16, 'cache_dtype': 'auto'}
    """
    names = {name: text for name, text in page.cache_labels.items() if name not in (*REPLICA_LABELS, *MODEL_LABELS)}
    typed = {name: _typed(text) for name, text in names.items()}
    return {name: value for name, value in typed.items() if value is not None and not name.startswith("_")}


def _typed(text: str) -> Any:
    """A label's text as the Python value it was printed from; the text itself where it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
