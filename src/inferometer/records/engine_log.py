"""What an engine prints: at start its memory, limits and choices; while running its load, step by step or at intervals.

`read_log` reads the log of vLLM (V0 and V1, checked against lines of 0.2 to 0.32), of SGLang, and the memory lines of
llama.cpp's server and TensorRT-LLM. A line that a version does not print leaves its field None.

Sizes are taken in the unit that is printed: GiB is 2**30 and GB is 10**9, but for two engines. SGLang, and vLLM before
about 0.8, print "GB" for a figure that they have divided by 2**30 (K and V of known models come out so: SGLang's
"K size: 29.53 GB" of 430,067 tokens at 73,728 bytes): theirs are read as GiB; ``notes`` says so, ``printed`` keeps the
text.

vLLM's lines carry month, day and time to the second, without year and zone: both are parameters of `read_log`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferometer.errors import FormatError, InputError
from inferometer.units import parse_bytes

Columns = dict[str, list[Any]]


class EngineLog(msgspec.Struct, kw_only=True):
    """What a log says. Memory is that of one GPU (rank); of several ranks the least KV cache, else the most."""

    engine: str | None = None
    """``vllm``, ``sglang``, ``llamacpp`` or ``trtllm``."""
    version: str | None = None
    model: str | None = None
    flags: dict[str, Any] = {}
    """The arguments as printed, without what may be a secret: vLLM's non-default ones (V0: all), SGLang's server_args.
    """
    config: dict[str, Any] = {}
    """Key figures of vLLM's "Initializing ... LLM engine" line: dtype, parallel sizes, quantization, ..."""
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    device_total_bytes: int | None = None
    device_free_bytes: int | None = None
    """Free before the engine started, as it prints after the start."""
    weight_bytes: int | None = None
    activation_peak_bytes: int | None = None
    non_torch_bytes: int | None = None
    cuda_graph_bytes: int | None = None
    cuda_graph_estimate_bytes: int | None = None
    """What was set aside for graphs before they were captured (vLLM from 0.18)."""
    kv_cache_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    max_concurrency: float | None = None
    """Requests of ``max_model_len`` tokens that fit, as printed."""
    attention_backend: str | None = None
    flash_attention_version: int | None = None
    sampler: str | None = None
    """Path of top-p and top-k: ``flashinfer``, ``triton``, ``torch`` (the fallback); only where the log says so.

    ``flashinfer`` means that the fused path is there; requests without top_p or top_k do not take it."""
    async_scheduling: bool | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    weights_load_s: float | None = None
    model_load_s: float | None = None
    torch_compile_s: float | None = None
    cuda_graph_s: float | None = None
    memory_profiling_s: float | None = None
    init_engine_s: float | None = None
    first_unix_s: float | None = None
    ready_unix_s: float | None = None
    """Last stamped line before "Application startup complete"; from ``first_unix_s`` on, the start-up time."""
    last_unix_s: float | None = None
    printed: dict[str, str] = {}
    """The memory figures as printed, by field."""
    periodic: Columns = {}
    """Lines at intervals, a row each: ``time_unix_s``, ``replica``, ``line`` (``interval``, ``prefill``, ``decode``),
    ``running``, ``waiting``, ``kv_usage`` (0 to 1), ``prompt_tok_per_s``, ``generation_tok_per_s``, hit rates, ..."""
    iterations: Columns = {}
    """Engine steps, a row each: ``time_unix_s``, ``replica``, ``iteration``, ``context_requests``, ``context_tokens``,
    ``generation_requests``, ``generation_tokens``, ``elapsed_s``, ``kv_usage`` (0 to 1)."""
    notes: list[str] = []

    def facts(self) -> dict[str, Any]:
        """What is known, as plain values for `RunMeta.server`: no tables, no notes, nothing that is None or empty."""
        names = [n for n in self.__struct_fields__ if n not in ("periodic", "iterations", "notes")]
        return {name: value for name in names if (value := getattr(self, name)) is not None and value != {}}


SIZE = r"\d[\d.]* ?[KMGT]?i?B"
COUNT = r"[\d,]+"

