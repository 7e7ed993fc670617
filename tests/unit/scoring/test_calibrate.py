"""Calibration: what it demands, what it can tell apart and what not, and that it finds a known truth."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

import inferometer as im
from inferometer.errors import InputError, UnknownNameError
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.fitting import fit
from inferometer.steptime.costs import SheetModel
from inferometer.steptime.efficiencies import efficiencies

CHIP = im.chip("a100-sxm4-80gb")
FLAGS = {"max_num_batched_tokens": 2048, "enable_prefix_caching": False}
DEP = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=CHIP, flags=FLAGS)
BARE = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=CHIP)


def simulated(users: int, prompt: int = 512, output: int = 32, dep: im.Deployment = DEP, **truth: float) -> Run:
    """A run of the simulator with a truth of our own, token times kept."""
    costs = SheetModel(dep, msgspec.structs.replace(efficiencies(dep.chip), **truth)).costs()
    load = im.Workload.closed_loop(users, 3 * users, prompt, output)
    return im.simulate(dep, load, costs=costs, token_times=True)


def as_measured(run: Run, **meta: Any) -> Run:
    """The run as an importer has it: nothing known of the server."""
    fields: dict[str, Any] = {
        "kind": "imported",
        "name": f"c{run.meta.concurrency}",
        "concurrency": run.meta.concurrency,
    }
    requests = run.requests.with_columns(pl.lit(None, dtype=pl.Int64).alias("cached_tokens"))
    return make_run(RunMeta(**(fields | meta)), requests, token_times=run.token_times)


SWEEP = [simulated(users, weight_read=0.7, kv_read=0.6, mfu=0.7) for users in (1, 8, 32, 64)]


def test_a_known_truth_is_found():
    found = im.calibrate(SWEEP, DEP)
    assert list(found.params) == ["weight_read", "kv_read", "mfu"]
    assert found.params["weight_read"] == pytest.approx(0.7, rel=0.005)
    assert found.params["mfu"] == pytest.approx(0.7, rel=0.02)
    # decodes in mixed steps were at the family's value, not at its ratio, which moves this one a little
    assert found.params["kv_read"] == pytest.approx(0.6, rel=0.1)
    assert found.lumped["weight_read"] == ["step_s", "layer_s"]
    assert found.lumped["kv_read"] == ["sequence_s"]
    assert found.held["sequence_s"] == 2.3e-05
    assert set(found.refused) == {"step_s", "sequence_s", "prefill_step_s", "mfu_attention", "kv_read_mixed"}
    assert max(abs(row["error_pct"]) for row in found.residuals) < 0.5


def test_points_are_predicted_from_the_others_and_that_changes_no_constant():
    with_left_out, without = im.calibrate(SWEEP, DEP), im.calibrate(SWEEP, DEP, leave_one_out=False)
    assert with_left_out.params == without.params
    assert without.held_out == []
    tok_per_s = [row for row in with_left_out.held_out if row["metric"] == "output_tok_per_s"]
    assert [row["concurrency"] for row in tok_per_s] == [1, 8, 32, 64]
    assert max(abs(row["error_pct"]) for row in tok_per_s) < 3


def test_runs_held_out_are_not_fitted():
    wrong = simulated(16, weight_read=0.35, kv_read=0.6, mfu=0.7)
    found = im.calibrate(SWEEP, DEP, hold_out=wrong)
    assert found.params["weight_read"] == pytest.approx(0.7, rel=0.005)
    (row,) = [row for row in found.held_out if row["metric"] == "tpot_ms.mean"]
    assert row["error_pct"] < -25


def test_too_few_points_to_hold_out_say_so():
    found = im.calibrate(SWEEP[:2], DEP)
    assert found.held_out == []
    assert any("too few points" in note for note in found.notes)


# ---------------------------------------------------------------- what is demanded
def test_every_run_that_lacks_its_hit_rate_or_budget_is_named():
    runs = [as_measured(run) for run in SWEEP[:2]]
    with pytest.raises(InputError) as raised:
        im.calibrate(runs, BARE)
    said = str(raised.value)
    assert "c1 lacks its prefix-cache hit rate" in said
    assert "c8 lacks max_num_batched_tokens" in said


@pytest.mark.parametrize(
    "known",
    [
        {"counters": {"prefix_cache_queries": 100.0, "prefix_cache_hits": 0.0}},
        {"counters": {"prompt_tokens": 100.0, "cached_prompt_tokens": 0.0}},
        {"server": {"prefix_caching": False}},
        {"server": {"flags": {"enable_prefix_caching": False}}},
    ],
)
def test_where_a_hit_rate_comes_from(known: dict[str, Any]):
    server = {"max_num_batched_tokens": 2048, **known.get("server", {})}
    runs = [as_measured(run, **(known | {"server": server})) for run in SWEEP]
    assert im.calibrate(runs, BARE, leave_one_out=False).params["weight_read"] == pytest.approx(0.7, rel=0.01)


def test_a_hit_rate_given_counts_for_the_prompts():
    half = [simulated(users, prompt=256, weight_read=0.7, kv_read=0.6, mfu=0.7) for users in (1, 8, 32, 64)]
    # as if 512 tokens had been sent and half of each found in the cache
    longer = pl.lit(512, dtype=pl.Int64).alias("prompt_tokens")
    sent = [as_measured(make_run(r.meta, r.requests.with_columns(longer), None, r.token_times)) for r in half]
    found = im.calibrate(sent, DEP, prefix_hit_rate=0.5, leave_one_out=False)
    assert found.params["mfu"] == pytest.approx(0.7, rel=0.05)
    blind = im.calibrate(sent, DEP, leave_one_out=False)
    assert blind.params["mfu"] > 1.2
    assert any("is below" in note for note in blind.notes)


def test_a_runs_own_budget_is_taken_before_the_deployments():
    small = im.Deployment(model=DEP.model, chip=CHIP, flags={**FLAGS, "max_num_batched_tokens": 256})
    runs = [as_measured(simulated(u, dep=small), server={"max_num_batched_tokens": 256}) for u in (1, 8, 32)]
    found = im.calibrate(runs, DEP, leave_one_out=False)
    assert found.params["mfu"] == pytest.approx(0.83, rel=0.03)
    assert any("max_num_batched_tokens 256" in note for note in found.notes)


def test_deployments_of_two_chips_and_of_another_number():
    other = im.Deployment(model=DEP.model, chip=im.chip("h100-sxm-80gb"), flags=FLAGS)
    with pytest.raises(InputError, match="one chip"):
        im.calibrate(SWEEP[:2], [DEP, other])
    with pytest.raises(InputError, match="2 deployments"):
        im.calibrate(SWEEP[:3], [DEP, DEP])
    with pytest.raises(InputError, match="no runs"):
        im.calibrate([], DEP)


def test_a_model_of_few_figures_has_no_steps_to_fit():
    few = im.load_study(
        {
            "model": {"weight_bytes": 16_000_000_000, "layers": 36, "kv_heads": 8, "head_dim": 128},
            "chip": CHIP.id,
            "workload": {"concurrency": 1},
        }
    ).base.deployment.model
    with pytest.raises(InputError, match="few figures"):
        im.calibrate(SWEEP[:2], im.Deployment(model=few, chip=CHIP, flags=FLAGS))


# ---------------------------------------------------------------- what can be told apart
def test_one_concurrency_gives_no_slope_and_lumps_it():
    found = im.calibrate([SWEEP[1], simulated(8)], DEP)
    assert "kv_read" in found.refused
    assert "kv_read" not in found.params
    assert {"kv_read", "sequence_s"} <= set(found.lumped["weight_read"])


def test_without_first_tokens_there_is_no_prefill_rate():
    runs = [make_run(RunMeta(kind="imported", name=f"c{c}", concurrency=c, stated={
        "tpot_s.mean": tpot_s, "requests": 10.0 * c, "prompt_tokens": 10.0 * c * 512, "output_tokens": 10.0 * c * 64,
    })) for c, tpot_s in ((1, 0.012), (32, 0.03))]  # fmt: skip
    found = im.calibrate(runs, DEP)
    assert "no run states a TTFT" in found.refused["mfu"]
    assert list(found.params) == ["weight_read", "kv_read"]


def test_two_model_sizes_tell_the_step_from_the_weights():
    truth = {"weight_read": 0.7, "step_s": 0.002}
    small = im.Deployment(model=im.model("Qwen/Qwen3-0.6B"), chip=CHIP, flags=FLAGS)
    deps = [small, small, DEP, DEP]
    runs = [simulated(users, dep=dep, **truth) for dep, users in zip(deps, (1, 32, 1, 32), strict=True)]
    found = im.calibrate(runs, deps)
    assert found.params["step_s"] == pytest.approx(0.002, rel=0.05)
    assert found.params["weight_read"] == pytest.approx(0.7, rel=0.02)
    assert found.model == "Qwen/Qwen3-0.6B + Qwen/Qwen3-8B"


def test_contexts_apart_tell_the_cache_from_the_bookkeeping():
    truth = {"sequence_s": 6e-5, "kv_read": 0.6, "kv_read_mixed": 0.46 * 0.6 / 0.73}
    points = [(1, 128), (64, 128), (64, 3000), (16, 3000)]
    found = im.calibrate([simulated(u, prompt=p, **truth) for u, p in points], DEP, leave_one_out=False)
    assert found.params["sequence_s"] == pytest.approx(6e-5, rel=0.05)
    assert found.params["kv_read"] == pytest.approx(0.6, rel=0.05)


def test_prompts_apart_tell_a_steps_prefill_from_its_tokens():
    truth = {"prefill_step_s": 0.006}
    points = [(1, 64), (1, 512), (1, 1900), (16, 512)]
    found = im.calibrate([simulated(u, prompt=p, **truth) for u, p in points], DEP, leave_one_out=False)
    assert found.params["prefill_step_s"] == pytest.approx(0.006, rel=0.1)


def test_mixed_decodes_only_where_asked_for_and_seen():
    runs = [simulated(u, prompt=1024, output=64, kv_read_mixed=0.3) for u in (1, 32, 64)]
    assert "follows kv_read" in im.calibrate(runs, DEP, leave_one_out=False).refused["kv_read_mixed"]
    blind = [Run(meta=r.meta, requests=r.requests, server=r.server) for r in runs]
    asked = ["weight_read", "kv_read", "mfu", "kv_read_mixed"]
    assert "two concurrencies" in im.calibrate(blind, DEP, fit=asked, leave_one_out=False).refused["kv_read_mixed"]


def test_only_what_is_asked_for_is_fitted():
    found = im.calibrate(SWEEP, DEP, fit=["weight_read"], leave_one_out=False)
    assert list(found.params) == ["weight_read"]
    assert "not among" in found.refused["mfu"]
    with pytest.raises(UnknownNameError, match="weight_reed"):
        im.calibrate(SWEEP, DEP, fit=["weight_reed"])


def test_a_constant_without_effect_is_refused_by_the_numbers():
    """A cache of a few tokens in a step of many milliseconds."""
    runs = [simulated(users, prompt=33, output=4) for users in (1, 2)]
    found = im.calibrate(runs, DEP, leave_one_out=False)
    assert "kv_read" not in found.params or found.stderr["kv_read"] / found.params["kv_read"] < 0.6


# ---------------------------------------------------------------- aggregates, lateness, odd runs
def test_runs_that_state_only_aggregates():
    stated = []
    for run in SWEEP:
        s = run.summary()
        figures = {"tpot_s.mean": s.tpot_s.mean, "ttft_s.mean": s.ttft_s.mean, "prefix_hit_rate": 0.0}
        figures |= {"requests": s.requests, "completed": s.completed}
        figures |= {"prompt_tokens": s.prompt_tokens, "output_tokens": s.output_tokens}
        meta = RunMeta(
            kind="imported", concurrency=run.meta.concurrency, stated={k: float(v) for k, v in figures.items()}
        )
        stated.append(make_run(meta))
    found = im.calibrate(stated, im.Deployment(model=DEP.model, chip=CHIP, flags={"max_num_batched_tokens": 2048}))
    assert found.params["weight_read"] == pytest.approx(0.7, rel=0.02)
    assert found.params["mfu"] == pytest.approx(0.7, rel=0.05)


def test_lengths_of_a_table_that_does_not_state_them():
    meta = [RunMeta(kind="imported", concurrency=c, stated={"tpot_s.p50": t}) for c, t in ((1, 0.012), (32, 0.02))]
    runs = [make_run(each) for each in meta]
    with pytest.raises(InputError, match="prompt and output tokens"):
        im.calibrate(runs, DEP)
    assert "weight_read" in im.calibrate(runs, DEP, lengths=(512, 64)).params


def test_failed_requests_are_left_out_and_said():
    run = SWEEP[1]
    n = run.requests.height
    errors = pl.Series("error", ["boom", *[None] * (n - 1)], dtype=pl.String)
    broken = Run(
        meta=run.meta, requests=run.requests.with_columns(errors), server=run.server, token_times=run.token_times
    )
    found = im.calibrate([SWEEP[0], broken, *SWEEP[2:]], DEP, leave_one_out=False)
    assert any("1 failed requests" in note for note in found.notes)
    assert found.params["weight_read"] == pytest.approx(0.7, rel=0.01)


def test_an_open_loop_is_rebuilt_from_its_sends():
    costs = SheetModel(DEP, msgspec.structs.replace(efficiencies(CHIP), weight_read=0.7, mfu=0.7)).costs()
    loads = [im.Workload.open_loop(rate, 60, 512, 64, kind) for rate, kind in ((0.5, "constant"), (20, "poisson"))]
    runs = [im.simulate(DEP, load, costs=costs) for load in loads]
    found = im.calibrate(runs, DEP, leave_one_out=False)
    assert found.params["weight_read"] == pytest.approx(0.7, rel=0.01)
    assert found.params["mfu"] == pytest.approx(0.7, rel=0.02)


def test_the_milliseconds_between_first_requests_are_kept():
    """The first of eight is computed alone, as on a real server; sent at one instant, all would share a step."""
    from inferometer.scoring.points import measured_points

    run = simulated(8)
    late = run.requests.with_columns(sent_s=pl.col("sent_s") + 0.001 * (pl.col("sent_s") == 0).cum_sum().clip(0, 8))
    (point,) = measured_points([make_run(run.meta, late)], DEP)
    assert point.workload.arrival_s is not None
    assert np.allclose(np.diff(point.workload.arrival_s), 0.001)
    first = im.simulate(point.deployment, point.workload).requests["first_token_s"]
    assert first[0] < 0.7 * first[1]


def test_noise_is_what_the_figures_scatter_by():
    rng = np.random.default_rng(7)
    runs = []
    for run in SWEEP * 3:
        factor = math.exp(0.04 * rng.standard_normal())
        first, sent, last = (run.requests[c] for c in ("first_token_s", "sent_s", "last_token_s"))
        moved = run.requests.with_columns(
            last_token_s=first + (last - first) * factor, end_s=first + (last - first) * factor
        )
        runs.append(Run(meta=run.meta, requests=moved, server=run.server))
        assert sent is not None
    found = im.calibrate(runs, DEP, leave_one_out=False)
    assert 0.02 < found.noise["tpot"] < 0.06


def test_a_constant_without_effect_is_not_told():
    jacobian, figures = np.array([[1.0, 0.0], [2.0, 0.0], [1.5, 0.0]]), np.array([0.1, 0.21, 0.14])
    found = fit(lambda logs: jacobian @ logs - figures, 2, ["tpot"] * 3)
    assert np.isfinite(found.plain_errors).tolist() == [True, False]
    assert found.correlations[0, 1] == 0


def test_one_constant_alone_is_refused_where_the_figures_do_not_tell_it():
    # TPOTs that scatter by 5 %, of steps in which a sequence's own time is about 1 %
    runs = [
        make_run(
            RunMeta(
                kind="imported",
                concurrency=users,
                server=KNOWN,
                stated={"tpot_s.mean": tpot_s, "prompt_tokens": 160.0, "output_tokens": 160.0, "completed": 10.0},
            )
        )
        for users, tpot_s in ((1, 0.0111), (2, 0.0117), (4, 0.0110), (5, 0.0116))
    ]
    with pytest.raises(InputError, match=r"the figures do not tell sequence_s: its standard error would be \d+% of it"):
        im.calibrate(runs, DEP, fit=["sequence_s"], leave_one_out=False)


KNOWN = {"prefix_caching": False, "max_num_batched_tokens": 2048}


def test_answers_without_a_token_tell_nothing():
    none = pl.lit(0, dtype=pl.Int64).alias("output_tokens")
    run = SWEEP[1]
    silent = make_run(run.meta, run.requests.with_columns(none))
    with pytest.raises(InputError, match="lacks its prompt and output tokens"):
        im.calibrate(as_measured(silent, server=KNOWN), DEP)


def test_a_hit_rate_given_is_of_the_runs_that_do_not_say_theirs():
    told = {"prefix_cache_queries": 100.0, "prefix_cache_hits": 0.0}
    runs = [as_measured(run, counters=told) for run in SWEEP]
    found = im.calibrate(runs, DEP, prefix_hit_rate=0.5, leave_one_out=False)
    assert found.params["mfu"] == im.calibrate(runs, DEP, leave_one_out=False).params["mfu"]


@pytest.mark.parametrize("rate", [1.5, -0.1, math.nan])
def test_a_hit_rate_that_is_no_share(rate: float):
    with pytest.raises(InputError, match="prefix_hit_rate"):
        im.calibrate(SWEEP, DEP, prefix_hit_rate=rate)


def test_runs_of_a_fit_are_known_again_though_all_share_a_name():
    runs = [as_measured(run, name="mine", server=KNOWN) for run in SWEEP]
    profile = im.calibrate(runs, DEP, leave_one_out=False)
    study = {"model": "Qwen/Qwen3-8B", "chip": "a100-sxm4-80gb", "workload": {"concurrency": [1], "output_tokens": 8}}
    prediction = im.predict(study, profile=profile)
    subject = im.score(prediction, runs[0]).of
    assert subject is not None
    assert subject.in_sample
    other = im.score(prediction, as_measured(simulated(1, prompt=300), name="mine")).of
    assert other is not None
    assert not other.in_sample


def test_points_of_one_name_are_told_apart_by_their_loads() -> None:
    from inferometer.scoring.points import _distinct

    def run(name: str, users: int) -> Run:
        return make_run(RunMeta(kind="measured", name=name, concurrency=users))

    assert _distinct([run("mine", 1), run("mine", 8), run("other", 2)]) == ["C=1", "C=8", "other"]
    assert _distinct([run("mine", 8), run("mine", 8)]) == ["C=8 (1)", "C=8 (2)"]
