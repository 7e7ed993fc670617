"""The ``/metrics`` page: vLLM's names, labels and buckets, counted a step at a time and written when it is asked for.

Names and buckets: ``vllm/v1/metrics/loggers.py`` of 0.32 (engines.md 1.5); older releases' other names: `RENAMED`.
Times are those of the schedule, in real seconds; how late tokens were written is in `LATENESS`.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inferometer.emulator.scheduler import Call, LiveScheduler
from inferometer.sim.rules import RECORD_S

TTFT = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
ITL = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LATE = (.0001, .0002, .0005, .001, .002, .003, .004, .005, .0075, .01, .02, .05, .1, .25, 1, 5, 25)  # fmt: skip
PREEMPTED = (1, 2, 3, 4, 5, 10, 20)

LATENESS = "inferometer:emulator_lateness_seconds"
REASONS = ("stop", "length", "abort", "error", "repetition")
RENAMED = (
    ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", (0, 12)),
    ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries", (0, 12)),
    ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", (0, 12)),
    ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", (0, 16)),
)
"""New name, old name, and the release that no longer has the old one."""
NEW_NAMES_FROM = {"vllm:inter_token_latency_seconds": (0, 10)}
"""The release that first has a new name; the others of `RENAMED` came with 0.9."""
RECENT = 65_536
"""Writes whose lateness is kept exactly."""


def one_two_five(most: int) -> tuple[float, ...]:
    """vLLM's buckets for token counts: 1, 2, 5, 10, ... up to ``max_model_len`` (``build_1_2_5_buckets``).

    >>> one_two_five(60)
    (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    """
    steps = (float(m * 10**e) for e in range(12) for m in (1, 2, 5))
    return tuple(step for step in steps if step <= most)


class Histogram:
    """Counts by upper bound, and the sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(map(float, bounds))
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """The same value, so many times."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times

    def observe_rising(self, values: Sequence[float]) -> None:
        """Values in rising order, at the cost of one search a bound."""
        before = 0
        for i, bound in enumerate(self.bounds):
            upto = bisect.bisect_right(values, bound)
            self.counts[i] += upto - before
            before = upto
        self.counts[-1] += len(values) - before
        self.total += sum(values)

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound, observations up to it), as the exposition has it."""
        rows, upto = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            upto += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(upto)))
        return rows


class Meter:
    """One engine's counters and histograms, fed by the engine a step at a time."""

    def __init__(self, scale: float, max_model_len: int, prefix_caching: bool) -> None:
        tokens = one_two_five(max_model_len)
        self.tick_s, self.prefix_caching = RECORD_S * scale, prefix_caching
        self.prompt_tokens = self.generation_tokens = self.prefix_queries = self.preemptions = 0
        self.reasons: Counter[str] = Counter()
        self.ttft, self.itl, self.tpot = Histogram(TTFT), Histogram(ITL), Histogram(ITL)
        self.e2e, self.queue, self.prefill = Histogram(LATENCY), Histogram(LATENCY), Histogram(LATENCY)
        self.decode, self.inference = Histogram(LATENCY), Histogram(LATENCY)
        self.prompt, self.generation, self.computed = Histogram(tokens), Histogram(tokens), Histogram(tokens)
        self.asked = Histogram(tokens)
        self.iteration, self.preempted, self.lateness = Histogram(ITERATION), Histogram(PREEMPTED), Histogram(LATE)
        self.recent_late_s: deque[float] = deque(maxlen=RECENT)

    def step(self, now: int, previous: Counter[int], started: list[Call], preemptions: int) -> None:
        """A step ended at ``now``: tokens by the tick of the one before them, and requests that got their first."""
        for tick, tokens in previous.items():
            self.itl.observe((now - tick) * self.tick_s, tokens)
        for call in started:
            self.ttft.observe((now - call.arrival) * self.tick_s)
        prompts = sum(call.prompt for call in started)
        tokens = previous.total() + len(started)
        if tokens:
            self.iteration.observe(prompts + tokens)
        self.prompt_tokens += prompts
        self.prefix_queries += prompts if self.prefix_caching else 0
        self.generation_tokens += tokens
        self.preemptions = preemptions

    def finished(self, call: Call) -> None:
        """A request has all its tokens."""
        seconds, decode = self.tick_s, call.last - call.first
        self.reasons[call.reason] += 1
        self.asked.observe(call.max_tokens)
        self.e2e.observe((call.last - call.arrival) * seconds)
        self.queue.observe((call.admitted - call.arrival) * seconds)
        self.prefill.observe((call.first - call.admitted) * seconds)
        self.decode.observe(decode * seconds)
        self.inference.observe((call.last - call.admitted) * seconds)
        self.tpot.observe(decode * seconds / max(1, call.output - 1))
        self.prompt.observe(call.prompt)
        self.computed.observe(call.prompt)
        self.generation.observe(call.output)
        self.preempted.observe(call.preemptions)

    def abort(self) -> None:
        """A client left before its last token."""
        self.reasons["abort"] += 1

    def late(self, times: list[float], due_s: float) -> None:
        """Tokens due at ``due_s`` were written at these rising times (both `time.monotonic`)."""
        late = [max(0.0, at - due_s) for at in times]
        self.lateness.observe_rising(late)
        self.recent_late_s.extend(late)