RULES: tuple[tuple[str, str], ...] = (
    # vLLM
    ("vLLM API server version", r"vLLM API server version (?P<version>\S+)"),
    ("█  version", r"█\s+version (?P<version>\S+)"),
    ("Using max model len", rf"Using max model len (?P<max_model_len>{COUNT})"),
    (
        "max_num_batched_tokens=",
        rf"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>{COUNT})",
    ),
    ("Available KV cache memory", rf"Available KV cache memory: (?P<kv_cache_memory_bytes>{SIZE})"),
    ("memory for KV Cache as", rf"reserved (?P<kv_cache_memory_bytes>{SIZE}) memory for KV Cache"),
    ("for KV cache on node", r"Explicitly set \((?P<kv_cache_gib>[\d.]+)/[\d.]+\) GiB for KV cache"),
    ("KV cache size:", rf"\w+ KV cache size: (?P<kv_cache_tokens>{COUNT}) tokens"),
    ("Maximum concurrency for", rf"Maximum concurrency for {COUNT} tokens per request: (?P<max_concurrency>[\d.,]+)x"),
    (" blocks: ", r"# \w+ blocks: (?P<num_gpu_blocks>\d+)(?:, # CPU blocks: (?P<num_cpu_blocks>\d+))?"),
    (
        "odel loading took",
        rf"Model loading took (?P<weight_bytes>{SIZE})(?: memory)?(?: and (?P<model_load_s>[\d.]+) seconds)?",
    ),
    ("model weights took", rf"Loading model weights took (?P<weight_bytes>{SIZE})"),
    ("model weights take", rf"model weights take (?P<weight_bytes>{SIZE})"),
    ("non_torch_memory takes", rf"non_torch_memory takes (?P<non_torch_bytes>{SIZE})"),
    ("activation peak memory takes", rf"activation peak memory takes (?P<activation_peak_bytes>{SIZE})"),
    ("reserved for KV Cache is", rf"reserved for KV Cache is (?P<kv_cache_memory_bytes>{SIZE})"),
    (
        "total_gpu_memory (",
        rf"total_gpu_memory \((?P<device_total_bytes>{SIZE})\) "
        r"x gpu_memory_utilization \((?P<gpu_memory_utilization>[\d.]+)\)",
    ),
    ("Actual usage is", rf"(?P<weight_bytes>{SIZE}) for weight"),
    ("Actual usage is", rf"(?P<activation_peak_bytes>{SIZE}) for peak activation"),
    ("Actual usage is", rf"(?P<non_torch_bytes>{SIZE}) for non-torch memory"),
    ("Actual usage is", rf"(?P<cuda_graph_bytes>{SIZE}) for CUDAGraph memory"),
    ("Desired GPU memory utilization", r"Desired GPU memory utilization is \((?P<gpu_memory_utilization>[\d.]+)"),
    (
        "Free memory on device",
        r"Free memory on device[^(]*\((?P<device_free_gib>[\d.]+)/(?P<device_total_gib>[\d.]+) GiB\)",
    ),
    ("Estimated CUDA graph memory", rf"Estimated CUDA graph memory: (?P<cuda_graph_estimate_bytes>{SIZE})"),
    (
        "Graph capturing finished",
        rf"Graph capturing finished in (?P<cuda_graph_s>[\d.]+) secs?(?:, took (?P<cuda_graph_bytes>{SIZE}))?",
    ),
    ("Loading weights took", r"Loading weights took (?P<weights_load_s>[\d.]+) seconds"),
    ("torch.compile t", r"torch\.compile (?:takes|took) (?P<torch_compile_s>[\d.]+) s"),
    ("Memory profiling takes", r"Memory profiling takes (?P<memory_profiling_s>[\d.]+) seconds"),
    ("init engine", r"init engine (?:\([^)]*\) )?took (?P<init_engine_s>[\d.]+) s"),
    ("Using FlashAttention version", r"Using FlashAttention version (?P<flash_attention_version>\d)"),
    # SGLang
    ("Load weight end", rf"Load weight end\..*?mem usage=(?P<weight_bytes>{SIZE})"),
    ("Load weight end", r"Load weight end\. elapsed=(?P<weights_load_s>[\d.]+) s"),
    (
        "graph end.",
        r"Capture .*?graph end\. (?:Time elapsed: |elapsed=)(?P<cuda_graph_s>[\d.]+) s[.,] "
        rf"mem usage=(?P<cuda_graph_bytes>{SIZE})",
    ),
    (
        "max_total_num_tokens=",
        r"\bmax_total_num_tokens=(?P<kv_cache_tokens>\d+), .*?max_running_requests=(?P<max_num_seqs>\d+), "
        r"context_len=(?P<max_model_len>\d+)",
    ),
    # llama.cpp
    ("n_ctx_", r"n_ctx_(?:per_)?seq\s*=\s*(?P<max_model_len>\d+)"),
    ("n_slots", r"initializing slots, n_slots = (?P<max_num_seqs>\d+)"),
    ("build: ", r"^build: (?P<version>\d+ \(\w+\))"),
    # TensorRT-LLM
    ("max tokens in paged KV cache", rf"Allocated (?P<kv_cache_memory_bytes>{SIZE}) for max tokens in paged KV cache"),
    ("max tokens in paged KV cache", r"paged KV cache \((?P<kv_cache_tokens>\d+)\)"),
    ("bytes for k/v cache", r"Allocate (?P<kv_cache_memory_bytes>\d+) bytes for k/v cache"),
    ("tokens in paged KV cache", r"Using (?P<kv_cache_tokens>\d+) tokens in paged KV cache"),
    ("primary blocks=", r"primary blocks=(?P<num_gpu_blocks>\d+)"),
    ("LLM version", r"TensorRT[- ]LLM version:? (?P<version>\d\S*)"),
)
"""Lines of the start: a text that the line holds, and what to take from it, the groups named after the fields."""

