"""What spoils a measurement, and what its reader must know."""

from typing import Any

import numpy as np
import pytest

from inferometer.benchmark.fitness import remarks, unfit
from inferometer.records.run import Run, RunMeta, make_run


def run(n: int = 100, users: int = 10, columns: dict[str, Any] | None = None, server: Any = None, **meta: Any) -> Run:
    sent = np.repeat(np.arange(n // users, dtype=float), users)[:n]
    own = {
        "scheduled_s": sent,
        "sent_s": sent,
        "first_token_s": sent + 0.1,
        "last_token_s": sent + 1.0,
        "end_s": sent + 1.0,
        "prompt_tokens": np.full(n, 100),
        "output_tokens": np.full(n, 10),
    }
    return make_run(RunMeta(kind="measured", **{"concurrency": users, **meta}), own | (columns or {}), server)


def sampled(running: float, until: int = 10) -> dict[str, Any]:
    times = np.arange(0.5, until, 1.0)
    return {"time_s": times, "running": np.full(times.size, running), "waiting": np.zeros(times.size)}


def test_a_sound_run_is_fit_and_needs_no_remark() -> None:
    sound = run(server=sampled(10), client={"cpu_share": 0.3, "lateness_s.p99": 0.001, "loop_lag_s.p99": 0.001})
    assert unfit(sound, sound.summary()) == []
    assert remarks(sound, sound.summary()) == []


@pytest.mark.parametrize(
    ("client", "word"),
    [
        ({"cpu_share": 0.97}, "bottleneck"),
        ({"lateness_s.p99": 0.05}, "late"),
        ({"loop_lag_s.p99": 0.05}, "stalled"),
    ],
)
def test_a_client_that_was_the_bottleneck(client: dict[str, float], word: str) -> None:
    (found,) = unfit(made := run(client=client), made.summary())
    assert word in found


def test_lateness_that_does_not_show_in_a_long_ttft_is_no_fault() -> None:
    slow = run(columns={"first_token_s": np.repeat(np.arange(10.0), 10) + 0.9}, client={"lateness_s.p99": 0.05})
    assert unfit(slow, slow.summary()) == []


def test_lateness_under_a_cap_is_the_caps_effect() -> None:
    capped = run(request_rate_per_s=20.0, client={"lateness_s.p99": 3.0})
    assert unfit(capped, capped.summary()) == []


def test_a_hidden_cap_between_client_and_server() -> None:
    """guidellm#487, tt-inference-server#704: the configured concurrency is not what the server saw."""
    (found,) = unfit(made := run(server=sampled(4)), made.summary())
    assert "4.0" in found
    assert "holds requests back" in found


def test_others_on_the_server() -> None:
    (found,) = unfit(made := run(server=sampled(30)), made.summary())
    assert "others use the server" in found


def test_few_requests_a_user() -> None:
    """dynamo PR#6777: ten requests at concurrency ten."""
    few = run(n=10, users=10)
    assert any("at least 3 a user" in text for text in remarks(few, few.summary()))
    enough = run(n=30, users=10)
    assert remarks(enough, enough.summary()) == []


def test_failures_are_counted_by_class() -> None:
    errors: list[str | None] = [None] * 97 + ["http 503: busy", "http 503: busy", "timeout: no answer"]
    failed = run(columns={"error": errors})
    (found,) = remarks(failed, failed.summary())
    assert found == "3 of 100 requests failed (2 http 503, 1 timeout)"


def test_short_answers() -> None:
    short = run(columns={"asked_output_tokens": np.full(100, 64)})
    assert any("100 of 100 answers ended before" in text for text in remarks(short, short.summary()))


def test_no_usage() -> None:
    counted = run(columns={"output_counted_by": ["events"] * 100})
    assert any("no usage" in text for text in remarks(counted, counted.summary()))


def test_hidden_reasoning_flags_the_ttft() -> None:
    """genai-bench#81: the first visible chunk comes after reasoning that is billed and not streamed."""
    first = np.repeat(np.arange(10.0), 10) + 0.1
    hidden = run(columns={"reasoning_tokens": np.full(100, 5), "first_content_s": first})
    assert any("hide reasoning" in text for text in remarks(hidden, hidden.summary()))
    shown = run(columns={"reasoning_tokens": np.full(100, 5), "first_content_s": first + 0.5})
    assert not any("hide reasoning" in text for text in remarks(shown, shown.summary()))


def test_a_warm_cache_is_found_through_the_counters() -> None:
    """vllm#52884, #54227: the seed of one point's prompts was that of the next."""
    counters = {"prefix_cache_queries": 10_000.0, "prefix_cache_hits": 5_800.0}
    warm = run(counters=counters)
    assert any(text.startswith("58% of the prompt tokens") for text in remarks(warm, warm.summary()))
    asked = run(counters=counters, workload={"shared_prefix_len": 58})
    assert remarks(asked, asked.summary()) == []


def test_a_warm_cache_by_other_engines_counters() -> None:
    warm = run(counters={"prompt_tokens": 10_000.0, "cached_prompt_tokens": 500.0})
    assert any(text.startswith("5% of the prompt tokens") for text in remarks(warm, warm.summary()))


def test_more_chunks_than_tokens() -> None:
    odd = run(columns={"token_events": np.full(100, 11), "output_counted_by": ["usage"] * 100})
    assert any("100 answers had more chunks" in text for text in remarks(odd, odd.summary()))


def test_requests_sent_twice_are_said() -> None:
    twice = run(client={"stale": 3.0})
    assert any(text.startswith("3 requests were sent twice") for text in remarks(twice, twice.summary()))


def test_a_wall_clock_that_was_set_during_the_run_is_said() -> None:
    (found,) = remarks(made := run(client={"clock_step_s": -1.9}), made.summary())
    assert "the wall clock was set by -1.90 s" in found
    assert unfit(made, made.summary()) == []
    hardly = run(client={"clock_step_s": 0.01})
    assert remarks(hardly, hardly.summary()) == []


def test_a_run_of_no_requests_is_unfit() -> None:
    empty = make_run(RunMeta(kind="measured"), {})
    assert unfit(empty, empty.summary()) == ["no request was sent"]


def test_counters_that_disagree_with_the_answers() -> None:
    agree = {"prompt_tokens": 10_000.0, "generation_tokens": 1_000.0}
    same = run(counters=agree)
    assert remarks(same, same.summary()) == []
    other = run(counters=agree | {"generation_tokens": 1_064.0})
    (found,) = remarks(other, other.summary())
    assert "1,064 generation tokens" in found
