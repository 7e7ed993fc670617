"""What is printed: the answer first, within 100 columns, every point, GiB and never GB; goldens of fixed figures.

``INFEROMETER_UPDATE=1`` rewrites the goldens in ``tests/golden``.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report import terminal
from inferometer.report.grid import figure, signed

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
LOGNORMAL = {"lognormal": {"mean": 900, "sigma": 1}}
UNIFORM = {"uniform": {"low": 1, "high": 9}}
ESCAPE = "\x1b["
FACTORS = {"output_tok_per_s": 1.01, "ttft_s.p50": 0.9, "ttft_s.p99": 1.2, "tpot_s.p50": 1.0, "tpot_s.p99": 0.8}


def printed(show: Callable[[Console], object], monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    out = io.StringIO()
    console = terminal.make_console(out)
    console.width = 100
    show(console)
    return out.getvalue()


def same_as_golden(text: str, name: str) -> None:
    path = GOLDEN / name
    text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    if os.environ.get("INFEROMETER_UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.fixture(scope="module")
def prediction() -> im.Prediction:
    return im.predict("a100-qwen3-8b", overrides={"arm": [], "workload.concurrency": [1, 16, 64]})


@pytest.fixture(scope="module")
def arms() -> im.Prediction:
    return im.predict("a100-qwen3-8b", overrides={"workload.concurrency": [1, 8], "workload.output_tokens": 64})


def founding() -> tuple[list[Run], list[Run]]:
    """The founding sweep as a measurement, and a prediction that is off by fixed factors."""
    measured = founding_sweep.runs()
    predicted = []
    for run in measured:
        off = {path: value * FACTORS.get(path, 1.0) for path, value in run.meta.stated.items()}
        meta = RunMeta(kind="simulated", concurrency=run.meta.concurrency, stated=off, model="Qwen/Qwen3-8B")
        meta.slo = {"ttft_s": 0.5, "tpot_s": 0.05}
        predicted.append(make_run(meta))
    return predicted, measured


# --- predictions


def test_the_answer_comes_first(prediction: im.Prediction):
    lines = printed(lambda console: terminal.prediction(prediction, console, "study.toml")).splitlines()
    assert lines[0].startswith(
        "Qwen/Qwen3-8B bf16 on 1 x A100-SXM4-80GB   vLLM 0.26.0   closed loop, 1,024 in / 1,024 out"
    )
    assert re.fullmatch(
        r"It fits: 5\d\.\d GiB of KV cache, 4\d\d,000 tokens, \d+ requests of 2,048 tokens at once\.", lines[2]
    )
    assert lines[3].startswith("No knee at a context of 1,536 tokens: memory-bound at every batch")
    assert lines[-1] == "Score it once you have measured:  inferometer score study.toml MEASURED"


def test_every_point_and_term_is_there(prediction: im.Prediction):
    text = printed(lambda console: terminal.prediction(prediction, console))
    for point in prediction.points:
        (row,) = [line for line in text.splitlines() if re.match(rf" +{point.concurrency} ", line)]
        low, high = point.intervals["output_tok_per_s"]
        assert row.split()[1:3] == [figure(point.summary.output_tok_per_s), f"{figure(low)}-{figure(high)}"]
        assert row.endswith(point.limited_by)
    for term in prediction.memory.terms:
        if term.bytes and term.name != "requested":
            (row,) = [line for line in text.splitlines() if line.startswith(f"{term.name} ")]
            assert term.origin in row


@pytest.mark.parametrize("which", ["prediction", "arms"])
def test_fits_100_columns_and_says_gib(which: str, request: pytest.FixtureRequest):
    text = printed(lambda console: terminal.prediction(request.getfixturevalue(which), console, "study.toml"))
    assert max(map(len, text.splitlines())) <= 100
    assert "GiB" in text
    assert not re.search(r"\d GB|GB\b(?<!-80GB)", text)
    assert ESCAPE not in text


def test_arms_lie_side_by_side(arms: im.Prediction):
    text = printed(lambda console: terminal.prediction(arms, console))
    for arm in arms.arms:
        assert len(re.findall(rf"^(?: *\S+)? +{arm.name} |^{arm.name} ", text, flags=re.M)) == len(arm.points) + 1
    assert "max_num_batched_tokens 8192" in text
    one_user = text[text.index("C=1 ") : text.index("C=4 ")]
    assert "base" in one_user
    assert "context-8k" in one_user


def test_what_does_not_fit_says_by_how_much_and_what_would():
    big = im.predict({"model": "meta-llama/Llama-3.1-70B", "chip": "h100-sxm-80gb", "workload": {"concurrency": [1]}})
    text = printed(lambda console: terminal.prediction(big, console, "big.toml"))
    short = big.memory.shortfall_bytes / 2**30
    assert f"It does not fit: {short:.1f} GiB short on each chip" in text
    first = big.base.would_fit[0]
    assert f"inferometer predict big.toml --set {'' if first.startswith('chip') else 'deployment.'}{first}\n" in text
    assert "or  --set deployment.tensor_parallel_size=" in text
    assert "or  --set chip=" in text
    assert "Sweep" not in text


def test_refused_requests_are_told():
    short = {"model": "Qwen/Qwen3-8B", "chip": "a100-sxm4-80gb", "deployment": {"max_model_len": 100}}
    pred = im.predict({**short, "workload": {"concurrency": [2], "prompt_tokens": 90, "output_tokens": 20}})
    text = printed(lambda console: terminal.prediction(pred, console))
    assert "20 requests were refused" in text
    assert "nothing was served" in text


def test_a_terminal_gets_colour_and_no_color_takes_it(prediction: im.Prediction, monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    seen = {}
    for no_color in ("", "1"):
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        out = Terminal()
        terminal.prediction(prediction, terminal.make_console(out))
        seen[no_color] = out.getvalue()
    assert ESCAPE in seen[""]
    assert ESCAPE not in seen["1"]


def test_bars_without_unicode(prediction: im.Prediction):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal.prediction(prediction, terminal.make_console(out))
    out.seek(0)
    text = out.read()
    assert "####" in text
    assert text.isascii()


def test_bars_are_as_long_as_their_share(prediction: im.Prediction):
    text = printed(lambda console: terminal.prediction(prediction, console))
    total = next(term.bytes for term in prediction.memory.terms if term.name == "total")
    rows = {line.split("  ")[0]: line.count("█") for line in text.splitlines() if "█" in line}
    for name in ("KV pool", "weights"):
        size = next(term.bytes for term in prediction.memory.terms if term.name == name)
        assert abs(rows[name] - size / total * terminal.BAR) <= 1


# --- scores


def test_score_golden():
    predicted, measured = founding()
    same_as_golden(printed(lambda console: terminal.score(im.score(predicted, measured), console)), "score.txt")


def test_score_shows_each_point_and_marks_what_missed():
    predicted, measured = founding()
    card = im.score(predicted, measured)
    text = printed(lambda console: terminal.score(card, console))
    misses = 0
    for users in founding_sweep.SWEEP:
        rows = {row.metric: row for row in card.rows if row.concurrency == users}
        (line,) = [line for line in text.splitlines() if line.lstrip().startswith(f"C={users} ")]
        cells = line.split()[1:]
        for i, metric in enumerate(("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50")):
            row = rows[metric]
            mark = "!" if row.verdict == "miss" else ""
            misses += row.verdict == "miss"
            assert cells[3 * i : 3 * i + 3] == [
                figure(row.predicted),
                figure(row.measured),
                signed(row.error_pct) + mark,
            ]
    assert misses == 8
    assert max(map(len, text.splitlines())) <= 100


def test_verdict_counts_figures():
    predicted, measured = founding()
    card = im.score(predicted, measured)
    assert terminal.verdict(card).startswith(
        f"{len(card.rows) - len(card.missed)} of {len(card.rows)} figures within 10 %"
    )
    assert "-20.0 %, TPOT p99 at C=" in terminal.verdict(card) or "+20.0 %, TTFT p99 at C=" in terminal.verdict(card)


def test_one_pair_is_shown_row_by_row(prediction: im.Prediction):
    measured = make_run(
        RunMeta(kind="imported", concurrency=16, stated={"output_tok_per_s": 1139.6, "ttft_s.p99": 9.0})
    )
    text = printed(lambda console: terminal.score(im.score(prediction, measured), console))
    assert re.search(r"^out tok/s +1,0\d0 +1,140 +-\d\.\d +within +\d+-1,\d+", text, flags=re.M)
    assert re.search(r"^TTFT p99 ms .* missed", text, flags=re.M)


def test_nothing_to_compare_is_said():
    card = im.score([make_run(RunMeta(kind="simulated", concurrency=1))] * 2, founding_sweep.runs()[1:3])
    text = printed(lambda console: terminal.score(card, console))
    assert text.startswith("Nothing to compare")
    assert "Not compared: founding sweep C=2: no point at C=2 is predicted." in text


# --- runs


def run(**meta: Any) -> Run:
    columns = {
        "sent_s": [0.0, 0.0, 1.0],
        "first_token_s": [0.1, 0.2, 1.3],
        "last_token_s": [1.0, 1.1, 2.0],
        "end_s": [1.0, 1.1, 2.0],
        "prompt_tokens": [8, 8, 8],
        "output_tokens": [10, 10, 10],
        "preemptions": [0, 1, 0],
    }
    base: dict[str, Any] = {
        "kind": "measured",
        "name": "three requests",
        "tool": "a tool",
        "model": "m",
        "concurrency": 2,
    }
    return make_run(RunMeta(**{**base, **meta}), columns)


def test_run_details_golden():
    same_as_golden(printed(lambda console: terminal.run_details(run(notes=["a note"]), console)), "run_details.txt")


def test_run_details_are_the_summarys():
    text = printed(lambda console: terminal.run_details(run(), console))
    (ttft,) = [line.split() for line in text.splitlines() if line.startswith("ttft ")]
    assert ttft[1:4] == ["3", "200", figure(run().summary().ttft_s.std * 1000)]
    assert "preemptions 1" in text
    assert "scheduled" not in text


def test_run_table_has_ids_and_arms_where_there_are_several():
    one, other = run(arm="base"), run(arm="long", request_rate_per_s=2.0)
    text = printed(lambda console: terminal.run_summary([one, other], console))
    assert one.id in text
    assert other.id in text
    assert "C=2" in text
    assert "2/s" in text
    assert "long" in text
    assert "arm" not in printed(lambda console: terminal.run_summary([one], console))


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        (im.Workload.closed_loop(2, prompt_tokens=1024, output_tokens=8), "closed loop, 1,024 in / 8 out"),
        (
            im.Workload.open_loop(2, 5, {"lognormal": {"mean": 900, "sigma": 1}}, 8),
            "open loop, poisson, ~900 in / 8 out",
        ),
        (
            im.Workload.closed_loop(2, prompt_tokens={"uniform": {"low": 1, "high": 9}}),
            "closed loop, 1-9 in / 1,024 out",
        ),
        (im.Workload.from_requests([0, 1], [10, 20], [4, 4]), "replay, ~15 in / ~4 out"),
    ],
)
def test_loads_in_words(workload: im.Workload, text: str):
    assert terminal.load(workload) == text
