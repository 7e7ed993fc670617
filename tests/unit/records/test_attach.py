"""A client's result joined with its server's pages and log. The genuine runs shared one boot of one machine, so the
client's monotonic clock and the time of day differ by one constant: that checks every start that is found."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import polars as pl
import pytest

from inferometer.errors import InferometerWarning, InputError
from inferometer.records import metrics
from inferometer.records.attach import with_server
from inferometer.records.importers import load, metrics_pages
from inferometer.records.run import OWN_CLOCK, Run, RunMeta, make_run
from shared import shared

POINTS = {
    "main_clean/c1": 1,
    "main_clean/c2": 2,
    "main_clean/c4": 4,
    "main_clean/c8": 8,
    "main_rerun/c32b": 32,
    "prefix/prefix_on_c4": 4,
    "prefix/prefix_on_c8": 8,
    "chunk256/chunk256_in512_c8": 8,
}
BOOT_UNIX_S = 1795952989.736
"""Time of day less monotonic clock on the machine of the sweeps."""


def files(point: str) -> tuple[Path, Path, Path]:
    """Result, pages and log of a point."""
    folder = shared("data/cpu_engine")
    log = folder / f"{point.split('/')[0]}.server.log"
    return folder / f"{point}.json", folder / f"{point}.metrics.prom", log


def result(point: str) -> Run:
    return load(files(point)[0])[0]


def start_unix_s(point: str) -> float:
    """When the run began by the client's own monotonic clock."""
    return float(min(json.loads(files(point)[0].read_text())["start_times"])) + BOOT_UNIX_S


@pytest.fixture(scope="module")
def joined() -> dict[str, Run]:
    return {point: with_server(result(point), *files(point)[1:]) for point in POINTS}


@pytest.mark.parametrize("point", POINTS)
def test_the_start_is_found_to_milliseconds(point: str, joined: dict[str, Run]) -> None:
    meta = joined[point].meta
    assert meta.started_unix_s == pytest.approx(start_unix_s(point), abs=0.01)
    assert 0.02 <= meta.server["clock_uncertainty_s"] < 0.3
    assert any("by the server's pages" in note for note in meta.notes)


@pytest.mark.parametrize("point", POINTS)
def test_so_it_is_by_the_logs_step_lines_which_are_to_the_second(point: str) -> None:
    run = with_server(result(point), log=files(point)[2])
    assert run.meta.started_unix_s == pytest.approx(start_unix_s(point), abs=0.02)
    assert any("by the server's log" in note for note in run.meta.notes)


@pytest.mark.parametrize("point", POINTS)
def test_client_and_server_agree(point: str, joined: dict[str, Run]) -> None:
    run, users = joined[point], POINTS[point]
    ours, theirs = metrics.in_flight(run)
    assert ours == pytest.approx(users, rel=0.04)
    assert theirs == pytest.approx(ours, rel=0.03)
    assert run.summary().littles_law == pytest.approx(1, abs=0.01)
    # the pages end up to a second before the run does, so all prompts are counted and not all output
    assert run.meta.counters["prompt_tokens"] == run.requests["prompt_tokens"].sum()
    slack = 1.0 * run.summary().output_tok_per_s
    assert run.meta.counters["generation_tokens"] == pytest.approx(run.requests["output_tokens"].sum(), abs=slack)
    assert run.server.filter(pl.col("line") != "step").height == 0 or run.server["log_running"].max() <= users
    assert run.server["running"].max() <= users


def test_samples_are_of_the_runs_time_only(joined: dict[str, Run]) -> None:
    for run in joined.values():
        end = run.requests["end_s"].max()
        assert -1.0 <= run.server["time_s"].min() <= 0.0
        assert run.server["time_s"].max() <= end + 1.0
        first, last = run.meta.server["counted_s"]
        assert first <= 0 < last
        assert run.server.filter(pl.col("running").is_not_null())["time_s"].to_list()[::100000] == [first]


def test_a_log_of_four_points_gives_each_its_own_steps(joined: dict[str, Run]) -> None:
    for users in (1, 2, 4, 8):
        steps = joined[f"main_clean/c{users}"].server.filter(pl.col("line") == "step")
        assert steps["log_running"].max() == users
        run = joined[f"main_clean/c{users}"]
        # each first token is the end of a prompt's step; lines are to the second, so a second's worth may be others'
        decoded = int(run.requests["output_tokens"].sum()) - run.requests.height
        second = run.summary().output_tok_per_s
        assert steps["step_generation_tokens"].sum() == pytest.approx(decoded, abs=second)


