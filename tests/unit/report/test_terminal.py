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
    assert lines[1] == (
        "max_num_seqs 256, max_num_batched_tokens 2048, max_model_len 40960, gpu_memory_utilization 0.92"
    )
    assert re.fullmatch(
        r"It fits: 5\d\.\d GiB of KV cache, 4\d\d,000 tokens, \d+ requests of 2,048 tokens at once\.", lines[3]
    )
    assert lines[4].startswith("No knee at a context of 1,536 tokens: memory-bound at every batch")
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
    lengths = {"prompt_tokens": {"uniform": {"low": 70, "high": 90}}, "output_tokens": 20}
    flags = {"deployment": {"max_model_len": 100}}
    pred = small(flags, concurrency=[2], **lengths)
    longer = sum(pred.points[0].refused.values())
    lines = printed(lambda console: terminal.prediction(pred, console)).splitlines()
    assert 0 < longer < 20
    said = f"{longer} of 20 requests are refused: longer than max_model_len 100."
    assert lines.index(said) < lines.index(next(line for line in lines if line.startswith("Memory")))
    arms = small({"arm": [{"name": "short", **flags}]}, concurrency=[2], **lengths)
    assert f"\nshort: {said}\n" in printed(lambda console: terminal.prediction(arms, console))


def small(table: dict[str, Any] | None = None, **workload: Any) -> im.Prediction:
    """A study of few tokens, with this workload and whatever else."""
    load = {"prompt_tokens": 64, "output_tokens": 8, **workload}
    return im.predict({"model": "Qwen/Qwen3-8B", "chip": "a100-sxm4-80gb", **(table or {}), "workload": load})


def text_of(pred: im.Prediction) -> str:
    return printed(lambda console: terminal.prediction(pred, console))


def test_flags_in_force_are_under_the_header():
    given = {"deployment": {"max_num_seqs": 7, "max_model_len": 512, "kv_cache_dtype": "fp8"}}
    head = " ".join(text_of(small(given, concurrency=[1])).split("\n\n")[0].splitlines()[1:])
    assert re.sub(" +", " ", head).startswith("max_num_seqs 7, max_num_batched_tokens ")
    assert "max_model_len 512, gpu_memory_utilization 0.92, kv_cache_dtype fp8" in re.sub(" +", " ", head)
    assert "kv_cache_dtype" not in text_of(small(concurrency=[1]))


def test_a_shortened_max_model_len_is_told_with_the_answer():
    pred = small({"model": "meta-llama/Llama-3.1-8B", "chip": "l4"}, concurrency=[1])
    answer = text_of(pred).split("\n\n")[1].replace("\n", " ")
    assert pred.memory.note
    assert re.sub(" +", " ", answer).count(f"assumes --max-model-len {pred.memory.max_model_len}.") == 1
    assert f"max_model_len {pred.memory.max_model_len}," in text_of(pred)


def test_degrees_and_expert_parallelism_are_in_the_header():
    deployment = {"tensor_parallel_size": 8, "enable_expert_parallel": True}
    pred = small({"model": "Qwen/Qwen3-235B-A22B", "deployment": deployment}, concurrency=[1])
    assert text_of(pred).splitlines()[0].endswith(" on 8 x A100-SXM4-80GB tp=8, expert parallel")
    (fits,) = [line for line in text_of(pred).splitlines() if line.startswith("It fits")]
    assert "GiB of KV cache a chip, " in fits
    assert fits.endswith("at once.")


def test_the_knee_of_one_point_is_said_of_that_point(prediction: im.Prediction):
    assert "TTFT p99 is not more than twice p50 at C=2.\n" in text_of(small(concurrency=[2]))
    uneven = small(concurrency=[8], prompt_tokens={"lognormal": {"mean": 2000, "sigma": 1.5}})
    assert uneven.base.ttft_knee_concurrency == 8
    assert "TTFT p99 is more than twice p50 at C=8.\n" in text_of(uneven)
    assert f"TTFT knee (p99 > 2 x p50) at C={prediction.base.ttft_knee_concurrency}.\n" in text_of(prediction)
    assert "TTFT" not in text_of(small(request_rate=[1.0])).split("limited by")[1].split("Ranges")[0]
    assert "at once it would" not in text_of(prediction)


def test_the_burst_of_a_closed_loop_is_told_unless_it_is_left_out():
    assert terminal.BURST in text_of(small(concurrency=[1, 2]))
    assert terminal.BURST not in text_of(small(concurrency=[1]))
    assert terminal.BURST not in text_of(small(request_rate=[2.0]))
    without = text_of(small(concurrency=[1, 2], warmup_requests=2))
    assert terminal.BURST not in without
    assert without.count("The first 2 requests are left out as warm-up.") == 1


def test_an_overloaded_point_is_named():
    pred = small(request_rate=[1.0, 100.0], prompt_tokens=2048, output_tokens=16)
    over = pred.points[1].summary
    assert f"\n100/s overloaded: serves {figure(over.request_per_s)} of 100 requests/s, the queue grows.\n" in text_of(
        pred
    )
    assert "\n1/s overloaded" not in text_of(pred)
    assert text_of(pred).count("TTFT then depends on how long the run is.") == 1
    (row,) = [line for line in text_of(pred).splitlines() if line.startswith("  100 ")]
    assert f"{figure(over.ttft_s.p99)} s" in row
    assert "overloaded" not in text_of(small(request_rate=[1.0]))
    arms = small({"arm": [{"name": "fast", "workload": {"request_rate": [100.0]}}]},
                 request_rate=[1.0], prompt_tokens=2048, output_tokens=16)  # fmt: skip
    assert "\nfast at 100/s overloaded: serves" in text_of(arms)


