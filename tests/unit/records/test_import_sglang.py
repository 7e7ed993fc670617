"""SGLang's bench_serving: milliseconds in its figures, seconds in its arrays, no send times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import load, sglang
from inferometer.records.run import OWN_CLOCK
from result_files import assert_refused_when_cut, edited, stated_and_ours
from shared import shared

PYTHON = "data/bench_outputs/sglang/sglang-0.5.23_python_details.jsonl"
RUST = "data/bench_outputs/sglang/sglang-0.5.23_rust_details.jsonl"
DETAIL = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")


@pytest.mark.parametrize("file", [PYTHON, RUST])
def test_our_figures_are_those_the_tool_states(file: str) -> None:
    (run,) = load(shared(file))
    compared = set()
    for path, stated, ours in stated_and_ours(run):
        # percentiles are linear on both sides; the tool's E2E and TPOT run to the end of the stream, which is not in
        # the file: up to 60 us after the last token
        late = path.startswith(("e2e_s", "tpot_s"))
        assert ours == pytest.approx(stated, rel=2e-3 if late and not path.endswith("std") else 1e-6, abs=5e-5), path
        if not late:
            assert ours == pytest.approx(stated, rel=1e-6), path
        compared.add(path)
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert {f"{name}.{part}" for part in ("mean", "std", "p50", "p90", "p95", "p99")} <= compared
    assert {"output_tok_per_s", "request_per_s", "total_tok_per_s", "completed", "output_tokens"} <= compared


def test_each_request_is_on_its_own_clock() -> None:
    (run,) = load(shared(PYTHON))
    s = run.summary()
    assert (run.meta.clock, run.meta.concurrency, run.meta.request_rate_per_s) == (OWN_CLOCK, 1, None)
    assert (s.littles_law, s.peak_in_flight, s.duration_s) == (None, None, 1.7659683399999722)
    assert run.meta.workload["random_input_len"] == 100
    assert run.meta.stated["mean_in_flight"] == pytest.approx(0.9986484457586332)
    assert run.meta.stated["max_concurrent_requests"] == 3.0  # by buckets of a second: a fault, only kept
    assert "own clock" in run.meta.notes[0]


def test_without_detail_the_figures_are_those_stated(tmp_path: Path) -> None:
    (run,) = load(edited(shared(RUST), tmp_path, lambda r: [r.pop(key) for key in DETAIL]))
    s = run.summary()
    assert (run.requests.height, s.completed, s.output_tokens) == (0, 5, 80)
    assert (s.tpot_s.mean, s.e2e_s.p90) == (pytest.approx(0.020091368773), pytest.approx(0.3697208518))
    assert (s.mean_in_flight, s.request_rate_per_s) == (pytest.approx(0.999797063), None)


def test_a_line_a_run(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    path.write_text(shared(PYTHON).read_text().strip() + "\n" + shared(RUST).read_text())
    assert [run.meta.name for run in load(path)] == ["both-1", "both-2"]


def stopped(retokenized: int) -> Any:
    """Replies that end after 4 of the 16 tokens asked for, listed as 16."""

    def change(result: Any) -> None:
        result["itls"] = [gaps[:3] for gaps in result["itls"]]
        result["total_output_tokens_retokenized"] = retokenized

    return change


def test_fault_9_the_length_asked_for_is_not_that_of_the_reply(tmp_path: Path) -> None:
    (run,) = load(edited(shared(PYTHON), tmp_path, stopped(retokenized=20)))
    s = run.summary()
    assert run.requests["output_tokens"].to_list() == [4] * 5
    assert s.output_tok_per_s == pytest.approx(20 / 1.7659683399999722)
    assert s.tpot_s.mean == pytest.approx(0.0195, abs=1e-3)
    assert run.meta.stated["output_tokens"] == 80
    assert "token events, which are counted instead" in run.meta.notes[0]


def test_fault_7_several_tokens_a_chunk_are_not_taken_for_that(tmp_path: Path) -> None:
    (run,) = load(edited(shared(PYTHON), tmp_path, stopped(retokenized=80)))
    s = run.summary()
    assert run.requests["output_tokens"].to_list() == [16] * 5
    assert (s.itl_name, s.itl_s.n) == ("chunk gap", 15)
    assert s.tpot_s.mean == pytest.approx(3 * 0.0195 / 15, abs=2e-4)
    assert "several tokens a chunk" in run.meta.notes[0]


def test_fault_7_gaps_made_up_by_dividing_a_chunks_are_named(tmp_path: Path) -> None:
    (run,) = load(edited(shared(PYTHON), tmp_path, lambda r: r["itls"][0].__setitem__(slice(3, 6), [0.02] * 3)))
    assert "divided a chunk's gap evenly" in run.meta.notes[0]


def test_fault_8_a_reply_of_no_tokens_is_divided_by_nothing(tmp_path: Path) -> None:
    def nothing(result: Any) -> None:
        result["output_lens"][0], result["itls"][0], result["ttfts"][0] = 0, [], 0.0

    (run,) = load(edited(shared(PYTHON), tmp_path, nothing))
    s = run.summary()
    assert (s.ttft_s.n, s.tpot_s.n, s.normalized_latency_s.n) == (4, 4, 4)


def test_fault_1_ttft_listed_among_the_gaps(tmp_path: Path) -> None:
    def listed(result: Any) -> None:
        result["itls"] = [[ttft, *gaps] for ttft, gaps in zip(result["ttfts"], result["itls"], strict=True)]

    (run,) = load(edited(shared(PYTHON), tmp_path, listed))
    assert run.summary().itl_s == load(shared(PYTHON))[0].summary().itl_s


def test_failed_requests_are_rows(tmp_path: Path) -> None:
    def fail(result: Any) -> None:
        result["output_lens"][2], result["itls"][2], result["ttfts"][2] = 0, [], 0.0
        result["errors"][2], result["completed"] = "Traceback\nClientOSError: reset", 4

    (run,) = load(edited(shared(PYTHON), tmp_path, fail))
    assert (run.summary().requests, run.summary().failed) == (5, 1)
    assert run.requests["error"][2] == "ClientOSError: reset"


@pytest.mark.parametrize("file", [PYTHON, RUST])
def test_cut_files_are_refused(tmp_path: Path, file: str) -> None:
    assert_refused_when_cut(shared(file), tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.update(ttfts=[0.1]), r"different lengths.*expected the result of SGLang"),
        (lambda r: r.update(duration=None), "duration"),
        (lambda r: r.pop("completed"), "completed"),
        (lambda r: r.pop("output_lens"), "output_lens"),
        (lambda r: r.update(request_rate="fast"), "request_rate"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        load(edited(shared(RUST), tmp_path, change, "r.jsonl"))
    assert str(error.value).startswith("r.jsonl:")


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    (run,) = load(edited(shared(RUST), tmp_path, lambda r: r.update(steady_share=0.9, tag="night")))
    assert (run.meta.workload["steady_share"], run.meta.workload["tag"]) == (0.9, "night")


def test_sniff_takes_no_other_tools_file() -> None:
    others = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file() and p.parent.name != "sglang"]
    assert [path.name for path in others if sglang.sniff(path)] == []


def test_an_infinite_rate_is_a_closed_loop() -> None:
    assert "Infinity" in shared(PYTHON).read_text()
    assert json.loads(shared(RUST).read_text())["request_rate"] == "inf"
    assert [load(shared(file))[0].meta.request_rate_per_s for file in (PYTHON, RUST)] == [None, None]