def test_the_prefix_caches_hits_and_the_servers_facts(joined: dict[str, Run]) -> None:
    counters = joined["prefix/prefix_on_c4"].meta.counters
    assert (counters["prefix_cache_hits"], counters["prefix_cache_queries"]) == (18432, 23040)
    assert joined["main_clean/c4"].meta.counters["prefix_cache_hits"] == 0
    for point, run in joined.items():
        server = run.meta.server
        assert (server["engine"], server["version"], server["kv_cache_tokens"]) == ("vllm", "0.32.0", 65_536)
        assert server["flags"]["max_num_batched_tokens"] == (256 if point.startswith("chunk256") else 2048)
        assert server["means"]["e2e_s"] == pytest.approx(run.summary().e2e_s.mean, rel=0.025)


def test_the_run_given_stays_as_it_is() -> None:
    run = result("main_clean/c2")
    before = run.id
    other = with_server(run, *files("main_clean/c2")[1:])
    assert (run.server.height, run.meta.notes, run.meta.server, run.meta.started_unix_s) == (0, [], {}, None)
    assert other.id != before
    assert run.id == before
    assert other.requests.equals(run.requests)


def test_one_file_of_pages_may_span_a_sweep(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.prom"
    points = [f"main_clean/c{users}" for users in (1, 2, 4, 8)]
    sweep.write_text("".join(files(point)[1].read_text() for point in points))
    for point in points:
        run = result(point)
        run.meta.created = ""  # so that nothing but the counts tells
        found = with_server(run, sweep)
        assert found.meta.started_unix_s == pytest.approx(start_unix_s(point), abs=0.01)
        assert found.meta.counters["prompt_tokens"] == run.requests["prompt_tokens"].sum()
    # the first page of the next point comes after this one's end: nothing lacks, and the warm-up's end is counted too
    assert with_server(result("main_clean/c4"), sweep).meta.counters["requests_finished"] == 24 + 1


def test_a_short_run_of_few_pages_says_how_little_is_known() -> None:
    point = "tiny_eager/tiny_c8"
    run = with_server(result(point), files(point)[1])
    assert run.meta.server["clock_uncertainty_s"] >= 1
    assert abs(run.meta.started_unix_s - start_unix_s(point)) <= run.meta.server["clock_uncertainty_s"]


@pytest.mark.parametrize(
    ("point", "pages"),
    [
        ("main_clean/c8", "main_clean/c4"),
        ("main_clean/c4", "main_clean/c8"),
        ("main_clean/c2", "main_clean/c1"),
        ("main_rerun/c32b", "main_clean/c8"),
        ("prefix/prefix_on_c4", "main_clean/c4"),
    ],
)
def test_another_runs_pages_are_refused(point: str, pages: str) -> None:
    with pytest.raises(InputError, match=r"metrics\.prom: the pages do not show this run's requests"):
        with_server(result(point), files(pages)[1])


def test_a_stated_start_is_taken_and_pages_of_another_time_refused() -> None:
    point = "main_clean/c4"
    run = result(point)
    run.meta.started_unix_s = start_unix_s(point) + 0.5
    assert with_server(run, files(point)[1]).meta.started_unix_s == run.meta.started_unix_s
    run.meta.started_unix_s += 3600
    with pytest.raises(InputError, match="no page was taken during the run"):
        with_server(run, files(point)[1])


def test_a_log_in_another_zone_is_put_right(tmp_path: Path) -> None:
    point = "main_clean/c2"
    run = result(point)
    run.meta.started_unix_s = start_unix_s(point) - 2 * 3600
    found = with_server(run, log=files(point)[2])
    assert any("+7,200 s" in note for note in found.meta.notes)
    decoded = int(run.requests["output_tokens"].sum()) - run.requests.height
    assert found.server["step_generation_tokens"].sum() == pytest.approx(decoded, rel=0.02)


def test_a_log_of_another_time_gives_its_facts_only() -> None:
    run = result("main_clean/c2")
    with pytest.warns(InferometerWarning) as said:
        found = with_server(run, files("main_clean/c2")[1], files("chunk256/chunk256_in512_c8")[2])
    # the log from 12:54:36 to 12:57:24 (UTC), the run from 13:06:09 on
    (text,) = [str(each.message) for each in said]
    assert text.startswith(
        "chunk256.server.log: no line of the log is of the time of run c2: the run 2026-11-29T13:06:"
    )
    assert "the log 2026-11-29T12:54:36+00:00 to 2026-11-29T12:57:24+00:00" in text
    assert found.meta.server["max_num_batched_tokens"] == 256
    assert "line" not in found.server.columns
    assert any("no line of the run's time" in note for note in found.meta.notes)


def test_another_models_log_is_refused() -> None:
    log = files("tiny_eager/tiny_c8")[2]
    for pages in (None, files("main_clean/c1")[1]):
        with pytest.raises(InputError, match=r"models/tiny \(served as tiny\), the run c1 is of q3s"):
            with_server(result("main_clean/c1"), pages, log)
    with pytest.raises(InputError, match=r"tiny_eager\.server\.log"):
        load(files("main_clean/c1")[0], server_log=log)


@pytest.mark.parametrize(
    ("model", "served", "run", "alike"),
    [
        ("models/q3s", ["q3s"], "q3s", True),
        ("/mnt/llm", ["chat", "qwen3-8b"], "Qwen/Qwen3-8B", True),
        ("/mnt/Qwen3-8B/", [], "Qwen/Qwen3-8B", True),
        ("meta-llama/Llama-3.1-8B-Instruct", [], "llama-3.1-8b", True),
        (
            "/data/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/9c925d64d72725edaf89",
            [],
            "Qwen/Qwen3-8B",
            True,
        ),
        ("/mnt/Qwen3-4B", [], "Qwen/Qwen3-8B", False),
        ("Qwen/Qwen3-8B", ["chat"], "talk", False),
    ],
)
def test_names_that_mean_one_model(tmp_path: Path, model: str, served: list[str], run: str, alike: bool) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        f"INFO 01-01 00:00:00 [u.py:3] non-default args: {{'model': {model!r}, 'served_model_name': {served!r}}}\n"
        f"INFO 01-01 00:00:01 [core.py:90] Initializing a V1 LLM engine (v0.26.0) with config: model={model!r}, "
        "dtype=torch.bfloat16\n"
    )
    given = make_run(RunMeta(kind="imported", name="r", model=run), {"sent_s": [0.0], "end_s": [2.0]})
    if alike:
        assert with_server(given, log=log).meta.server["model"] == model
    else:
        with pytest.raises(InputError, match=f"the run r is of {run}"):
            with_server(given, log=log)


