from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferometer as im

JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "arrival_tick": st.integers(0, 30),
            "prompt_tokens": st.integers(0, 60),
            "output_tokens": st.integers(0, 40),
        }
    ),
    max_size=30,
).map(lambda jobs: [{"id": f"r{i}", **job} for i, job in enumerate(jobs)])


@given(jobs=JOBS, max_batch=st.integers(1, 6), budget=st.integers(0, 300))
def test_invariants_of_both_policies(jobs: list[dict[str, int]], max_batch: int, budget: int) -> None:
    out = {
        p: im.simulate_ticks(jobs, p, max_batch=max_batch, kv_budget_bytes=budget, kv_bytes_per_token=1)
        for p in ("static", "continuous")
    }
    never = {j["id"] for j in jobs if j["prompt_tokens"] + j["output_tokens"] > budget}
    for result in out.values():
        assert set(result.rejected) == never
        assert set(result.results) == {j["id"] for j in jobs} - never
        assert result.peak_kv_bytes <= budget
        for r in result.results.values():
            assert r.arrival_tick <= r.admitted_tick <= r.first_token_tick <= max(r.finished_tick, r.first_token_tick)
            assert r.finished_tick <= result.total_ticks
    for job in jobs:
        if job["id"] not in never and job["output_tokens"]:
            r = out["continuous"].results[job["id"]]
            assert r.finished_tick - r.admitted_tick == job["output_tokens"]


def test_objects_are_taken_as_well_as_mappings() -> None:
    job = SimpleNamespace(id="a", arrival_tick=3, prompt_tokens=1, output_tokens=2)
    out = im.simulate_ticks([job], kv_budget_bytes=10, kv_bytes_per_token=1)
    assert (out.results["a"].admitted_tick, out.results["a"].finished_tick, out.total_ticks) == (3, 5, 5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"policy": "stattic"}, "policy"),
        ({"max_batch": 0}, "max_batch"),
        ({"kv_budget_bytes": -1}, "kv_budget_bytes"),
        ({"requests": [{"id": "a", "arrival_tick": 0, "prompt_tokens": -1, "output_tokens": 1}]}, "prompt_tokens"),
        ({"requests": [{"id": "a", "arrival_tick": 0}]}, "requests"),
        ({"requests": [{"id": "a", "arrival_tick": 0, "prompt_tokens": 1, "output_tokens": 1}] * 2}, "id"),
    ],
)
def test_bad_input_names_the_field(change: dict[str, object], field: str) -> None:
    call = {"requests": [], "policy": "static", "kv_budget_bytes": 1, "kv_bytes_per_token": 1, **change}
    with pytest.raises(im.InputError, match=field):
        im.simulate_ticks(call.pop("requests"), call.pop("policy"), **call)