LEAST = ("kv_cache_memory_bytes", "kv_cache_tokens", "num_gpu_blocks", "num_cpu_blocks", "max_concurrency")
"""Of several ranks the least counts: vLLM sizes every rank's cache by the least."""

SIGNS = (
    ("vllm", ("LLM engine (v", "vLLM API server", "non-default args: ", "Avg prompt throughput", "█  version")),
    ("sglang", ("server_args=", "KV Cache is allocated", "Decode batch", "Prefill batch", "Load weight end")),
    ("trtllm", ("[TensorRT-LLM]", "[TRT-LLM]")),
    ("llamacpp", ("llama_kv_cache", "llama_context:", "llama_new_context", "llama_model_loader")),
)

CONFIG = {
    "model", "dtype", "max_seq_len", "load_format", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "quantization", "enforce_eager", "kv_cache_dtype", "device_config", "speculative_config",
    "seed", "served_model_name", "enable_prefix_caching", "use_cached_outputs", "enable_chunked_prefill",
    "chunked_prefill_enabled", "max_num_batched_tokens", "num_scheduler_steps",
}  # fmt: skip
"""Keys of vLLM's config line that are kept."""


def read_log(source: str | Path, year: int | None = None, zone: tzinfo | None = None) -> EngineLog:
    """What an engine's log says; ``source`` is its text, or the path of the file.

    ``year`` is that of the last line (default: of the file's modification, or now), ``zone`` the server's time zone
    (default: this machine's); lines that print a year keep theirs. Of a file with several starts the last is
    described, with a note. Lines that do not parse are passed over, and a note counts those that hold a figure which is
    no number; a text of no known engine gives an empty log.

    Raises `FormatError` where the file cannot be read.

    >>> read_log("INFO 11-14 14:26:16 [gpu_worker.py:298] Available KV cache memory: 35.34 GiB").kv_cache_memory_bytes
    37946036060
    """
    text, written_unix_s = _content(source)
    reader = _Reader(EngineLog(), _Clock())
    for line in text.splitlines():
        reader.line(line)
    return _finish(reader, year, zone, written_unix_s)


def _content(source: str | Path) -> tuple[str, float]:
    if isinstance(source, str):
        return _ANSI.sub("", source) if "\x1b" in source else source, datetime.now().timestamp()
    try:
        text, written_unix_s = source.read_text(errors="replace"), source.stat().st_mtime
    except OSError as why:
        raise FormatError.because(f"{source.name}: cannot be read ({why.strerror})") from why
    return _ANSI.sub("", text) if "\x1b" in text else text, written_unix_s


_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Stamp(NamedTuple):
    """A line's time as printed, and how many New Years the log had passed before it."""

    year: int | None
    turn: int
    text: str


class _Clock:
    """Reads the lines' times in order."""

    STAMP = re.compile(r"(?:INFO|WARNING|ERROR|DEBUG) (?:(\d{4})-)?(\d\d-\d\d \d\d:\d\d:\d\d)")
    BRACKET = re.compile(r"\[(\d{4})-(\d\d-\d\d \d\d:\d\d:\d\d)")

    def __init__(self) -> None:
        self.turn = 0
        self.month = ""
        self.first: Stamp | None = None
        self.last: Stamp | None = None

    def read(self, line: str) -> Stamp | None:
        """The line's time, else None."""
        match = self.STAMP.search(line) or self.BRACKET.search(line)
        if match is None:
            return None
        month = match[2][:2]
        if self.month == "12" and month == "01":
            self.turn += 1
        self.month = month
        self.last = Stamp(int(match[1]) if match[1] else None, self.turn, match[2])
        self.first = self.first or self.last
        return self.last

    def unix_s(
        self, year: int, zone: tzinfo | None, written_unix_s: float, guess: bool
    ) -> Callable[[Any], float | None]:
        """The function from a stamp to seconds since 1970; a guessed year is put back where it lies in the future."""
        if guess and self.last is not None:
            last = _unix_s(self.last, year, zone)
            year -= last is not None and last > written_unix_s + 86400
        known: dict[Stamp | None, float | None] = {None: None}

        def convert(stamp: Stamp | None) -> float | None:
            if stamp not in known:
                assert stamp is not None
                known[stamp] = _unix_s(stamp, year - self.turn + stamp.turn, zone)
            return known[stamp]

        return convert