def test_a_runs_own_log_is_joined_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for point in ("main_clean/c1", "main_clean/c8", "prefix/prefix_on_c4"):
            with_server(result(point), *files(point)[1:])
            with_server(result(point), log=files(point)[2])


@pytest.mark.parametrize("pages", [True, False])
def test_a_log_of_the_start_up_alone_is_warned_of(tmp_path: Path, pages: bool) -> None:
    whole = files("main_clean/c8")[2].read_text().splitlines(keepends=True)
    ready = next(number for number, line in enumerate(whole) if "iteration elapsed time" in line)
    log = tmp_path / "start.log"
    log.write_text("".join(whole[:ready]))
    run = result("main_clean/c8")
    with pytest.warns(
        InferometerWarning, match=r"start\.log: no line .* time of run c8: the run .*T13:0.*the log .*T13:0"
    ):
        found = with_server(run, files("main_clean/c8")[1] if pages else None, log)
    assert found.meta.server["kv_cache_tokens"] == 65_536


def test_a_result_without_requests_gets_all_pages() -> None:
    _, pages, log = files("main_clean/c2")
    run = make_run(RunMeta(kind="imported", concurrency=2, stated={"output_tok_per_s": 81.8}))
    found = with_server(run, pages, log)
    (alone,) = metrics_pages.read(pages)
    assert found.meta.started_unix_s == alone.meta.started_unix_s
    assert found.meta.counters == alone.meta.counters
    assert found.server.height == alone.server.height
    assert found.meta.server["kv_cache_tokens"] == 65_536
    assert found.summary().output_tok_per_s == 81.8
    own = result("main_clean/c2")
    own.meta.clock = OWN_CLOCK
    assert with_server(own, pages).server.height == alone.server.height


def test_a_page_without_time_gives_settings_only() -> None:
    run = result("main_clean/c2")
    found = with_server(run, shared("data/cpu_engine/metrics_full_idle.txt"), files("main_clean/c2")[2])
    assert found.meta.server["num_gpu_blocks"] == 512
    assert found.meta.counters == {}
    assert any("without its time" in note for note in found.meta.notes)


