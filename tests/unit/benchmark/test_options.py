import pytest

from inferometer.benchmark.options import BenchOptions, options
from inferometer.errors import InputError


def test_defaults() -> None:
    assert options({}) == BenchOptions()


def test_lists_are_taken_for_tuples() -> None:
    assert options({"gpu_metrics_urls": ["http://a/metrics"]}).gpu_metrics_urls == ("http://a/metrics",)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"warmup_request": 1}, ["warmup_request", "warmup_requests"]),
        ({"warmup_requests": -1}, ["warmup_requests", "-1"]),
        ({"workers": 0}, ["workers", "0", "at least 1"]),
        ({"timeout_s": 0}, ["timeout_s", "0"]),
        ({"ramp_up_s": -1.0}, ["ramp_up_s", "-1"]),
        ({"confidence": 2}, ["confidence", "2", "0.05"]),
        ({"confidence_metrics": ["speed"]}, ["confidence_metrics", "speed", "ttft_s"]),
        ({"prefix_reuse": 4}, ["prefix_reuse", "shared_prefix_len"]),
        ({"dataset": "a.json", "shared_prefix_len": 5}, ["shared_prefix_len", "dataset"]),
        ({"warmup_requests": 1, "warmup_s": 1.0}, ["warmup_s"]),
        ({"duration_s": 5.0, "warmup_s": 5.0}, ["duration_s", "5"]),
        ({"store": True}, ["store", "True"]),
        ({"ignore_eos": "yes"}, ["ignore_eos", "yes", "bool"]),
        ({"headers": ["a"]}, ["headers"]),
        ({"confidence": 0.1, "stream": False}, ["confidence_metrics", "e2e_s alone"]),
        ({"seed": 1.5}, ["seed", "1.5"]),
    ],
)
def test_what_is_not_allowed_is_named(given: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        options(given)
    assert all(word in str(caught.value) for word in words), str(caught.value)