class Replica:
    """What the page says of one engine."""

    def __init__(self, scheduler: LiveScheduler, meter: Meter, config: dict[str, str]) -> None:
        self.scheduler, self.meter, self.config = scheduler, meter, config

    def gauges(self) -> Iterator[tuple[str, str, float]]:
        """Name, help and value now."""
        s = self.scheduler
        yield "vllm:num_requests_running", "Requests in the batch.", len(s.running)
        yield "vllm:num_requests_waiting", "Requests waiting to be processed.", s.queued
        yield "vllm:kv_cache_usage_perc", "KV cache in use; 1 is all of it.", 1 - s.free / s.rules.blocks

    def counters(self) -> Iterator[tuple[str, str, float]]:
        """Name, help and value so far."""
        m = self.meter
        yield "vllm:prompt_tokens", "Prompt tokens processed.", m.prompt_tokens
        yield "vllm:prompt_tokens_cached", "Prompt tokens found in a cache.", 0
        yield "vllm:generation_tokens", "Tokens generated.", m.generation_tokens
        yield "vllm:num_preemptions", "Preemptions.", m.preemptions
        yield "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", m.prefix_queries
        yield "vllm:prefix_cache_hits", "Tokens found in the prefix cache.", 0

    def histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        """Name, help and counts."""
        m = self.meter
        yield "vllm:time_to_first_token_seconds", "Arrival to first token.", m.ttft
        yield "vllm:inter_token_latency_seconds", "Between a request's tokens.", m.itl
        yield "vllm:request_time_per_output_token_seconds", "Decode time over tokens after the first.", m.tpot
        yield "vllm:e2e_request_latency_seconds", "Arrival to last token.", m.e2e
        yield "vllm:request_queue_time_seconds", "Arrival to first scheduled.", m.queue
        yield "vllm:request_prefill_time_seconds", "First scheduled to first token.", m.prefill
        yield "vllm:request_decode_time_seconds", "First to last token.", m.decode
        yield "vllm:request_inference_time_seconds", "First scheduled to last token.", m.inference
        yield "vllm:request_prompt_tokens", "Prompt tokens of a request.", m.prompt
        yield "vllm:request_generation_tokens", "Generated tokens of a request.", m.generation
        yield "vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed.", m.computed
        yield "vllm:request_params_max_tokens", "Tokens asked for.", m.asked
        yield "vllm:request_num_preemptions", "Preemptions of a request.", m.preempted
        yield "vllm:iteration_tokens_total", "Prompt and generated tokens of a step.", m.iteration
        yield LATENESS, "How late tokens were written after the simulated end of their step.", m.lateness


class Page(Collector):
    """All engines' metrics, made when they are asked for."""

    def __init__(self, model_name: str, release: tuple[int, int], replicas: list[Replica]) -> None:
        self.model_name, self.release, self.replicas = model_name, release, replicas
        self.created_s = time.time()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """The page in Prometheus's text format."""
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: registering asks no engine."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family, under the names that this release has."""
        families = (*self._gauges(), *self._counters(), *self._histograms())
        for family in families:
            yield from self._named(family)
        yield self._requests()
        yield self._config()

    def _named(self, family: Metric) -> Iterator[Metric]:
        renamed = next((row for row in RENAMED if row[0] == family.name), None)
        if not renamed or self.release >= NEW_NAMES_FROM.get(renamed[0], (0, 9)):
            yield family
        if renamed and self.release < renamed[2]:
            yield _under(renamed[1], family)

    def _labels(self, index: int) -> list[str]:
        return [self.model_name, str(index)]

    def _each(self, rows: list[Iterator[tuple[str, str, Any]]]) -> Iterator[tuple[str, str, list[Any]]]:
        """The engines' values of one metric side by side."""
        for same in zip(*rows, strict=True):
            yield same[0][0], same[0][1], [value for _, _, value in same]

    def _gauges(self) -> Iterator[Metric]:
        for name, told, values in self._each([r.gauges() for r in self.replicas]):
            family = GaugeMetricFamily(name, told, labels=["model_name", "engine"])
            for i, value in enumerate(values):
                family.add_metric(self._labels(i), value)
            yield family

    def _counters(self) -> Iterator[Metric]:
        for name, told, values in self._each([r.counters() for r in self.replicas]):
            family = CounterMetricFamily(name, told, labels=["model_name", "engine"])
            for i, value in enumerate(values):
                family.add_metric(self._labels(i), value, created=self.created_s)
            yield family

    def _histograms(self) -> Iterator[Metric]:
        for name, told, values in self._each([r.histograms() for r in self.replicas]):
            family = HistogramMetricFamily(name, told, labels=["model_name", "engine"])
            for i, value in enumerate(values):
                family.add_metric(self._labels(i), value.cumulative(), value.total)
            yield family

    def _requests(self) -> Metric:
        labels = ["model_name", "engine", "finished_reason"]
        family = CounterMetricFamily("vllm:request_success", "Requests that ended, by reason.", labels=labels)
        for i, replica in enumerate(self.replicas):
            for reason in REASONS:
                family.add_metric([*self._labels(i), reason], replica.meter.reasons[reason], created=self.created_s)
        return family

    def _config(self) -> Metric:
        names = list(self.replicas[0].config)
        family = GaugeMetricFamily("vllm:cache_config_info", "The cache's configuration.", labels=["engine", *names])
        for i, replica in enumerate(self.replicas):
            family.add_metric([str(i), *replica.config.values()], 1)
        return family


def _under(name: str, family: Metric) -> Metric:
    """The same family under another name."""
    other = Metric(name, family.documentation, family.type)
    other.samples = [s._replace(name=name + s.name.removeprefix(family.name)) for s in family.samples]
    return other
