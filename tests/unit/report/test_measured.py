"""What is printed of measured runs: the answer first, every point, what is wrong in words, the server's own means."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import polars as pl
import pytest

from inferometer.benchmark.search import Found, Trial
from inferometer.records.metrics import throughput_knee
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report import measured, terminal
from inferometer.specs.slo import Slo
from inferometer.specs.workload import Workload

SLO = Slo(ttft_s=0.5, tpot_s=0.05)


def run(users: int | None = None, rate: float | None = None, ttft_s: float = 0.1, **meta: Any) -> Run:
    """Twenty requests of 11 tokens each, at 20 ms a token; in a closed loop two a user at a time."""
    n = 20
    gap = 1 / rate if rate else (ttft_s + 0.2) / (users or 1)
    scheduled = np.arange(n) * gap
    sent = scheduled + meta.pop("late_s", 0.0)
    first, last = sent + ttft_s, sent + ttft_s + 0.2
    errors = [None] * n if not (failed := meta.pop("failed", 0)) else ["http 500: no"] * failed + [None] * (n - failed)
    columns = {"scheduled_s": scheduled, "sent_s": sent, "first_token_s": first, "last_token_s": last, "end_s": last}
    counts = {"prompt_tokens": [8] * n, "output_tokens": [11] * n, "error": errors}
    server = meta.pop("means", None)
    fields = {"concurrency": users, "request_rate_per_s": rate, "model": "m", "source": "http://h/v1", **meta}
    found = RunMeta(kind="measured", workload={"endpoint": "completions"}, client={"workers": 1.0}, **fields)
    found.server = {"engine": "vllm", "version": "0.26.0", "max_model_len": 4096}
    if server:
        found.server["means"] = server
    return make_run(found, columns | counts)


def printed(runs: list[Run], slo: Slo = SLO, found: Found | None = None) -> str:
    out = io.StringIO()
    console = terminal.make_console(out)
    console.width = 100
    work = Workload.closed_loop(1) if runs[0].meta.request_rate_per_s is None else Workload.open_loop(1.0, 10)
    measured.report(runs, work, slo, console, found)
    assert max(map(len, out.getvalue().splitlines())) <= 100
    return out.getvalue()


def test_a_single_point_is_told_in_a_sentence():
    text = printed([run(4)])
    assert text.startswith("m at http://h/v1   vLLM 0.26.0   closed loop, 1,024 in / 1,024 out\n")
    assert re.search(
        r"^C=4: \S+ tok/s, \S+ a user; TTFT p50 100 ms, p99 100 ms; TPOT p50 20\.0 ms\.$", text, flags=re.M
    )
    assert "100 % of the requests meet TTFT < 500 ms, TPOT < 50 ms." in text


def test_a_sweep_says_where_it_bends_and_what_is_good():
    runs = [run(1), run(2), run(4), run(8, ttft_s=0.4), run(64, ttft_s=4.0)]
    text = printed(runs)
    assert re.search(rf"^Throughput bends at C={throughput_knee(runs)}, .* tok/s", text, flags=re.M)
    assert "Goodput by marginal percentile (TTFT < 500 ms, TPOT < 50 ms):" in text
    rows = [line.split()[0] for line in text[text.index("Measured") :].splitlines() if re.match(r" +\d+ ", line)]
    assert rows[:5] == ["1", "2", "4", "8", "64"]


@pytest.mark.parametrize(
    ("meta", "answer", "reason"),
    [
        (
            {"unfit": ["the client was late"]},
            "Unfit: 1 of 2 points (C=4) should not",
            "C=4: unfit: the client was late.",
        ),
        ({"partial": "interrupted"}, "Not whole: C=4 (interrupted).", "C=4: not whole: interrupted."),
        (
            {"failed": 3, "notes": ["3 of 20 requests failed (3 http 500)"]},
            "3 of 40 requests failed.",
            "C=4: 3 of 20 requests failed (3 http 500).",
        ),
    ],
)
def test_what_is_wrong_comes_first_and_its_reason_below(meta: dict[str, Any], answer: str, reason: str):
    runs = [run(1), run(4, **meta)]
    lines = printed(runs).splitlines()
    assert lines[3].startswith(answer)
    assert reason in lines[6:]
    assert measured.warnings(runs) == [reason]


def test_what_is_said_of_all_is_said_once():
    text = printed([run(1, notes=["no usage"]), run(4, notes=["no usage", "chunks"])])
    assert "No usage.\nC=4: chunks.\n" in text


def test_the_servers_own_means_stand_beside_ours():
    text = printed([run(4, means={"ttft_s": 0.08, "tpot_s": 0.02, "e2e_s": 0.28})])
    (row,) = [line for line in text.splitlines() if line.strip().startswith("C=4 ")]
    assert row.split() == ["C=4", "100", "80.0", "+25.0", "20.0", "20.0", "+0.0", "300", "280", "+7.1"]
    assert "Server's own" not in printed([run(4)])


def test_the_servers_means_are_of_the_whole_run_and_so_are_ours_beside_them():
    warm = run(4, means={"ttft_s": 0.1})
    warm.requests[0, "first_token_s"] = warm.requests[0, "first_token_s"] + 0.1
    warm.meta.window_s = (0.05, None)
    (row,) = [line for line in printed([warm]).splitlines() if line.strip().startswith("C=4 ")]
    assert row.split()[1] == "105"  # 19 of 100 ms and one of 200


def test_an_open_loop_says_what_was_offered_and_done():
    text = printed([run(rate=2.0), run(rate=10.0)])
    assert "Kept up with 10/s, the highest rate offered." in text
    assert "Client's queue" not in text


def test_a_cap_is_reported_with_the_clients_queue():
    late = np.linspace(0.0, 3.0, 20)
    text = printed([run(rate=2.0), run(users=2, rate=10.0, late_s=late)])
    assert re.search(r"^At 10/s at most 2 in flight let \S+/s through: the rest waited in the client", text, flags=re.M)
    (row,) = [
        line.split() for line in text[text.index("Client's queue") :].splitlines() if line.strip().startswith("10 ")
    ]
    assert row == ["10", "2", "1,500", "2,970", "100", "100", "1,600", "3,070"]


def trial(level: float, met: int, n: int, passed: bool, resolved: bool) -> Trial:
    return Trial(level=level, requests=n, met=met, low=0.98, high=0.999, passed=passed, resolved=resolved)


def test_a_search_says_what_it_found_and_how_sure_that_is():
    trials = [trial(8, 398, 400, True, True), trial(9, 300, 400, False, True)]
    found = Found(by="concurrency", slo=SLO, level=8.0, beyond=9.0, resolved=True, trials=trials, runs=[])
    text = printed([run(8), run(9)], found=found)
    assert "Up to C=8, 99 % of the requests meet TTFT < 500 ms, TPOT < 50 ms; at C=9 they do not." in text
    assert "There 99.5 % of 400 did, 95 % interval 98.0-99.9. Resolved: the intervals decide." in text
    assert re.search(r"^ +9 +400 +75 +98\.0-99\.9 +missed$", text, flags=re.M)
    none = Found(
        by="request_rate",
        slo=SLO,
        level=None,
        beyond=0.5,
        resolved=True,
        trials=[trial(0.5, 1, 9, False, True)],
        runs=[],
    )
    assert "At no load do 99 % of the requests meet" in printed([run(rate=0.5)], found=none)


def test_what_was_not_measured_is_named():
    asked = [Workload.closed_loop(users) for users in (1, 4, 8)]
    assert measured.left_out([run(1), run(4), run(8)], asked) == ""
    assert measured.left_out([run(1), run(4)], asked).startswith("Left out: C=8, as a lower load was too much")
    assert measured.left_out([run(1, partial="interrupted")], asked) == "Not measured: C=4, C=8."
    rates = [Workload.open_loop(rate, 10) for rate in (0.5, 2.0)]
    assert measured.left_out([run(rate=0.5)], rates).startswith("Left out: 2/s,")


def test_without_first_tokens_a_point_is_told_by_its_end():
    whole = run(4)
    whole.requests = whole.requests.with_columns(first_token_s=None, last_token_s=None)
    assert "; E2E p50 300 ms, p99 300 ms." in printed([make_run(whole.meta, whole.requests)], Slo())


def test_failures_and_unfit_points_are_red():
    out = io.StringIO()
    console = terminal.Console(file=out, force_terminal=True, color_system="standard", width=100, highlight=False)
    measured.report([run(4, failed=2, unfit=["late"])], Workload.closed_loop(1), Slo(), console)
    red = re.findall(r"\x1b\[1;31m(.*?)\x1b\[0m", out.getvalue())
    assert {"Unfit: this measurement should not be trusted, for the reasons below.", "2 of 20 requests failed."} <= {
        *red
    }
    assert "4" in red
    assert "2" in red


def test_a_server_that_stopped_answering_is_the_first_thing_said():
    dead = run(4, failed=20, partial="given up: no request has succeeded for 60 s", notes=["20 of 20 requests failed"])
    text = printed([run(1), run(2), dead])
    answer = text.splitlines()[3]
    assert answer == "The server stopped answering during C=4: 20 of 20 requests failed."
    assert "The most is" in text
    assert "nee" not in text
    assert "C=4: 20 of 20 requests failed.\n  20 x http 500: no\n" in text
    alone = printed([dead])
    assert "tok/s;" not in alone
    assert alone.splitlines()[4] == ""


def test_the_most_frequent_errors_are_shown_clipped():
    two = run(4, failed=5)
    errors = two.requests["error"].to_list()
    errors[:5] = ["http 500: " + "x" * 200] * 3 + ["connect: refused", "reset"]
    two = make_run(two.meta, two.requests.with_columns(error=pl.Series(errors)))
    first, second, more = measured.error_lines([two], 60)
    assert (len(first), first[:17], first[-3:]) == (60, "  3 x http 500: x", "...")
    assert second == "  1 x connect: refused"
    assert more.startswith("  and others")
    assert terminal.errors_of([two], 10) == {"http 500: " + "x" * 200: 3, "connect: refused": 1, "reset": 1}


def test_a_search_that_was_broken_off_gives_no_verdict():
    trials = [trial(8, 398, 400, True, True), trial(12, 10, 10, True, True), trial(16, 300, 400, False, True)]
    runs = [run(8), run(16), run(12, partial="interrupted")]
    found = Found(by="concurrency", slo=SLO, level=8.0, beyond=16.0, resolved=False, trials=trials, runs=runs)
    text = printed(runs, found=found)
    assert "Broken off: no verdict. Met at C=8, missed at C=16, C=12 not finished." in text
    assert "Up to C=8" not in text
    assert re.search(r"^ +12 .* not finished$", text, flags=re.M)


def test_repeats_are_told_by_median_and_range():
    text = printed([run(4, ttft_s=0.1), run(4, ttft_s=0.3), run(4, ttft_s=0.2)])
    assert re.search(
        r"^C=4, median \(and range\) of 3 repeats: \S+ tok/s \(\S+\); TTFT p50 200 ms \(100-300\)", text, re.M
    )


def test_a_cap_leads_with_what_users_waited():
    text = printed([run(users=2, rate=10.0, late_s=np.linspace(0.0, 3.0, 20))])
    assert "\nUsers waited 1,600 ms (p50) for a first token, 1,500 ms of it in the client's queue.\n" in text


def test_prompts_of_a_file_are_named_by_it():
    of_file = run(4)
    of_file.meta.workload["dataset"] = "data/sg.json"
    assert "closed loop, prompts of sg.json\n" in printed([of_file])


def test_the_servers_means_say_that_the_warm_up_is_in_them():
    warm = run(4, means={"ttft_s": 0.1}, window_s=(0.05, None))
    assert "warm-up included" in printed([warm])
    assert "warm-up included" not in printed([run(4, means={"ttft_s": 0.1})])


def test_only_a_replay_is_called_one():
    other = run()
    assert terminal.run_load(other) == "replay"
    other.meta.kind = "imported"
    assert terminal.run_load(other) == "load not stated"
    other.meta.workload = {"kind": "trace"}
    assert terminal.run_load(other) == "replay"