def _unix_s(stamp: Stamp, year: int, zone: tzinfo | None) -> float | None:
    try:
        when = datetime.strptime(f"{stamp.year or year}-{stamp.text}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return when.replace(tzinfo=zone).timestamp()


Row = dict[str, Any]


class _Reader:
    """Takes a log line by line."""

    def __init__(self, log: EngineLog, clock: _Clock) -> None:
        self.log, self.clock = log, clock
        self.starts = 1
        self.ready: Stamp | None = None
        self.pools: list[tuple[int, list[str]]] = []
        self.buffers: dict[str, list[str]] = {}
        self.periodic: list[Row] = []
        self.iterations: list[Row] = []
        self.passed_over = 0

    def line(self, line: str) -> None:
        """Read one line; one with a figure that is no number is passed over and counted."""
        try:
            self._read(line)
        except (ValueError, OverflowError, InputError):
            self.passed_over += 1

    def _read(self, line: str) -> None:
        """A line of a step, of an interval, or of the start."""
        if "Iteration(" in line:
            self.log.engine = self.log.engine or "vllm"
            self._add(self.iterations, line, _iteration(line))
        elif "Avg prompt throughput" in line:
            self.log.engine = self.log.engine or "vllm"
            self._add(self.periodic, line, _interval(line))
        elif "ecode batch" in line or "refill batch" in line:
            self.log.engine = self.log.engine or "sglang"
            self._add(self.periodic, line, _batch(line))
        elif "SpecDecoding metrics" in line or "Prefix cache hit rate: GPU" in line:
            self._amend(line)
        elif "Route: " in line:
            self.clock.read(line)
        elif ' HTTP/1.1" ' not in line:
            self._start(line)

    def _add(self, rows: list[Row], line: str, row: Row | None) -> None:
        if row is not None:
            rows.append({"time_unix_s": self.clock.read(line), **row})

    def _amend(self, line: str) -> None:
        """Lines that belong to the interval line before them."""
        if not self.periodic:
            return
        found = [(name, pattern.search(line), scale) for name, pattern, scale in _AMENDS]
        self.periodic[-1] |= {name: _number(match[1]) * scale for name, match, scale in found if match}

    def _start(self, line: str) -> None:
        if "Application startup complete" in line or "ready to roll" in line:
            self.ready = self.ready or self.clock.last
        self.clock.read(line)
        self._engine(line)
        _take_arguments(self, line)
        _take_choices(self.log, line)
        _take_pools(self, line)
        for mark, pattern in _rules():
            if mark in line and (match := pattern.search(line)):
                _take(self.log, match)

    def _engine(self, line: str) -> None:
        if self.log.engine is None:
            self.log.engine = next((name for name, signs in SIGNS if any(s in line for s in signs)), None)

    def begin(self) -> None:
        """A server starts: what an earlier one said of itself is dropped, what it did is kept.

        A server with several front ends prints its arguments several times, before anything else is known.
        """
        had_cache = self.log.kv_cache_tokens is not None or self.log.kv_cache_memory_bytes is not None or self.pools
        if had_cache:
            self.starts += 1
            self.log = EngineLog(engine=self.log.engine)
            self.ready, self.pools, self.buffers = None, [], {}


_COMPILED: list[tuple[str, re.Pattern[str]]] = []


def _rules() -> list[tuple[str, re.Pattern[str]]]:
    if not _COMPILED:
        _COMPILED.extend((mark, re.compile(pattern)) for mark, pattern in RULES)
    return _COMPILED


def _take(log: EngineLog, match: re.Match[str]) -> None:
    """Set the fields that the match's groups are named after."""
    for name, text in match.groupdict().items():
        if text is None:
            continue
        if name.endswith("_gib"):
            name, text = _GIB[name], f"{text} GiB"
        try:
            _set(log, name, text)
        except (ValueError, OverflowError, InputError):
            log.notes.append(f"{name}: {text!r} is not a number")


_GIB = {
    "kv_cache_gib": "kv_cache_memory_bytes",
    "device_free_gib": "device_free_bytes",
    "device_total_gib": "device_total_bytes",
}


def _set(log: EngineLog, name: str, text: str) -> None:
    value, old = _value(name, text), getattr(log, name)
    if old is not None and not isinstance(value, str):
        value = min(old, value) if name in LEAST else max(old, value)
    if name.endswith("_bytes") and value != old:
        log.printed[name] = text
    setattr(log, name, value)


def _value(name: str, text: str) -> Any:
    if name == "version":
        return text
    if name.endswith("_bytes"):
        return parse_bytes(int(text) if text.isdecimal() else text, name)
    plain = text.replace(",", "")
    return _number(plain) if name.endswith(("_s", "_concurrency", "_utilization")) else _whole(plain)


MOST, MOST_REPLICAS = 2**53, 2**31 - 1
"""Above this no count or rate of an engine lies; the tables' columns hold no more."""


def _number(text: str) -> float:
    """Digits, with one point at most, as a number. Raises ValueError for anything else, such as "1.0.5" or "."."""
    value = float(text)
    if value > MOST:
        raise ValueError(text)
    return value


def _whole(text: str, most: int = MOST) -> int:
    """Digits as a whole number. Raises ValueError for anything else."""
    value = int(text)
    if value > most:
        raise ValueError(text)
    return value


def _take_arguments(reader: _Reader, line: str) -> None:
    """The lines that list arguments. The flags are the start of a server; the config line every engine of it prints."""
    if match := _FLAGS.search(line):
        reader.begin()
        reader.log.flags = without_secrets(arguments(match[1]))
    elif match := _CONFIG_LINE.search(line):
        log = reader.log
        log.version = match[1]
        log.config = without_secrets({k: v for k, v in arguments(f"({match[2]})").items() if k in CONFIG})
        _from_config(log)


_FLAGS = re.compile(r"(?:non-default args: |\bargs: |server_args=)((?:\{|Namespace\(|ServerArgs\().*)")
_CONFIG_LINE = re.compile(r"Initializing an? (?:V1 )?LLM engine \(v([^)]+)\) with config: (.*)")


def _from_config(log: EngineLog) -> None:
    config = log.config
    log.model = config.get("model", log.model)
    log.max_model_len = config.get("max_seq_len", log.max_model_len)
    log.prefix_caching = config.get("enable_prefix_caching", log.prefix_caching)
    log.chunked_prefill = config.get(
        "enable_chunked_prefill", config.get("chunked_prefill_enabled", log.chunked_prefill)
    )


def arguments(text: str) -> dict[str, Any]:
    """The arguments in ``{'name': value, ...}`` or ``Name(name=value, ...)`` as Python prints them.

    Values are parsed as literals, never run; one that is no literal (an object's repr) is kept as its text.

    >>> arguments("{'model': 'm', 'max_model_len': 2048, 'mode': <Mode.X: 2>}")
    {'model': 'm', 'max_model_len': 2048, 'mode': '<Mode.X: 2>'}
    >>> arguments("ServerArgs(tp_size=4, dtype='auto')")
    {'tp_size': 4, 'dtype': 'auto'}
    """
    opening = min((at for at in (text.find("{"), text.find("(")) if at >= 0), default=-1)
    separator = ":" if text[opening : opening + 1] == "{" else "="
    found: dict[str, Any] = {}
    for item in _items(text[opening + 1 :]):
        name, mark, value = item.partition(separator)
        if mark:
            found[name.strip().strip("'\"")] = _literal(value.strip())
    return found


SECRET_NAME = re.compile("key|token$|secret|password|credential", re.IGNORECASE)
"""Names of arguments and settings that are not kept: their values may be secrets."""

_SECRET_IN_TEXT = re.compile(
    r"""((?:key|token\b|secret|password|credential)[\w-]{0,40}\\*['"]?\s*[=:]\s*)"""
    r"""(\\*'(?:[^'\\]|\\.)*'?|\\*"(?:[^"\\]|\\.)*"?|\[[^\]]*\]?|\{[^}]*\}?|[^\s,;)}\]]+)""",
    re.IGNORECASE,
)


def without_secrets(value: Any) -> Any:
    """``value`` without entries whose names are those of secrets (`SECRET_NAME`), at any depth.

    In texts, which may be JSON or an object's repr, what follows such a name is replaced by ``***``.

    >>> without_secrets({"seed": 0, "api_key": ["sk-1"], "extra": [{"hf_token": "t"}], "config": "C(token='t', n=1)"})
    {'seed': 0, 'extra': [{}], 'config': 'C(token=***, n=1)'}
    """
    if isinstance(value, dict):
        return {k: without_secrets(v) for k, v in value.items() if not (isinstance(k, str) and SECRET_NAME.search(k))}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map(without_secrets, value))
    return _SECRET_IN_TEXT.sub(r"\1***", value) if isinstance(value, str) else value


