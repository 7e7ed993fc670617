"""How a benchmark is run, beyond what is sent: prompts, when to stop, the connection, what is watched and kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from inferometer.errors import InputError
from inferometer.specs.checks import known_keys, not_negative, positive, whole


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `bench`, each with its default. Made and checked by `options`."""

    # prompts
    dataset: str | None = None
    """A file of prompts: ShareGPT-style JSON, JSON lines, or plain lines of text. None: random prompts."""
    dataset_output_tokens: int | None = None
    """Ask for so many of every prompt of the dataset, instead of what the file says of each."""
    tokenizer: str | None = None
    """A tokenizer.json or its folder, to count prompts exactly where the server takes no token ids."""
    shared_prefix_len: int = 0
    """Tokens that requests share at the start of their prompts (they count as part of ``prompt_tokens``)."""
    prefix_reuse: int | None = None
    """How many requests share each prefix; None: all share one."""
    cache_salt: str | None = None
    """vLLM's ``cache_salt``: ``fresh`` gives every request its own, so that nothing of it can be in a cache."""
    ignore_eos: bool = True
    """Ask for exactly ``output_tokens``, where the server knows the field."""
    stream: bool = True
    extra_body: dict[str, Any] = {}
    """Further fields of the request body, such as ``{"temperature": 1.0}``."""
    seed: int | None = None
    """Of lengths, arrivals and prompts. None: a fresh one for every point, recorded with the run."""

    # load and stop
    max_concurrency: int | None = None
    """Open loop: at most so many in flight; what it holds back is reported as the client's queue."""
    ramp_up_s: float = 0.0
    """Closed loop: the users start one by one over so long. Open loop: the rate rises from 0 over so long."""
    warmup_requests: int = 0
    """The first so many are sent and recorded, and left out of the figures."""
    warmup_s: float = 0.0
    """The same by time."""
    duration_s: float | None = None
    """Send no more after so long; a closed loop goes on until then, however many requests that takes."""
    min_duration_s: float = 0.0
    """Go on at least so long."""
    min_requests: int = 0
    """Go on for at least so many, where a target confidence would stop earlier."""
    confidence: float | None = None
    """Stop once the 95 % interval of the mean of each of ``confidence_metrics`` is within this share of it (0.05)."""
    confidence_metrics: tuple[str, ...] = ("ttft_s", "tpot_s")
    drain_timeout_s: float = 600.0
    """After the last was sent, wait at most so long for answers."""
    give_up_after_s: float = 60.0
    """Stop where for so long requests fail and none succeeds."""
    workers: int | None = None
    """Client processes, at most one a user. None: one for every 512 users or 5,000 requests/s, while cores last."""

    # connection
    api_key: str | None = None
    """A bearer token. None: that of the environment, ``INFEROMETER_API_KEY`` or ``OPENAI_API_KEY``."""
    headers: dict[str, str] | tuple[tuple[str, str], ...] = {}
    verify: bool = True
    """Check the server's TLS certificate."""
    ca_file: str | None = None
    connect_timeout_s: float = 10.0
    timeout_s: float = 600.0
    """Of a whole request."""
    idle_timeout_s: float = 120.0
    """Between two pieces of one answer."""

    # what is watched and kept
    scrape_interval_s: float = 1.0
    gpu_metrics_urls: tuple[str, ...] = ()
    """Exporters of GPU telemetry (DCGM, NVML) to scrape beside the server."""
    store: str | Literal[False] | None = None
    """Folder to keep the run in; None: ``INFEROMETER_STORE``, else ``.inferometer`` here; False: it is not kept."""
    chip: str | None = None
    """What the server runs on, as a label of the run: nothing is looked up."""
    arm: str | None = None
    """The arm of a study that is measured, as a label: what the run is scored against."""
    slo: dict[str, float] = {}
    """Limits to record with the run (``ttft_s``, ``tpot_s``, ..., ``attainment``): nothing is judged by them here."""
    name: str = ""


CONFIDENCE_METRICS = ("ttft_s", "tpot_s", "e2e_s")
"""What a target confidence can be asked of."""

_WHOLE = {"shared_prefix_len": 0, "warmup_requests": 0, "min_requests": 0}
_WHOLE_OR_NONE = {"prefix_reuse": 1, "dataset_output_tokens": 1, "max_concurrency": 1, "workers": 1, "seed": 0}
_TIMES = ("connect_timeout_s", "timeout_s", "idle_timeout_s", "give_up_after_s", "scrape_interval_s")
_TIMES_OR_ZERO = ("ramp_up_s", "warmup_s", "min_duration_s", "drain_timeout_s")


def options(given: Mapping[str, Any]) -> BenchOptions:
    """The options given by name, the others at their defaults.

    Raises:
        InputError: a name that is no option (close ones are suggested), or a value that is not allowed.

    >>> options({"warmup_requests": 8}).warmup_requests
    8
    """
    known_keys("", given, BenchOptions.__struct_fields__)
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    for name, value in values.items():
        _check(name, value)
    try:
        found = msgspec.convert(values, BenchOptions)
    except msgspec.ValidationError as why:
        name = str(why).partition("`$.")[2].rstrip("`") or "options"
        raise InputError(name, values.get(name), str(why).partition(" - at")[0].lower()) from why
    _check_together(found)
    return found


def _check(name: str, value: Any) -> None:
    if name in _WHOLE:
        whole(name, value, _WHOLE[name])
    elif name in _WHOLE_OR_NONE and value is not None:
        whole(name, value, _WHOLE_OR_NONE[name])
    elif name in _TIMES or (name == "duration_s" and value is not None):
        positive(name, value, "a number of seconds")
    elif name in _TIMES_OR_ZERO:
        not_negative(name, value, "a number of seconds")
    elif name == "confidence" and value is not None and not 0 < positive(name, value) < 1:
        raise InputError(name, value, "a share of the mean between 0 and 1, such as 0.05")
    elif name == "store" and value is True:
        raise InputError(name, value, "a folder, None for the usual one, or False to keep nothing")


def _check_together(found: BenchOptions) -> None:
    if found.confidence is not None and not found.stream and found.confidence_metrics != ("e2e_s",):
        raise InputError("confidence_metrics", found.confidence_metrics, "e2e_s alone where answers are not streamed")
    for metric in found.confidence_metrics:
        if metric not in CONFIDENCE_METRICS:
            raise InputError("confidence_metrics", metric, f"metrics of {', '.join(CONFIDENCE_METRICS)}")
    if found.prefix_reuse is not None and not found.shared_prefix_len:
        raise InputError("prefix_reuse", found.prefix_reuse, "it only with shared_prefix_len: there is no prefix")
    if found.dataset and found.shared_prefix_len:
        raise InputError("shared_prefix_len", found.shared_prefix_len, "it only for random prompts, not with a dataset")
    if found.dataset_output_tokens is not None and not found.dataset:
        raise InputError("dataset_output_tokens", found.dataset_output_tokens, "it only with a dataset")
    if found.warmup_requests and found.warmup_s:
        raise InputError("warmup_s", found.warmup_s, "either warmup_s or warmup_requests")
    if found.duration_s is not None and found.duration_s <= max(found.warmup_s, found.min_duration_s - 1e-9):
        longest = max(found.warmup_s, found.min_duration_s)
        raise InputError("duration_s", found.duration_s, f"more than warm-up and minimum, which are {longest:g} s")