def test_cautions_and_simplifications_are_told_once():
    arms = [{"name": "b", "deployment": {"pipeline_parallel_size": 2}}, {"name": "c", "chip": "mi300x"}]
    text = re.sub(r"\s+", " ", text_of(small({"chip": "t4", "model": "Qwen/Qwen3-1.7B", "arm": arms}, concurrency=[1])))
    assert text.count("Efficiencies of the turing family are priors, not measured.") == 1
    assert text.count("Efficiencies of the cdna3 family are priors, not measured.") == 1
    assert text.count("read on NVIDIA GPUs, not on AMD's chips.") == 1
    assert text.count("Pipeline stages share each step's tokens") == 1
    assert "step costs" not in text.lower()
    assert "priors" not in text_of(small(concurrency=[1]))


def test_arms_without_limits_show_their_maximum():
    arms = [{"name": "b", "deployment": {"max_num_seqs": 1}}, {"name": "c", "slo": {"ttft_ms": 500}}]
    pred = small({"arm": arms}, concurrency=[1, 4])
    rows = {line.split()[0]: line.split() for line in text_of(pred).split("\n\n")[3].splitlines()[2:]}
    for arm in pred.arms:
        best = max(point.summary.output_tok_per_s for point in arm.points)
        assert arm.raw_max_tok_per_s == best
        assert figure(best) in rows[arm.name]
    assert rows["b"][4:6] == ["-", "-"]
    assert "-" not in rows["c"][4:6]
    assert "\nGoodput (TTFT < 500 ms) by marginal percentile.\n" in text_of(pred)
    without = text_of(small({"arm": arms[:1]}, concurrency=[1, 4]))
    assert "oodput" not in without
    assert figure(pred.arms[0].raw_max_tok_per_s) in without
    two = [*arms, {"name": "d", "slo": {"e2e_ms": 60_000}}]
    assert "Goodput (each arm by its own limits)" in text_of(small({"arm": two}, concurrency=[1, 4]))


def test_limits_in_words():
    assert terminal.limits(im.Slo(ttft_s=0.5, e2e_s=60)) == "TTFT < 500 ms, E2E < 60 s"


def test_differences_have_no_repr():
    arms = [
        {"name": "b", "deployment": {"max_num_seqs": 4, "enable_prefix_caching": False}},
        {"name": "c", "workload": {"prompt_tokens": {"lognormal": {"mean": 64, "sigma": 0.5}}}, "slo": {"ttft_ms": 9}},
    ]
    text = text_of(small({"arm": arms}, concurrency=[1]))
    assert "max_num_seqs 4, enable_prefix_caching false" in text
    assert "prompt_tokens lognormal mean 64 sigma 0.5, ttft_ms 9" in re.sub(r"\s+", " ", text)
    assert "{" not in text


def test_arms_fit_80_columns(arms: im.Prediction):
    out = io.StringIO()
    console = terminal.make_console(out)
    console.width = 80
    terminal.prediction(arms, console)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "max_num_batched_tokens" in out.getvalue()


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
        line = next(line for line in text.splitlines() if line.lstrip().startswith(f"C={users} "))
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
        f"{len(card.counted) - len(card.missed)} of {len(card.counted)} figures within 10 %"
    )
    assert "-20.0 %, TPOT p99 at C=" in terminal.verdict(card) or "+20.0 %, TTFT p99 at C=" in terminal.verdict(card)


def test_one_pair_is_shown_row_by_row(prediction: im.Prediction):
    measured = make_run(
        RunMeta(kind="imported", concurrency=16, stated={"output_tok_per_s": 1139.6, "ttft_s.p99": 9.0})
    )
    text = printed(lambda console: terminal.score(im.score(prediction, measured), console))
    assert re.search(r"^out tok/s +1,0\d0 +1,140 +-\d\.\d +within +\d+-1,\d+", text, flags=re.M)
    assert re.search(r"^TTFT p99 ms .* missed", text, flags=re.M)


def test_what_is_not_alike_comes_first():
    predicted, measured = founding()
    for run in measured:
        run.meta.model, run.meta.chip = "mock", "l4"
    for run in predicted:
        run.meta.chip = "a100-sxm4-80gb"
    lines = printed(lambda console: terminal.score(im.score(predicted, measured), console)).splitlines()
    assert lines[:2] == [
        "Not alike: model: measured mock, predicted Qwen/Qwen3-8B.",
        "Not alike: chip: measured l4, predicted a100-sxm4-80gb.",
    ]
    assert "figures within" in lines[2]


def test_long_times_of_a_score_are_in_seconds():
    runs = [make_run(RunMeta(kind="imported", stated={"ttft_s.p50": time_s})) for time_s in (117.0, 9.0)]
    text = printed(lambda console: terminal.score(im.score(*runs), console))
    assert re.search(r"^TTFT p50 ms +117 s +9,000 +\+1,200 +missed", text, flags=re.M)


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