def _items(text: str) -> Iterator[str]:
    """The parts between commas that stand in no bracket and no string, to the bracket that closes the whole."""
    depth, quote, start, skip = 0, "", 0, False
    for i, char in enumerate(text):
        if skip or char == "\\":
            skip = not skip
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{<":
            depth += 1
        elif char == "," and not depth:
            yield text[start:i]
            start = i + 1
        elif char in ")]}>":
            depth -= 1
            if depth < 0:
                yield text[start:i]
                return
    yield text[start:]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


_BACKENDS = (
    re.compile(
        r"Using (?:AttentionBackendEnum\.)?((?:[\w-]+ ){0,2}?[\w-]+?) (?:attention )?backend(?:\.|,|$| on V1| out of)"
    ),
    re.compile(r"Use (\w+) (?:attention )?backend by default"),
)

_SAMPLERS = (
    ("Using FlashInfer for top-p & top-k sampling", "flashinfer"),
    ("Using Triton for top-p & top-k sampling", "triton"),
    ("PyTorch-native implementation of top-p & top-k", "torch"),
    ("top-p/top-k sampling is available but disabled", "torch"),
)

_SWITCHES = (
    ("Asynchronous scheduling is enabled", "async_scheduling", True),
    ("Asynchronous scheduling is disabled", "async_scheduling", False),
    ("Chunked prefill is enabled", "chunked_prefill", True),
    ("Automatic prefix caching is enabled", "prefix_caching", True),
    ("Prefix caching is disabled", "prefix_caching", False),
)


def _take_choices(log: EngineLog, line: str) -> None:
    """Attention backend, sampler path, and what is switched on."""
    if log.attention_backend is None and "ackend" in line and "MoE" not in line and "MMEncoder" not in line:
        match = next((m for pattern in _BACKENDS if (m := pattern.search(line))), None)
        log.attention_backend = match[1] if match else None
    if "ampling" in line:
        log.sampler = next((name for mark, name in _SAMPLERS if mark in line), log.sampler)
    for mark, name, value in _SWITCHES:
        if mark in line:
            setattr(log, name, value)


_POOL = re.compile(
    rf"KV Cache is allocated\..*?#tokens: (\d+), (?:K size: ({SIZE}), V size: ({SIZE})|KV size: ({SIZE}))"
    rf"|llama_kv_cache\w*:\s+size\s*=\s*({SIZE}) \(\s*(\d+) cells"
    rf"|KV self size\s*=\s*({SIZE})"
)
_OTHER_RANK = re.compile(r"\[\d{4}-[^\]]*\b[TPD]P[1-9]\d*\b")
_BUFFER = re.compile(rf"(model|compute) buffer size\s*=\s*({SIZE})")


def _take_pools(reader: _Reader, line: str) -> None:
    """KV pools of which an engine prints several that add up (target and draft model, window and full layers)."""
    if "KV Cache is allocated" in line or "llama_kv_cache" in line or "KV self size" in line:
        match = _POOL.search(line)
        if match and not _OTHER_RANK.search(line):
            tokens = _whole(match[1] or match[6] or "0")
            reader.pools.append((tokens, [_size(match[i]) for i in (2, 3, 4, 5, 7) if match[i]]))
    elif " buffer size" in line and (match := _BUFFER.search(line)):
        reader.buffers.setdefault(match[1], []).append(_size(match[2]))


def _size(text: str) -> str:
    """The text of a size that can be read. Raises `InputError` for one that cannot."""
    parse_bytes(text)
    return text


def _iteration(line: str) -> Row | None:
    match = _ITERATION.search(line)
    if match is None:
        return None
    usage = match[9]
    return {
        "replica": _whole(match[1] or match[2] or "0", MOST_REPLICAS),
        "iteration": _whole(match[3]),
        "context_requests": _whole(match[4]),
        "context_tokens": _whole(match[5]),
        "generation_requests": _whole(match[6]),
        "generation_tokens": _whole(match[7]),
        "elapsed_s": _number(match[8]) / 1000,
        "kv_usage": _number(usage) / 100 if usage else None,
    }


_ITERATION = re.compile(
    r"(?:EngineCore_DP(\d+)\b.*?)?(?:Engine (\d+): )?Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, "
    r"(\d+) generation requests, (\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
    r"(?:, \w+ KV cache usage: ([\d.]+)%)?"
)

_NUMBER = r"(nan|[\d.]*\d)"
_INTERVAL = {
    "prompt_tok_per_s": re.compile(rf"Avg prompt throughput: {_NUMBER} tokens/s"),
    "generation_tok_per_s": re.compile(rf"Avg generation throughput: {_NUMBER} tokens/s"),
    "running": re.compile(r"Running: (\d+) reqs"),
    "waiting": re.compile(r"(?:Waiting|Pending): (\d+) reqs"),
    "swapped": re.compile(r"Swapped: (\d+) reqs"),
    "gpu_kv": re.compile(rf"(?!CPU)\b\w+ KV cache usage: {_NUMBER}%"),
    "cpu_kv": re.compile(rf"CPU KV cache usage: {_NUMBER}%"),
    "prefix_cache_hit_rate": re.compile(rf"(?<!External )[Pp]refix cache hit rate: {_NUMBER}%"),
    "external_prefix_cache_hit_rate": re.compile(rf"External prefix cache hit rate: {_NUMBER}%"),
    "mm_cache_hit_rate": re.compile(rf"MM cache hit rate: {_NUMBER}%"),
}
_PERCENT = ("gpu_kv", "cpu_kv", "prefix_cache_hit_rate", "external_prefix_cache_hit_rate", "mm_cache_hit_rate")
_WHOLE = ("running", "waiting", "swapped")
_ENGINE = re.compile(r"Engine (\d+): ")

_AMENDS = (
    ("prefix_cache_hit_rate", re.compile(r"Prefix cache hit rate: GPU: ([\d.]*\d)%"), 0.01),
    ("spec_decode_accept_length", re.compile(r"Mean acceptance length: ([\d.]*\d)"), 1),
    ("spec_decode_acceptance_rate", re.compile(r"Avg Draft acceptance rate: ([\d.]*\d)%"), 0.01),
)


def _interval(line: str) -> Row | None:
    """One of vLLM's lines of every 5 or 10 seconds; the row of all engines together has no replica."""
    row: Row = {"replica": None if "Engines Aggregated" in line else 0, "line": "interval"}
    if match := _ENGINE.search(line):
        row["replica"] = _whole(match[1], MOST_REPLICAS)
    for name, pattern in _INTERVAL.items():
        found = pattern.search(line)
        if found and found[1] != "nan":
            row[name] = _whole(found[1]) if name in _WHOLE else _number(found[1]) / (100 if name in _PERCENT else 1)
    gpu, cpu = row.pop("gpu_kv", None), row.pop("cpu_kv", None)
    row["kv_usage"] = cpu if gpu is None else gpu
    if gpu is not None and cpu is not None:
        row["cpu_kv_usage"] = cpu
    return row if "running" in row else None


_BATCH = {
    "running": re.compile(r"#running-req: ([\d.]*\d)"),
    "waiting": re.compile(r"#queue-req: ([\d.]*\d)"),
    "kv_used_tokens": re.compile(r"#(?:full )?token: ([\d.]*\d)"),
    "kv_usage": re.compile(r"(?<!swa )(?<!mamba )(?:token|full token) usage: ([\d.]*\d)"),
    "generation_tok_per_s": re.compile(r"gen throughput \(token/s\): ([\d.]*\d)"),
    "prompt_tok_per_s": re.compile(r"input throughput \(token/s\): ([\d.]*\d)"),
    "new_requests": re.compile(r"#new-seq: ([\d.]*\d)"),
    "new_tokens": re.compile(r"#new-token: ([\d.]*\d)"),
    "cached_tokens": re.compile(r"#cached-token: ([\d.]*\d)"),
    "spec_decode_accept_length": re.compile(r"accept len: ([\d.]*\d)"),
}
_FLOATS = ("kv_usage", "generation_tok_per_s", "prompt_tok_per_s", "spec_decode_accept_length")
_DP = re.compile(r"\[\d{4}-[^\]]*\bDP(\d+)\b")


def _batch(line: str) -> Row | None:
    """One of SGLang's batch lines. Of tensor-parallel ranks the first counts; a data-parallel one is a replica."""
    replica = _DP.search(line)
    if replica is None and _OTHER_RANK.search(line):
        return None
    row: Row = {
        "replica": _whole(replica[1], MOST_REPLICAS) if replica else 0,
        "line": "decode" if "ecode batch" in line else "prefill",
    }
    for name, pattern in _BATCH.items():
        found = pattern.search(line)
        if found:
            row[name] = _number(found[1]) if name in _FLOATS else _whole(found[1])
    return row if "running" in row else None


def _finish(reader: _Reader, year: int | None, zone: tzinfo | None, written_unix_s: float) -> EngineLog:
    log, clock = reader.log, reader.clock
    default = datetime.fromtimestamp(written_unix_s, zone).year
    unix_s = clock.unix_s(year or default, zone, written_unix_s, guess=year is None)
    log.first_unix_s, log.last_unix_s, log.ready_unix_s = unix_s(clock.first), unix_s(clock.last), unix_s(reader.ready)
    log.periodic, log.iterations = _columns(reader.periodic, unix_s), _columns(reader.iterations, unix_s)
    _add_up(log, reader)
    _fill_from_flags(log)
    _remark(log, reader)
    return log


def _columns(rows: list[Row], unix_s: Callable[[Any], float | None]) -> Columns:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    if rows:
        columns["time_unix_s"] = [unix_s(stamp) for stamp in columns["time_unix_s"]]
    return columns


def _add_up(log: EngineLog, reader: _Reader) -> None:
    """Pools and buffers that add up to one figure."""
    for name, sizes in (
        ("kv_cache_memory_bytes", [size for _, pool in reader.pools for size in pool]),
        ("weight_bytes", reader.buffers.get("model", [])),
        ("activation_peak_bytes", reader.buffers.get("compute", [])),
    ):
        if sizes and getattr(log, name) is None:
            setattr(log, name, sum(parse_bytes(size, name) for size in sizes))
            log.printed[name] = " + ".join(sizes)
    if reader.pools and log.kv_cache_tokens is None:
        log.kv_cache_tokens = max(tokens for tokens, _ in reader.pools) or None


_FROM_FLAGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model", ("model", "model_tag", "model_path")),
    ("max_model_len", ("max_model_len", "context_length")),
    ("max_num_batched_tokens", ("max_num_batched_tokens",)),
    ("max_num_seqs", ("max_num_seqs", "max_running_requests")),
    ("gpu_memory_utilization", ("gpu_memory_utilization",)),
    ("async_scheduling", ("async_scheduling",)),
    ("prefix_caching", ("enable_prefix_caching",)),
    ("chunked_prefill", ("enable_chunked_prefill",)),
    ("attention_backend", ("attention_backend",)),
)


