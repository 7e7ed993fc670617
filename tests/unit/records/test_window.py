"""Metrics of a run of which only a part is measured, and those that only a measurement has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.records.metrics import relative_half_width, wilson_interval
from inferometer.records.run import Run, RunMeta, TokenTimes, make_run


def steady(window: tuple[float, float | None] | None, token_times: bool = True) -> Run:
    """One user, one request a second: first token after 0.2 s, then 8 more to 1.0 s, back to back, for 20 s."""
    sent = np.arange(20.0)
    gaps = np.linspace(0.2, 1.0, 9)
    times = (sent[:, None] + gaps).ravel()
    columns = {
        "sent_s": sent,
        "first_token_s": sent + 0.2,
        "last_token_s": sent + 1.0,
        "end_s": sent + 1.0,
        "prompt_tokens": np.full(20, 100),
        "output_tokens": np.full(20, 9),
    }
    ragged = TokenTimes(np.arange(0, 181, 9), times) if token_times else None
    return make_run(RunMeta(kind="measured", concurrency=1, window_s=window), columns, token_times=ragged)


def test_the_window_counts_what_was_sent_in_it_and_what_happened_in_it() -> None:
    summary = steady((4.5, 14.5)).summary()
    assert summary.requests == 10
    assert summary.ttft_s.n == 10
    assert summary.duration_s == 10.0
    # half of request 4 and half of request 14 lie inside: together one
    assert summary.output_tok_per_s == pytest.approx(9.0, abs=0.11)
    assert summary.request_per_s == 1.0
    assert summary.total_tok_per_s == pytest.approx(109.0, abs=0.11)
    assert summary.mean_in_flight == pytest.approx(1.0)


def test_a_request_that_straddles_counts_for_its_tokens_inside_without_token_times_too() -> None:
    with_times, without = steady((4.5, 14.5)).summary(), steady((4.5, 14.5), token_times=False).summary()
    assert with_times.output_tok_per_s is not None
    assert without.output_tok_per_s == pytest.approx(with_times.output_tok_per_s, rel=0.02)


def test_answers_that_were_not_streamed_count_at_their_end() -> None:
    run = steady((4.5, 14.5))
    bare = run.requests.drop("first_token_s", "last_token_s")
    summary = make_run(run.meta, bare, token_times=TokenTimes(np.zeros(21, dtype=int), np.empty(0))).summary()
    assert (summary.output_tok_per_s, summary.total_tok_per_s) == (9.0, 109.0)
    assert make_run(run.meta, bare).summary().output_tok_per_s == 9.0


def test_an_open_window_ends_with_the_last_answer() -> None:
    assert steady((10.0, None)).summary().duration_s == 10.0


def test_goodput_is_of_the_requests_sent_in_the_window() -> None:
    good = steady((4.5, 14.5)).summary().goodput(ttft_s=0.3)
    assert (good.n, good.attainment) == (10, 1.0)


def test_without_a_window_nothing_changes() -> None:
    whole, all_of_it = steady(None).summary(), steady((0.0, None)).summary()
    assert whole.output_tok_per_s == all_of_it.output_tok_per_s == 9.0


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=20))
def test_the_peak_is_never_below_the_mean(requests: list[tuple[float, int, int]]) -> None:
    """vllm#37666: a peak counted in chunks fell below the mean where chunks hold several tokens."""
    offsets, times, rows = [0], [], []
    for sent, events, per_event in requests:
        at = sent + 0.1 * np.arange(1, events + 1)
        times.append(at)
        offsets.append(offsets[-1] + events)
        rows.append((sent, at[0], at[-1], at[-1], events * per_event))
    sent_s, first, last, end, tokens = zip(*rows, strict=True)
    columns = {"sent_s": sent_s, "first_token_s": first, "last_token_s": last, "end_s": end, "output_tokens": tokens}
    run = make_run(RunMeta(kind="measured"), columns, token_times=TokenTimes(np.array(offsets), np.concatenate(times)))
    summary = run.summary()
    assert summary.peak_output_tok_per_s is not None
    assert summary.output_tok_per_s is not None
    assert summary.peak_output_tok_per_s >= summary.output_tok_per_s * (1 - 1e-9)


def test_first_content_is_apart_from_the_first_token() -> None:
    columns = {"sent_s": [0.0], "first_token_s": [0.1], "first_content_s": [0.9], "last_token_s": [1.0], "end_s": [1.0]}
    summary = make_run(RunMeta(kind="measured"), {**columns, "output_tokens": [10]}).summary()
    assert (summary.ttft_s.mean, summary.first_content_s.mean) == (0.1, 0.9)


def test_wilson_contains_the_share_and_narrows() -> None:
    low, high = wilson_interval(90, 100)
    assert low < 0.9 < high
    wide, narrow = high - low, np.subtract(*wilson_interval(900, 1000)[::-1])
    assert narrow < wide / 2.5
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(100, 100)[1] == pytest.approx(1.0)


def test_half_width_of_independent_values_is_near_the_textbook_one() -> None:
    values = np.random.default_rng(0).exponential(1.0, 10_000)
    run = make_run(RunMeta(kind="measured"), {"sent_s": np.zeros(10_000), "end_s": values})
    found = relative_half_width(run, "e2e_s")
    textbook = 1.96 * values.std() / np.sqrt(10_000) / values.mean()
    assert found == pytest.approx(textbook, rel=0.4)


def test_half_width_of_values_that_drift_is_wider_than_the_textbook_one() -> None:
    values = np.linspace(1.0, 2.0, 10_000)
    run = make_run(RunMeta(kind="measured"), {"sent_s": np.zeros(10_000), "end_s": values})
    found = relative_half_width(run, "e2e_s")
    assert found is not None
    assert found > 10 * 1.96 * values.std() / np.sqrt(10_000) / values.mean()


def test_half_width_needs_two_values_a_batch() -> None:
    run = make_run(RunMeta(kind="measured"), {"sent_s": [0.0] * 39, "end_s": [1.0] * 39})
    assert relative_half_width(run, "e2e_s") is None
