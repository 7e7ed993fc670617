"""Calibration from pages of a running server's /metrics, and the command."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.request import Request, urlopen

import pytest
from tests.shared import shared

import inferometer as im
from inferometer.cli.main import main
from inferometer.emulator import serve
from inferometer.errors import InputError
from inferometer.scoring.live import calibrate_live, live_runs, saved_pages, watch

FLAGS = {"max_num_batched_tokens": 2048, "enable_prefix_caching": False}
DEP = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"), flags=FLAGS)


def page(ended: int, *, ttft_s: float = 0.1, tpot_s: float = 0.02, output: int = 101, running: int = 4) -> str:
    """What vLLM would show after so many requests of 512 prompt tokens."""
    e2e_s = ttft_s + tpot_s * (output - 1)
    counts = {
        "time_to_first_token_seconds": ttft_s,
        "request_time_per_output_token_seconds": tpot_s,
        "e2e_request_latency_seconds": e2e_s,
    }
    lines = [f"vllm:num_requests_running {running}", f"vllm:prompt_tokens_total {512 * ended}"]
    lines += [f"vllm:generation_tokens_total {output * ended}"]
    lines += [f"vllm:{name}_{end} {value}" for name, mean in counts.items()
              for end, value in (("count", ended), ("sum", mean * ended))]  # fmt: skip
    return "\n".join(lines) + "\n"


def test_two_pages_give_means_lengths_and_the_mean_in_flight():
    (run,) = live_runs([(0.0, page(10)), (21.0, page(50))])
    summary = run.summary()
    # 40 requests of 2.1 s in 21 s: 4 at a time
    assert summary.mean_in_flight == pytest.approx(4.0)
    assert (summary.ttft_s.mean, summary.tpot_s.mean) == (pytest.approx(0.1), pytest.approx(0.02))
    assert run.meta.stated["prompt_tokens"] / 40 == pytest.approx(512)
    assert run.meta.stated["output_tokens"] / 40 == pytest.approx(101)


def test_one_operating_point_lumps_the_slope_and_says_that_it_is_coarse():
    found = calibrate_live([(0.0, page(10)), (21.0, page(50))], DEP)
    assert "means only" in found.coarse
    assert {"step_s", "kv_read", "sequence_s"} <= set(found.lumped["weight_read"])
    assert "kv_read" in found.refused


def test_an_idle_server_says_nothing():
    with pytest.raises(InputError, match="fewer than 5 requests"):
        live_runs([(0.0, page(10)), (21.0, page(11))])
    with pytest.raises(InputError, match="no engine"):
        live_runs([(0.0, "a 1\n"), (1.0, "a 1\n")])


def test_idle_time_at_both_ends_is_left_out():
    pages = [(0.0, page(10)), (5.0, page(10)), (26.0, page(50)), (60.0, page(50, running=0))]
    assert [run.meta.name for run in live_runs(pages)] == ["5 to 26 s"]


def test_several_intervals_give_several_points():
    pages = [(0.0, page(10)), (21.0, page(50)), (42.0, page(90))]
    assert [run.meta.duration_s for run in live_runs(pages)] == [21.0, 21.0]


def test_pages_of_a_real_server():
    """A closed loop of 8 in waves, on one CPU core: the wave is recognised, and prefill is near what runs of it say."""
    pages = saved_pages(shared("data/cpu_engine/main_clean/c8.metrics.prom"))
    found = calibrate_live(pages, im.load_study("cpu-vllm-q3s").base.deployment)
    assert any("in waves" in note for note in found.notes)
    assert 0.6 < found.params["mfu"] < 1.1


def test_a_server_that_is_watched():
    with serve(DEP) as url, ThreadPoolExecutor(4) as pool:
        answered, enough = Event(), Event()
        users = [pool.submit(_user, url, answered, enough) for _ in range(4)]
        try:
            assert answered.wait(30)
            pages = watch(url, interval_s=3)
        finally:
            enough.set()
        for user in users:
            user.result()
    found = calibrate_live(pages, DEP)
    assert found.coarse
    assert "weight_read" in found.params


def _user(url: str, answered: Event, enough: Event) -> None:
    """Sends one request after the other until it is enough."""
    body = {"model": DEP.model.name, "prompt": "word " * 64, "max_tokens": 16, "ignore_eos": True}
    request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    while not enough.is_set():
        urlopen(request).read()
        answered.set()


# ---------------------------------------------------------------- the command
def test_the_command_answers_first_and_names_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [str(shared(f"data/cpu_engine/{name}.json")) for name in ("main_clean/c1", "main_rerun/c32b")]
    held = str(shared("data/cpu_engine/main_clean/c4.json"))
    out = tmp_path / "profile.toml"
    assert main(["calibrate", *runs, "--study", "cpu-vllm-q3s", "--hold-out", held, "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[2].startswith(
        "3 constants fitted to 2 runs; throughput and TPOT of points held out within"
    )
    assert max(map(len, said.splitlines())) <= 100 + len(str(out))
    assert f"inferometer predict cpu-vllm-q3s --profile {out}" in said.replace("\n", " ").replace("  ", " ")
    assert im.load_profile(out).runs == ["c1", "c32b"]


def test_the_json_is_the_profile(capsys: pytest.CaptureFixture[str]):
    runs = [str(shared(f"data/cpu_engine/{name}.json")) for name in ("main_clean/c1", "main_rerun/c32b")]
    assert main(["calibrate", *runs, "--study", "cpu-vllm-q3s", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "inferometer/profile/1"
    assert set(document["params"]) == {"weight_read", "kv_read", "mfu"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no runs"),
        (["--live", "http://localhost:1"], "--study"),
        (["RUN", "--live", "http://localhost:1", "--study", "cpu-vllm-q3s"], "one of runs"),
        (["RUN"], "does not say its"),
    ],
)
def test_what_the_command_cannot_do(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    run = str(shared("data/cpu_engine/main_clean/c1.json"))
    assert main(["calibrate", *(run if word == "RUN" else word for word in words)]) == 2
    assert said in capsys.readouterr().err
