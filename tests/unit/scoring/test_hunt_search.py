"""Where a hunt looks, what it concludes, and what it keeps: on a server that is a formula."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferometer.cli.bench_flags import Connection, Flags, Load, Prompts, Server, Stop, Sweep
from inferometer.errors import InputError
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report import hunt_view
from inferometer.scoring import hunt as hunting
from inferometer.scoring.hunt import Forecast, Hunt, hunt, search
from inferometer.specs.study import load_study
from inferometer.specs.workload import Workload

STUDY = {
    "model": "Qwen/Qwen3-8B",
    "chip": "a100-sxm4-80gb",
    "deployment": {"engine_version": "0.26.0", "num_gpu_blocks_override": 150, "max_model_len": 1024},
    "workload": {
        "prompt_tokens": 64,
        "output_tokens": 48,
        "concurrency": [8],
        "requests_per_point": {"per_concurrency": 4},
    },
    "arm": [
        {"name": "open", "workload": {"request_rate": [2.0]}},
        {"name": "longer", "workload": {"prompt_tokens": 128}},
        {"name": "fp8", "deployment": {"quantization": "fp8"}},
        {"name": "hits", "workload": {"cached_tokens": 32}},
    ],
}


class Served:
    """Stands in for a server that preempts from ``onset`` users on, and whose TTFT p99 then is three times p50."""

    def __init__(self, onset: int, **how: Any) -> None:
        self.onset, self.how = onset, how
        self.asked: list[int] = []
        self.interrupt_at: int | None = None
        self.metrics_urls = how.get("metrics_urls", ["http://server/metrics"])

    def __call__(self, *args: Any) -> Served:
        return self

    def server(self, workload: Workload) -> Any:
        return SimpleNamespace(metrics_urls=self.metrics_urls)

    def point(self, workload: Workload, *, number: int = 0, points: int | None = 1) -> Run:
        users = workload.concurrency or 0
        self.asked.append(users)
        if self.interrupt_at == len(self.asked):
            raise KeyboardInterrupt
        n = workload.requests or 1
        late = np.arange(n) % 10 == 0 if users >= self.onset else np.zeros(n, dtype=bool)
        ttft = np.where(late, 0.3, 0.1)
        columns = {"sent_s": np.arange(n) * 0.01, "first_token_s": np.arange(n) * 0.01 + ttft}
        columns |= {"end_s": columns["first_token_s"] + 1, "output_tokens": np.full(n, 10)}
        counted = {"preemptions": float(max(0, users - self.onset + 1))} if self.how.get("counts", True) else {}
        return make_run(
            RunMeta(
                kind="measured",
                concurrency=users,
                counters=counted,
                server={"engine": "vllm", "flags": {"num_gpu_blocks": 300, "block_size": 16}},
                partial="server unreachable" if self.how.get("dies_at") == users else "",
            ),
            columns,
            self.how.get("samples"),
        )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Served]:
    def make(onset: int, **how: Any) -> Served:
        server = Served(onset, **how)
        monkeypatch.setattr(hunting, "Bench", server)
        return server

    return make


@pytest.mark.parametrize("guess", [1, 7, 20, 24, 63, 100])
@pytest.mark.parametrize("truth", [1, 2, 24, 77, 100])
def test_the_search_finds_the_first_level_from_any_guess(guess: int, truth: int) -> None:
    tried: list[int] = []

    def hit(level: int) -> bool:
        tried.append(level)
        return level >= truth

    assert search(guess, 1, 100, hit, 0.0) == (truth - 1 or None, truth)
    assert len(tried) == len(set(tried)) <= 15


def test_nothing_up_to_the_highest_and_a_search_that_is_ended() -> None:
    assert search(10, 1, 50, lambda level: False, 0.0) == (50, None)
    answers = iter([False, None])
    assert search(10, 1, 50, lambda level: next(answers), 0.0) == (10, None)


def test_a_coarse_search_stops_within_its_share() -> None:
    without, having = search(200, 1, 400, lambda level: level >= 231, 0.05)
    assert without is not None
    assert having is not None
    assert without < 231 <= having
    assert having - without <= 0.05 * without


def test_preemption_is_predicted_by_the_pool_and_the_simulation() -> None:
    """150 blocks of 16 hold 2,400 tokens, 21 requests of 112; the block that the engine keeps for itself is in it."""
    forecast = Forecast(load_study(STUDY).base, "preemption")
    assert forecast.closed_form == 21
    first = forecast.first(1, 100)
    assert first is not None
    assert abs(first - 21) <= 3
    assert forecast.hit(first)
    assert not forecast.hit(first - 1)
    assert forecast.first(1, 5) is None


def test_a_knee_is_predicted_as_the_first_of_every_concurrency() -> None:
    forecast = Forecast(load_study(STUDY).base, "ttft-knee")
    first = forecast.first(1, 64)
    assert first is None or (forecast.hit(first) and not any(forecast.hit(level) for level in range(1, first)))


def test_the_hunt_starts_at_the_prediction_and_finds(served: Callable[..., Served]) -> None:
    server = served(27)
    kept: list[Run] = []
    found = hunt("url", STUDY, store=False, on_run=kept.append)
    assert found.predicted is not None
    assert server.asked[0] == found.predicted
    assert (found.found, found.bracket, found.resolved) == (27, (26, 27), True)
    assert found.error_pct == pytest.approx((found.predicted - 27) / 27 * 100)
    assert [trial.concurrency for trial in found.trials] == sorted(server.asked)
    assert [trial.preemptions for trial in found.trials if trial.concurrency == 28] in ([], [2])
    assert list(found.runs) == kept
    assert (found.mode, found.server_closed_form) == ("recomputed", 42)
    answer = hunt_view.answer(found)
    assert answer.startswith(f"Preemption predicted from C = {found.predicted}, found at C = 27 (between 26 and 27): -")
    assert found.to_dict()["runs"] == [run.id for run in kept]


def test_swapping_is_told_from_the_servers_gauge(served: Callable[..., Served]) -> None:
    columns = {"time_s": [0.0, 1.0], "running": [1, 1], "swapped": [0, 3]}
    served(20, samples=columns)
    assert hunt("url", STUDY, store=False).mode == "swapped"


def test_the_bounds_hold_and_nothing_found_is_said(served: Callable[..., Served]) -> None:
    server = served(1000)
    found = hunt("url", STUDY, store=False, lowest=4, highest=40)
    assert (found.found, found.bracket) == (None, (40, None))
    assert max(server.asked) == 40
    assert "not found up to C = 40" in hunt_view.answer(found)
    low = served(1)
    assert hunt("url", STUDY, store=False, lowest=4, highest=40).bracket == (None, 4)
    assert min(low.asked) == 4


def test_where_nothing_is_predicted_the_highest_is_tried_first(served: Callable[..., Served]) -> None:
    server = served(9)
    found = hunt("url", STUDY, store=False, highest=12)
    assert (found.predicted, found.found, server.asked[0]) == (None, 9, 12)
    assert "predicted nowhere, found at C = 9" in hunt_view.answer(found)


def test_ctrl_c_keeps_what_was_measured(served: Callable[..., Served]) -> None:
    server = served(27)
    server.interrupt_at = 2
    found = hunt("url", STUDY, store=False)
    assert (len(found.runs), found.interrupted, found.resolved) == (1, "interrupted", False)
    assert hunt_view.answer(found).startswith("Broken off (interrupted).")
    server.asked.clear()
    server.interrupt_at = 1
    with pytest.raises(KeyboardInterrupt):
        hunt("url", STUDY, store=False)


def test_a_server_that_dies_ends_the_hunt(served: Callable[..., Served]) -> None:
    first = Forecast(load_study(STUDY).base, "preemption").first(1, 100)
    served(27, dies_at=first)
    found = hunt("url", STUDY, store=False)
    assert (found.trials, found.interrupted, len(found.runs)) == ((), "server unreachable", 1)


@pytest.mark.parametrize("how", [{"metrics_urls": []}, {"counts": False}])
def test_preemption_needs_the_servers_counter_and_a_knee_does_not(
    how: dict[str, Any], served: Callable[..., Served]
) -> None:
    server = served(5, **how)
    with pytest.raises(InputError, match="how often the server preempts is not known"):
        hunt("url", STUDY, store=False)
    assert len(server.asked) == (0 if "metrics_urls" in how else 1)
    knee = hunt("url", STUDY, "ttft-knee", store=False, highest=16)
    assert knee.found == 5


def test_a_knee_of_few_requests_is_not_resolved_and_of_many_it_is(served: Callable[..., Served]) -> None:
    served(5)
    assert not hunt("url", STUDY, "ttft-knee", store=False, highest=16).resolved
    many = load_study(STUDY, ["workload.requests_per_point.per_concurrency=200"])
    assert hunt("url", many, "ttft-knee", store=False, highest=16).resolved


def test_an_arm_without_a_closed_loop_has_no_concurrency_to_hunt() -> None:
    with pytest.raises(InputError, match="closed loop"):
        hunt("url", STUDY, arm="open", store=False)
    with pytest.raises(InputError, match="highest"):
        hunt("url", STUDY, lowest=8, highest=4, store=False)


def test_error_and_answer_of_a_hunt_by_hand() -> None:
    found = Hunt(what="preemption", predicted=23, closed_form=21, found=24, bracket=(22, 24), mode="recomputed")
    assert found.error_pct == pytest.approx(-100 / 24)
    assert hunt_view.answer(found) == (
        "Preemption predicted from C = 23, found at C = 24 (between 22 and 24): -4 %; recomputed, not swapped."
    )


def flags(**sweep: Any) -> Flags:
    load = sweep.pop("load", Load())
    return Flags(load, Prompts(), Stop(), Sweep(**sweep), Connection(), Server())


@pytest.mark.parametrize(
    ("given", "study", "message"),
    [
        ({"hunt": "preemption"}, None, "--hunt: needs a study"),
        ({"arms": True}, None, "--arms: needs a study"),
        ({"hunt": "preemption", "search": True}, "s", "give only one of --search, --hunt"),
        ({"hunt": "preemption", "repeats": 2}, "s", "--hunt chooses its points itself"),
        ({"hunt": "preemption", "load": Load(request_rate="2")}, "s", "leave --request-rate"),
        ({"profile": "p.toml"}, "s", "--profile: 'p.toml' is not allowed; give it only with --hunt"),
        ({"highest": 4.0}, "s", "--highest: 4.0 is not allowed; give it only with --search or --hunt"),
        (
            {"hunt": "preemption", "attainment": 0.9},
            "s",
            "--attainment: 0.9 is not allowed; give it only with --search",
        ),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], study: str | None, message: str) -> None:
    load = given.pop("load", Load() if study else Load(concurrency="2"))
    with pytest.raises(InputError) as raised:
        flags(load=load, **given).plan(study, None)
    assert str(raised.value).startswith(message) or message in str(raised.value)


def test_arms_of_one_server_and_why_not_the_others(tmp_path: Any) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'model = "Qwen/Qwen3-8B"\nchip = "a100-sxm4-80gb"\n[workload]\nconcurrency = [2]\n'
        '[[arm]]\nname = "open"\n[arm.workload]\nrequest_rate = [2.0]\n'
        '[[arm]]\nname = "fp8"\n[arm.deployment]\nquantization = "fp8"\n'
        '[[arm]]\nname = "fp8-long"\n[arm.deployment]\nquantization = "fp8"\n[arm.workload]\nprompt_tokens = 9\n'
        '[[arm]]\nname = "hits"\n[arm.workload]\ncached_tokens = 32\n'
    )
    plans, skipped = flags(arms=True).plans(str(file), None)
    assert [plan.arm.name for plan in plans if plan.arm] == ["base", "open"]
    assert skipped == {
        "fp8": "needs another server (quantization fp8)",
        "fp8-long": "needs another server (quantization fp8)",
        "hits": "states cached_tokens, which a server decides itself",
    }
    plans, skipped = flags(arms=True).plans(str(file), "fp8")
    assert [plan.arm.name for plan in plans if plan.arm] == ["fp8", "fp8-long"]
    assert skipped["base"] == "needs another server (quantization None)"
