"""What is seen of a benchmark while it runs: a bar on a terminal, few plain lines elsewhere, failures always."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from inferometer.benchmark.progress import Progress
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report.live import BAR, View, done_share, finished_line, picture, plain_line

WIDTH = 100


class Clock:
    """A clock that goes when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def progress(**changes: Any) -> Progress:
    values: dict[str, Any] = {
        "label": "C = 8", "phase": "measuring", "time_s": 12.0, "left_s": 83.0, "total": 640, "sent": 320, "ended": 312,
        "failed": 0, "in_flight": 8, "output_tok_per_s": 1140.0, "ttft_p50_s": 0.093, "tpot_p50_s": 0.0138,
        "running": 7.0, "waiting": 1.0, "kv_usage": 0.12, "point": 2, "points": 8,
    }  # fmt: skip
    return Progress(**{**values, **changes})


def measured(**meta: Any) -> Run:
    columns = {"sent_s": [0.0, 0.0], "first_token_s": [0.1, 0.2], "last_token_s": [1.1, 1.2], "end_s": [1.1, 1.2]}
    counts = {"prompt_tokens": [8, 8], "output_tokens": [11, 11], "error": meta.pop("error", [None, None])}
    return make_run(RunMeta(kind="measured", **{"concurrency": 2, **meta}), columns | counts)


def lines(view_of: Progress, width: int = WIDTH) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(picture(view_of, width))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def plain() -> tuple[View, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    return View(Console(file=out, width=WIDTH), clock=clock), out, clock


def test_the_picture_shows_the_client_the_server_and_the_time_left():
    bar, client, server = lines(progress())
    assert bar.startswith("C = 8 (2 of 8)  measuring  ━")
    assert bar.endswith("49 %  312 of 640 requests  1:23 left")
    assert bar.count("━") == BAR
    assert client == "  8 in flight   1,140 tok/s   TTFT p50 93.0 ms   TPOT p50 13.8 ms"
    assert server == "  server: running 7   waiting 1   KV 12 %"


def test_failures_are_shown_with_the_last_one_and_cut_to_the_width():
    last = lines(progress(failed=3, error="http 503: " + "busy " * 40))[-1]
    assert last.startswith("  3 failed; last: http 503: busy")
    assert len(last) <= WIDTH
    assert "3 failed (last: http 503)" in plain_line(progress(failed=3, error="http 503"))


def test_what_is_not_known_is_left_out():
    unknown = dict.fromkeys(("left_s", "total", "output_tok_per_s", "ttft_p50_s", "tpot_p50_s", "running"))
    nothing = progress(phase="preparing", sent=0, waiting=None, kv_usage=None, points=1, **unknown)
    assert lines(nothing) == ["C = 8  preparing"]
    assert lines(progress(points=None, point=3))[0].startswith("C = 8 (point 3)  measuring")


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"ended": 160}, 0.25),
        ({"ended": 700}, 1.0),
        ({"total": None, "time_s": 30.0, "left_s": 90.0}, 0.25),
        ({"total": None, "left_s": None}, None),
    ],
)
def test_share_done_is_by_requests_else_by_time(changes: dict[str, Any], share: float | None):
    assert done_share(progress(**changes)) == share


def test_off_a_terminal_a_line_at_the_start_every_ten_seconds_and_at_the_end():
    view, out, clock = plain()
    with view:
        view.watch(progress(phase="preparing", sent=0))
        for _ in range(50):
            clock.now_s += 0.5
            view.watch(progress())
        view.watch(progress(phase="done"))
        view.finished(measured())
    said = out.getvalue().splitlines()
    assert said[0] == "C = 8 (2 of 8): preparing"
    assert said[1].startswith("C = 8 (2 of 8): measuring, 312 of 640 requests, 8 in flight, 1,140 tok/s, ")
    assert said[-1].startswith("C=2 done: 2 requests in 1.2 s; 18.3 tok/s")
    assert len(said) == 4
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_it_is_drawn_four_times_a_second_at_most_and_rows_stay():
    out, clock = io.StringIO(), Clock()
    view = View(Console(file=out, width=WIDTH, force_terminal=True, highlight=False), clock=clock)
    drawn = []
    with view:
        assert view._live is not None
        update = view._live.update
        view._live.update = lambda *a, **k: (drawn.append(clock.now_s), update(*a, **k))  # type: ignore[method-assign]
        for _ in range(100):
            clock.now_s += 0.01
            view.watch(progress())
        looks = len(drawn)
        view.finished(measured())
    assert 3 <= looks <= 5
    assert "C=2 done: 2 requests" in out.getvalue()


def test_quiet_says_nothing():
    out = io.StringIO()
    with View(Console(file=out), show=False) as view:
        view.watch(progress())
        view.finished(measured())
    assert out.getvalue() == ""


def test_a_finished_line_says_what_is_wrong():
    assert finished_line(measured(unfit=["the client was late"])).startswith("C=2 unfit: ")
    assert finished_line(measured(partial="interrupted")).startswith("C=2 not whole (interrupted): ")
    assert ", 1 failed; " in finished_line(measured(error=[None, "http 500"]))


def test_a_run_that_was_not_measured_now_comes_from_the_store():
    view, out, _ = plain()
    with view:
        view.finished(measured())
    assert out.getvalue().startswith("C=2 taken from the store: 2 requests; ")


def test_a_point_where_all_failed_has_no_figures():
    lost = make_run(
        RunMeta(kind="measured", concurrency=4), {"sent_s": [0.0], "end_s": [0.3], "error": ["connect: no"]}
    )
    assert finished_line(lost).startswith("C=4 done: ")
    assert finished_line(lost).endswith(" 1 failed")