def test_counters_of_replicas_are_summed_and_a_restart_is_said() -> None:
    run = make_run(RunMeta(kind="imported", started_unix_s=10.0), {"sent_s": [0.0], "end_s": [2.0]})
    rows = {
        "time_s": [0.0, 0.0, 1.0, 1.0, 3.0, 3.0],
        "replica": [0, 1, 0, 1, 0, 1],
        "running": [0, 0, 1, 1, 0, 0],
        "generation_tokens": [100.0, 7.0, 110.0, 9.0, 120.0, 4.0],
    }
    pages = make_run(RunMeta(kind="imported", started_unix_s=9.5), server=rows)
    found = with_server(run, pages)
    assert found.meta.counters == {"generation_tokens": 24.0}
    assert any("replica 1 restarted" in note for note in found.meta.notes)
    assert found.server["time_s"].unique().sort().to_list() == [-0.5, 0.5, 2.5]


def test_what_cannot_be_joined_is_refused(tmp_path: Path) -> None:
    run = result("main_clean/c2")
    with pytest.raises(InputError, match="nothing to join"):
        with_server(run)
    with pytest.raises(InputError, match=r"metrics: .*absent\.prom"):
        with_server(run, tmp_path / "absent.prom")
    with pytest.raises(InputError, match=r"server_log: .*absent\.log"):
        with_server(run, log=tmp_path / "absent.log")
    (tmp_path / "other.log").write_text("hello\n")
    with pytest.raises(InputError, match=r"other\.log: no line of a known engine"):
        with_server(run, log=tmp_path / "other.log")
    gpu = make_run(RunMeta(kind="imported", started_unix_s=1.0), server={"time_s": [0.0, 1.0], "gpu_util": [0.1, 0.2]})
    with pytest.raises(InputError, match="count neither tokens nor requests"):
        with_server(run, gpu)


# --- through load


def test_load_joins_pages_by_name_and_one_log() -> None:
    folder = shared("data/cpu_engine/main_clean")
    log = files("main_clean/c1")[2]
    runs = load(folder, metrics="auto", server_log=log)
    assert [run.meta.name for run in runs] == ["c1", "c2", "c4", "c8"]
    assert all(run.meta.server["kv_cache_tokens"] == 65_536 for run in runs)
    assert [run.meta.counters["prompt_tokens"] for run in runs] == [3073, 4096, 6144, 10240]
    by_folder = load(folder, metrics=folder)
    by_glob = load(str(folder / "c[24].json"), metrics=str(folder / "*.metrics.prom"))
    assert [run.meta.counters["prompt_tokens"] for run in by_folder] == [3073, 4096, 6144, 10240]
    assert [run.meta.counters["prompt_tokens"] for run in by_glob] == [4096, 6144]
    (one,) = load(folder / "c4.json", metrics=folder / "c4.metrics.prom")
    assert one.meta.counters["prompt_tokens"] == 6144
    # nothing is joined unasked
    assert load(folder / "c4.json")[0].meta.counters == {}


def test_load_says_what_has_no_pages(tmp_path: Path) -> None:
    c2, pages, _ = files("main_clean/c2")
    for path in (c2, pages, files("main_clean/c4")[0]):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first, second = load(tmp_path, metrics="auto")
    assert first.server.height > 0
    assert any("nothing is joined" in note for note in second.meta.notes)
    with pytest.raises(InputError, match="some named as the results are"):
        load(tmp_path / "c4.json", metrics="auto")
    with pytest.raises(InputError, match="no run of requests"):
        load(tmp_path / pages.name, metrics="auto")
    with pytest.raises(InputError, match="metrics"):
        load(tmp_path / "c2.json", metrics=tmp_path / "absent")


def test_a_queue_between_client_and_server_is_not_hidden_by_the_servers_own_latency() -> None:
    """Four in flight for 10 s; the server held each for a quarter of its E2E, and its gauges say so."""
    each = {"sent_s": [0.0] * 4, "end_s": [10.0] * 4}
    samples = {"time_s": [0.5 * i for i in range(21)], "running": [1] * 21}

    def run(served_s: float, running: int = 1) -> Run:
        counters = {"e2e_s.sum": 4 * served_s, "e2e_s.count": 4.0}
        return make_run(
            RunMeta(kind="imported", concurrency=4, counters=counters), each, {**samples, "running": [running] * 21}
        )

    assert metrics.in_flight(run(2.5)) == (4.0, 1.0)
    assert metrics.in_flight(run(10.0)) == (4.0, 4.0)  # gauges that lag
    assert metrics.in_flight(run(10.0, running=7)) == (4.0, 7.0)  # others use the server too
