"""Charts by their figures: what is drawn where, in which colour; the same bytes every time; nothing cut or covered."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from inferometer.prediction.seal import Claim
from inferometer.records.run import RunMeta, make_run
from inferometer.report.chart_detail import tail_curve
from inferometer.report.chart_theme import (
    CARD,
    CEILING,
    INK,
    LINE,
    PLOT_WIDTH,
    PREDICTED,
    Label,
    apart,
    load_axis,
    log_axis,
    png,
    svg,
    zero_axis,
)
from inferometer.report.chart_theme import MEASURED as ORANGE
from inferometer.report.charts import CHARTS, charts
from inferometer.report.material import gather
from reported import MEASURED, predicted, scored, stated, with_raw


def layers(chart: Any) -> Iterator[dict[str, Any]]:
    """Every mark of a chart, with its rows."""
    spec = chart.to_dict(validate=False)
    pools = spec.get("datasets", {})
    stack = [spec]
    while stack:
        unit = stack.pop()
        # Altair moves what all layers share up to their chart
        stack += [{"data": unit.get("data", {}), **below} for key in ("layer", "concat") for below in unit.get(key, [])]
        if "mark" in unit:
            data = unit.get("data", {})
            yield {**unit, "rows": pools.get(data.get("name"), data.get("values", []))}


def marks(chart: Any, kind: str, colour: str | None = None) -> list[dict[str, Any]]:
    """The marks of a kind and colour."""
    of_kind = [each for each in layers(chart) if each["mark"]["type"] == kind]
    keys = ("color", "fill", "stroke")
    return [m for m in of_kind if colour is None or colour in [m["mark"].get(key) for key in keys]]


def texts(chart: Any) -> set[str]:
    found = {row["text"] for mark in marks(chart, "text") for row in mark["rows"] if "text" in row}
    fixed = {mark["encoding"]["text"].get("value") for mark in marks(chart, "text")}
    return found | {text for text in fixed if text}


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    return charts(scored())


@pytest.fixture(scope="module")
def drawn_raw() -> dict[str, Any]:
    return charts(with_raw())


def test_there_is_a_chart_for_what_there_are_figures_for(drawn: dict[str, Any], drawn_raw: dict[str, Any]):
    always = {"throughput", "ttft", "per-user", "tpot", "pareto", "waterfall", "memory"}
    assert set(drawn) == always
    assert set(drawn_raw) == always | {"itl", "server"} == set(CHARTS)


def test_the_line_is_the_prediction_and_the_dots_the_measurement(drawn: dict[str, Any]):
    line = marks(drawn["throughput"], "line", PREDICTED)[0]["rows"]
    assert [(row["x"], row["y"]) for row in line] == [
        (point.concurrency, point.summary.output_tok_per_s) for point in predicted().points
    ]
    dots = next(m for m in marks(drawn["throughput"], "point", ORANGE) if m["mark"]["size"] == 58)["rows"]
    assert [(row["x"], row["y"]) for row in dots] == [(users, rate) for users, (rate, _, _) in MEASURED.items()]


def test_the_band_is_the_interval(drawn: dict[str, Any]):
    (band,) = marks(drawn["throughput"], "area", PREDICTED)
    expected = [point.intervals["output_tok_per_s"] for point in predicted().points]
    assert [(row["low"], row["high"]) for row in band["rows"]] == expected


def test_throughput_starts_at_zero_and_loads_are_the_ticks(drawn: dict[str, Any]):
    encoding = marks(drawn["throughput"], "line", PREDICTED)[0]["encoding"]
    assert encoding["y"]["scale"]["domain"][0] == 0
    assert encoding["x"]["scale"]["type"] == "log"
    assert encoding["x"]["scale"]["base"] == 2
    assert encoding["x"]["axis"]["values"] == [1, 2, 8]


def test_latency_is_logarithmic_where_it_spans_a_decade(drawn: dict[str, Any]):
    assert marks(drawn["ttft"], "line", PREDICTED)[0]["encoding"]["y"]["scale"]["type"] == "log"
    assert marks(drawn["tpot"], "line", PREDICTED)[0]["encoding"]["y"]["scale"]["type"] == "linear"


def test_latencies_are_in_milliseconds(drawn: dict[str, Any]):
    by_fill = {m["mark"]["fill"]: [row["y"] for row in m["rows"]] for m in marks(drawn["ttft"], "point", ORANGE)}
    assert by_fill[ORANGE] == pytest.approx([30, 40, 120])
    assert by_fill[CARD] == pytest.approx([35, 150, 400])


def test_knees_goodput_and_limit_are_written_with_their_values(drawn: dict[str, Any]):
    told = texts(drawn["throughput"])
    assert any("TTFT knee" in text and "measured" in text and "C=2" in text for text in told)
    assert "goodput at p50: 150 tok/s, C=2" in told
    assert "goodput at p99: 88.0 tok/s, C=1" in told
    assert {"roofline", "predicted", "measured"} <= told
    assert "SLO: TTFT < 100 ms" in texts(drawn["ttft"])


def test_a_roofline_without_a_knee_says_from_where_it_flattens():
    study = {**_wide_study(), "workload": {"prompt_tokens": 1024, "output_tokens": 8, "concurrency": [1, 128, 256]}}
    told = texts(charts(gather(study))["throughput"])
    assert any(text.startswith("roofline: no knee, flattening from about 1") for text in told)


def _wide_study() -> dict[str, Any]:
    return {"model": "Qwen/Qwen3-8B", "chip": "a100-sxm4-80gb", "name": "wide"}


def test_claims_are_crosses(drawn: dict[str, Any]):
    claimed = msgspec.structs.replace(scored(), claims=(Claim.parse("output_tok_per_s@8=620"),))
    (cross,) = [m for m in marks(charts(claimed)["throughput"], "point", INK) if m["mark"]["size"] == 120]
    assert cross["rows"] == [{"x": 8, "y": 620.0}]
    assert not [m for m in marks(drawn["throughput"], "point", INK) if m["mark"]["size"] == 120]


def test_raw_values_give_error_bars_and_stated_ones_do_not(drawn: dict[str, Any], drawn_raw: dict[str, Any]):
    def bars(chart: Any) -> list[Any]:
        return [row for mark in marks(chart, "rule", ORANGE) for row in mark["rows"] if "low" in row]

    assert bars(drawn_raw["throughput"])
    assert all(row["low"] <= row["y"] <= row["high"] for row in bars(drawn_raw["throughput"]))
    assert not bars(drawn["throughput"])


def test_the_caption_says_whose_figures_these_are(drawn: dict[str, Any]):
    for chart in drawn.values():
        line = next(text for text in texts(chart) if text.startswith("small"))
        assert "vLLM 0.26.0" in line
        assert "not sealed" in line
        assert "predicted by inferometer" in line
        assert "measured by vllm bench serve 0.26.0" in line


def test_the_waterfall_ends_at_the_measurement(drawn: dict[str, Any]):
    (last,) = marks(drawn["waterfall"], "rect", ORANGE)
    assert last["rows"][0]["x2"] == 500.0
    (first,) = marks(drawn["waterfall"], "rect", CEILING)
    assert first["rows"][0]["x"] == 0
    falls = [
        row for colour in (PREDICTED, INK) for mark in marks(drawn["waterfall"], "rect", colour) for row in mark["rows"]
    ]
    assert all(row["x"] < row["x2"] for row in falls if row["effect"] != "unexplained")


def test_memory_shows_each_term_and_what_the_log_says():
    runs = [stated(1, server={"weight_bytes": 16 * 2**30})]
    chart = charts(gather(predicted(), runs))["memory"]
    assert {"KV pool", "weights", "total"} <= texts(chart)
    (dots,) = marks(chart, "point", ORANGE)
    assert [row["x"] for row in dots["rows"]] == [16.0]


def test_the_server_is_shown_over_time_under_each_load(drawn_raw: dict[str, Any]):
    running = marks(drawn_raw["server"], "line", ORANGE)
    assert {row["y"] for mark in running for row in mark["rows"]} == {1, 8, 0.25}


def test_the_gaps_curve_is_their_tail():
    gaps = np.concatenate([np.full(990, 0.010), np.full(10, 0.200)])
    rows = tail_curve(gaps)
    assert rows[0] == {"x": 10.0, "y": 1.0}
    assert rows[-1]["x"] == pytest.approx(200)
    above = [row["y"] for row in rows if row["x"] > 100]
    assert max(above) == pytest.approx(0.01, rel=0.1)
    assert [row["y"] for row in rows] == sorted((row["y"] for row in rows), reverse=True)


def test_two_loads_make_a_curve_and_one_does_not():
    assert "throughput" not in charts(gather(None, [stated(1)]))
    assert "throughput" in charts(gather(None, [stated(1), stated(2)]))


def test_runs_without_a_load_draw_nothing():
    replay = make_run(RunMeta(kind="imported", stated={"output_tok_per_s": 10.0, "ttft_s.p50": 0.1}))
    assert charts(gather(None, [replay])) == {}


def test_an_open_loop_is_over_its_rates():
    def point(rate: float) -> Any:
        figures = {"output_tok_per_s": 100 * rate, "ttft_s.p50": 0.1, "ttft_s.p99": 0.3, "per_user_tok_per_s": 20.0}
        return make_run(RunMeta(kind="imported", request_rate_per_s=rate, stated=figures))

    chart = charts(gather(None, [point(0.5), point(2.0)]))["throughput"]
    dots = marks(chart, "point", ORANGE)[0]
    assert [row["x"] for row in dots["rows"]] == [0.5, 2.0]
    assert dots["encoding"]["x"]["title"] == "requests a second"


# ---------------------------------------------------------------- SVG and PNG


def test_the_same_figures_give_the_same_svg_with_ids_of_its_own(drawn_raw: dict[str, Any]):
    again = charts(with_raw())
    for name, chart in drawn_raw.items():
        first = svg(chart, name)
        assert first == svg(again[name], name)
        assert all(found.startswith(f"{name}-") for found in re.findall(r'\bid="([^"]+)"', first))
        assert set(re.findall(r"url\(#([^)]+)\)", first)) <= set(re.findall(r'\bid="([^"]+)"', first))


def test_svg_needs_nothing_from_elsewhere_and_fits(drawn_raw: dict[str, Any]):
    for name, chart in drawn_raw.items():
        text = svg(chart, name)
        assert not re.search(r"(href|src)=|@import|<image", text)
        assert int(re.search(r'width="(\d+)"', text)[1]) <= 720  # type: ignore[index]


def test_png_is_two_pixels_a_px(drawn: dict[str, Any]):
    data = png(svg(drawn["throughput"], "throughput"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20], "big") == 1440


def test_no_word_of_a_chart_leaves_it(drawn: dict[str, Any]):
    """By a generous width of 0.56 em a character."""
    for mark in marks(drawn["throughput"], "text"):
        for row in (row for row in mark["rows"] if "text" in row):
            x = load_axis([1, 2, 8], "", 0.17).share(row["x"]) * PLOT_WIDTH
            long = len(row["text"]) * 0.56 * mark["mark"]["fontSize"]
            right = x + long if mark["mark"]["align"] == "left" else x
            assert right <= PLOT_WIDTH + 20, row["text"]
            assert (x if mark["mark"]["align"] == "left" else x - long) >= -64, row["text"]


# ---------------------------------------------------------------- axes and labels


def test_labels_are_kept_apart_and_inside():
    placed = apart([Label(x=0, y=y, text=str(y), colour=INK) for y in (100, 101, 103, 299, 300)], 6, 300)
    ys = [label.y for label in placed]
    assert all(b - a >= LINE - 1e-9 for a, b in itertools.pairwise(ys))
    assert min(ys) >= 6
    assert max(ys) <= 300


@pytest.mark.parametrize("high", [0.3, 7, 88, 3088, 410_240])
def test_a_zero_axis_holds_its_values_with_a_few_round_ticks(high: float):
    axis = zero_axis([1e-9, high], "")
    assert axis.low == 0
    assert axis.high > high
    assert 3 <= len(axis.ticks) <= 7


def test_a_logarithmic_axis_holds_its_values():
    axis = log_axis([23, 8302], "ms")
    assert axis.logarithmic
    assert axis.low <= 23
    assert axis.high >= 8302
    assert axis.ticks[1000.0] == "1,000"
    assert axis.value(axis.share(500)) == pytest.approx(500, rel=1e-5)


def test_crowded_loads_lose_ticks_but_never_the_last():
    axis = load_axis(range(1, 65), "")
    places = sorted(axis.share(tick) * PLOT_WIDTH for tick in axis.ticks)
    assert 64 in axis.ticks
    assert all(b - a >= 29 for a, b in itertools.pairwise(places))