def _fill_from_flags(log: EngineLog) -> None:
    """What the lines do not say but the arguments do."""
    for field, names in _FROM_FLAGS:
        value = next((log.flags[name] for name in names if log.flags.get(name) is not None), None)
        if getattr(log, field) is None and value is not None:
            setattr(log, field, value)
    if log.engine == "sglang" and log.flags:
        log.async_scheduling = not log.flags.get("disable_overlap_schedule", False)
        log.prefix_caching = not log.flags.get("disable_radix_cache", False)


def _read_gb_as_gib(log: EngineLog) -> None:
    """Two engines print "GB" and mean 2**30."""
    named = [name for name, text in log.printed.items() if "GB" in text] if log.engine in ("vllm", "sglang") else []
    for name in named:
        parts = log.printed[name].replace("GB", "GiB").split(" + ")
        setattr(log, name, sum(parse_bytes(part, name) for part in parts))
    if named:
        log.notes.append(f"{', '.join(named)}: printed as GB by an engine that divides by 2**30: read as GiB")


def _remark(log: EngineLog, reader: _Reader) -> None:
    if reader.starts > 1:
        log.notes.append(f"the log holds {reader.starts} starts of a server: the last is described")
    if reader.passed_over:
        log.notes.append(f"{reader.passed_over} lines with a figure that is no number are passed over")
    _read_gb_as_gib(log)
    if len(reader.pools) > 1:
        log.notes.append(f"{len(reader.pools)} KV caches are added up: {log.printed['kv_cache_memory_bytes']}")
    if reader.periodic or reader.iterations:
        log.notes.append(
            "the log's times are to the second, without zone: taken as the zone given, else this machine's"
        )


STEP_NAMES = {
    "iteration": "iteration",
    "context_requests": "step_context_requests",
    "context_tokens": "step_context_tokens",
    "generation_requests": "step_generation_requests",
    "generation_tokens": "step_generation_tokens",
    "elapsed_s": "step_s",
}
"""`EngineLog.iterations` in the server table, where ``generation_tokens`` is a counter's name."""


def server_columns(log: EngineLog, started_unix_s: float, stop_unix_s: float | None = None) -> Columns:
    """The interval and step lines as columns for `Run.server`, between two times in seconds since 1970.

    ``time_s`` is on the run's clock (0 at ``started_unix_s``) and to the second, as the log is: a line's time is cut
    off to its second, so lines from up to a second before the start are at 0. ``line`` says what a row is:
    ``interval``, ``prefill``, ``decode`` or ``step``; a step's ``running`` is its context and generation requests.
    """
    rows = [*_table_rows(log.periodic), *(_step(row) for row in _table_rows(log.iterations))]
    stop = float("inf") if stop_unix_s is None else stop_unix_s
    kept = [r for r in rows if (t := r.pop("time_unix_s")) is not None and started_unix_s - 1 < t <= stop and _at(r, t)]
    for row in kept:
        row["time_s"] = max(row["time_s"] - started_unix_s, 0.0)
    kept.sort(key=lambda row: row["time_s"])
    names = ["time_s", "replica", "running", "waiting", "kv_usage", "preemptions"]
    names += [name for name in dict.fromkeys(n for row in kept for n in row) if name not in names]
    return {name: [row.get(name) for row in kept] for name in names}


def _at(row: Row, time_unix_s: float) -> bool:
    row["time_s"] = time_unix_s
    return True


def _table_rows(columns: Mapping[str, list[Any]]) -> list[Row]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _step(row: Row) -> Row:
    renamed = {STEP_NAMES.get(name, name): value for name, value in row.items()}
    return {**renamed, "line": "step", "running": row["context_requests"] + row["generation_requests"]}
