"""Studies: defaults, arms, overrides, and the one clear error for each mistake."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.errors import InputError
from inferometer.specs.merge import merge, overrides
from inferometer.specs.study import MOST_REQUESTS, load_study, packaged_studies
from inferometer.specs.workload import Lognormal, Trace
from inferometer.workload import generate
from shared import shared

MODEL = {"name": "lab-70b", "weight_bytes": 140_000_000_000, "layers": 80, "kv_heads": 8, "head_dim": 128}
BASE: dict[str, Any] = {
    "model": MODEL,
    "chip": "a100-sxm4-80gb",
    "deployment": {"tensor_parallel_size": 8, "max_num_seqs": 64},
    "workload": {"prompt_tokens": 1024, "output_tokens": 128, "concurrency": [1, 2]},
    "slo": {"ttft_ms": 500, "tpot_ms": 50},
}
TOML = """\
model = { name = "lab-70b", weight_bytes = 140_000_000_000, layers = 80, kv_heads = 8, head_dim = 128 }
chip = "a100-sxm4-80gb"
[workload]
prompt_tokens = 1024
output_tokens = 128
concurrency = [1, 2]
"""


def study(**changes: Any):
    return load_study(merge(BASE, changes))


def test_the_base_is_arm_zero():
    base = study().base
    assert base.name == "base"
    assert base.deployment.model.name == "lab-70b"
    assert base.deployment.chip.id == "a100-sxm4-80gb"
    assert base.deployment.tensor_parallel_size == 8
    assert base.deployment.flags == {"max_num_seqs": 64}
    assert base.slo.limits() == {"ttft_s": 0.5, "tpot_s": 0.05}
    assert (base.slo.attainment, base.seed, base.warmup_requests, base.price) == (0.99, 0, 0, {})
    assert [(point.concurrency, point.request_rate, point.workload.requests) for point in base.points] == [
        (1, None, 10),
        (2, None, 20),
    ]
    assert base.points[1].workload.prompt_tokens == 1024
    assert base.table == BASE


def test_the_source_is_not_changed():
    kept = copy.deepcopy(BASE)
    load_study(BASE, ["workload.seed=9"])
    assert kept == BASE


def test_stated_extras_reach_their_place():
    loaded = study(
        name="n",
        description="d",
        workload={"seed": 3, "warmup_requests": 4, "think_time_s": 0.5, "cached_tokens": 16},
        slo={"attainment": 0.9, "itl_ms": 20, "e2e_ms": 9000},
        price={"chip_usd_per_hour": 1.2},
    )
    arm = loaded.base
    assert (loaded.name, loaded.description, arm.seed, arm.warmup_requests, arm.price) == (
        *("n", "d", 3, 4),
        {"chip_usd_per_hour": 1.2},
    )
    assert (arm.points[0].workload.think_time_s, arm.points[0].workload.cached_tokens) == (0.5, 16)
    assert arm.slo.attainment == 0.9
    assert arm.slo.limits() == {"ttft_s": 0.5, "tpot_s": 0.05, "itl_s": 0.02, "e2e_s": 9.0}


@pytest.mark.parametrize(
    ("workload", "counts"),
    [
        ({"concurrency": 4}, [40]),
        ({"concurrency": [3], "requests_per_point": {"per_concurrency": 2.5}}, [8]),
        ({"requests_per_point": 7}, [7, 7]),
        ({"request_rate": [1, 10]}, [100, 600]),
        ({"request_rate": 10.0}, [600]),
        ({"request_rate": [0.5], "requests_per_point": {"per_rate": 30}}, [15]),
        ({"request_rate": [0.5, 20], "duration_s": 10}, [5, 200]),
        ({"request_rate": [0.01], "duration_s": 10}, [1]),
        ({"request_rate": [2], "requests_per_point": 9}, [9]),
        ({"prompt_tokens": [5, 6, 7]}, [3, 3]),
        ({"request_rate": [2], "output_tokens": [5, 6, 7]}, [3]),
    ],
)
def test_requests_of_a_point(workload: dict[str, Any], counts: list[int]):
    assert [point.workload.requests for point in study(workload=workload).base.points] == counts


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ({"request_rate": [1e11]}, r"requests_per_point: 6000000000000 .* at most 20,000,000 .* 60 s worth"),
        ({"request_rate": [1e308]}, r"requests_per_point: inf .* at most 20,000,000"),
        ({"request_rate": [1e6], "duration_s": 21}, r"requests_per_point: 21000000 .* duration_s"),
        ({"concurrency": [10_000_000]}, r"requests_per_point: 100000000 .* at most 20,000,000 .* 10 a user"),
        ({"requests_per_point": 10**12}, r"requests_per_point: 1000000000000 .* at most 20,000,000 requests a point$"),
        ({"requests_per_point": {"per_concurrency": 1e9}}, r"requests_per_point: 1000000000 .* at most 20,000,000"),
    ],
)
def test_a_point_has_at_most_so_many_requests(workload: dict[str, Any], says: str):
    with pytest.raises(InputError, match=says):
        study(workload=workload)


def test_the_most_requests_are_allowed():
    assert study(workload={"requests_per_point": MOST_REQUESTS}).base.points[0].workload.requests == 20_000_000
    assert study(workload={"request_rate": [1e6], "duration_s": 20}).base.points[0].workload.requests == 20_000_000


@pytest.mark.parametrize("content", ["", "\n", "# nothing yet\n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, content: str):
    (tmp_path / "e.toml").write_text(content)
    with pytest.raises(InputError, match=r"e\.toml: is empty; a study has"):
        load_study(tmp_path / "e.toml")


def test_open_loop_points():
    arm = study(workload={"request_rate": [1, 2.5], "arrivals": "constant"}).base
    assert [(point.concurrency, point.request_rate) for point in arm.points] == [(None, 1.0), (None, 2.5)]
    assert {point.workload.arrivals for point in arm.points} == {"constant"}


def test_arms_merge_deeply_and_lists_replace():
    loaded = study(
        arm=[
            {"name": "long", "workload": {"prompt_tokens": 8192, "concurrency": [4]}},
            {"name": "small", "chip": "l4", "deployment": {"max_num_batched_tokens": 4096}, "slo": {"ttft_ms": 100}},
        ]
    )
    assert [arm.name for arm in loaded.arms] == ["base", "long", "small"]
    long, small = loaded.arms[1:]
    assert [(point.concurrency, point.workload.prompt_tokens) for point in long.points] == [(4, 8192)]
    assert long.points[0].workload.output_tokens == 128
    assert long.deployment == loaded.base.deployment
    assert small.deployment.chip.id == "l4"
    assert small.deployment.flags == {"max_num_seqs": 64, "max_num_batched_tokens": 4096}
    assert small.slo.limits() == {"ttft_s": 0.1, "tpot_s": 0.05}
    assert small.table["slo"] == {"ttft_ms": 100, "tpot_ms": 50}
    assert "arm" not in small.table
    assert loaded.arm("long") is long


def test_an_arm_of_another_loop_drops_what_belongs_to_the_bases():
    loaded = study(
        workload={"think_time_s": 1.0, "requests_per_point": {"per_concurrency": 5}, "seed": 4},
        arm=[{"name": "open", "workload": {"request_rate": [2.0]}}],
    )
    (point,) = loaded.arms[1].points
    assert (point.concurrency, point.request_rate, point.workload.requests) == (None, 2.0, 120)
    assert loaded.arms[1].seed == 4
    assert loaded.arms[1].table["workload"] == {
        "prompt_tokens": 1024,
        "output_tokens": 128,
        "seed": 4,
        "request_rate": [2.0],
    }


def test_an_arm_may_change_the_kind_of_a_length():
    loaded = study(
        workload={"prompt_tokens": {"uniform": {"low": 1, "high": 9}}},
        arm=[{"name": "a", "workload": {"prompt_tokens": {"lognormal": {"mean": 9, "sigma": 1}}}}],
    )
    assert loaded.arms[1].points[0].workload.prompt_tokens == Lognormal(mean=9, sigma=1)


def test_a_replay(tmp_path: Path):
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    (tmp_path / "s.toml").write_text(
        TOML.replace("concurrency = [1, 2]", "").replace("[workload]", "[workload]\nseed=1")
    )
    for loop, value in (("requests", "'t.csv'"), ("trace", "{path='t.csv', rate_scale=2.0, limit=5}")):
        loaded = load_study(tmp_path / "s.toml", ["workload.concurrency=[1]", f"workload.{loop}={value}"])
        (point,) = loaded.base.points
        assert (point.concurrency, point.request_rate, point.workload.requests) == (None, None, None)
        scale, limit = (2.0, 5) if loop == "trace" else (1.0, None)
        wanted = Trace(path=str(tmp_path / "t.csv"), model="lab-70b", rate_scale=scale, limit=limit)
        assert point.workload.trace == wanted
        assert "prompt_tokens" not in loaded.base.table["workload"]


def test_lengths_from_a_file_beside_the_study(tmp_path: Path):
    (tmp_path / "t.csv").write_text("input_tokens,output_tokens\n1,1\n")
    (tmp_path / "s.toml").write_text(TOML.replace("1024", "{ trace = 't.csv' }"))
    length = load_study(tmp_path / "s.toml").base.points[0].workload.prompt_tokens
    assert length.trace == str(tmp_path / "t.csv")  # type: ignore[union-attr]


def test_overrides_reach_the_base_and_one_arm():
    table = BASE | {"arm": [{"name": "a"}, {"name": "b"}]}
    loaded = load_study(
        table,
        [
            "deployment.max_num_batched_tokens=8192",
            "chip=h100-sxm-80gb",
            "arm.b.workload.concurrency=[7]",
            "slo.ttft_ms = 9.5",
        ],
    )
    assert [arm.deployment.flags["max_num_batched_tokens"] for arm in loaded.arms] == [8192] * 3
    assert loaded.base.deployment.chip.id == "h100-sxm-80gb"
    assert loaded.base.slo.ttft_s == 0.0095
    assert [[point.concurrency for point in arm.points] for arm in loaded.arms] == [[1, 2], [1, 2], [7]]
    assert load_study(table, {"deployment.max_num_seqs": 5}).base.deployment.flags == {"max_num_seqs": 5}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("8192", 8192),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("{ lognormal = { mean = 9, sigma = 1.0 } }", {"lognormal": {"mean": 9, "sigma": 1.0}}),
        ('"8192"', "8192"),
        ("fp8", "fp8"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("1\nb = 2", "1\nb = 2"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_an_overrides_value_is_toml_else_text(written: str, value: Any):
    assert overrides([f"x.y={written}"]) == {"x": {"y": value}}


@pytest.mark.parametrize("given", ["x.y", "=5", "x..y=5", ".x=5"])
def test_an_override_needs_a_key_and_a_value(given: str):
    with pytest.raises(InputError, match=r"override: "):
        overrides([given])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"workload": {"concurency": [1]}}, r"workload\.concurency: no such key; did you mean concurrency"),
    ({"wrkload": {}}, r"wrkload: no such key; did you mean workload"),
    ({"concurrency": [1]}, r"concurrency: belongs in \[workload\]"),
    ({"tensor_parallel_size": 2}, r"tensor_parallel_size: belongs in \[deployment\]"),
    ({"slo": {"ttft": 5}}, r"slo\.ttft: no such key; did you mean ttft_ms"),
    ({"price": {"usd": 5}}, r"price\.usd: no such key"),
    ({"price": {"chip_usd_per_hour": -1}}, r"price\.chip_usd_per_hour: -1 "),
    ({"workload": {"prompt_tokens": -5}}, r"workload\.prompt_tokens: -5 .* at least 1"),
    ({"workload": {"prompt_tokens": "many"}}, r"workload\.prompt_tokens: 'many' .* number"),
    ({"workload": {"output_tokens": 1.5}}, r"workload\.output_tokens: 1\.5 "),
    (
        {"workload": {"prompt_tokens": {"lognormal": {"mean": 5}}}},
        r"workload\.prompt_tokens\.lognormal\.sigma: is missing",
    ),
    ({"workload": {"concurrency": []}}, r"workload\.concurrency: \[\] .* at least one value"),
    ({"workload": {"concurrency": [4, 0]}}, r"workload\.concurrency: 0 .* at least 1"),
    ({"workload": {"concurrency": [1.5]}}, r"workload\.concurrency: 1\.5 "),
    ({"workload": {"concurrency": ["a"]}}, r"workload\.concurrency: 'a' "),
    ({"workload": {"concurrency": "four"}}, r"workload\.concurrency: 'four' .* a list"),
    ({"workload": {"request_rate": [0.0]}}, r"workload\.request_rate: 0\.0 .* above 0"),
    ({"workload": {"request_rate": []}}, r"workload\.request_rate: \[\] "),
    ({"workload": {"duration_s": 5}}, r"workload\.duration_s: goes with request_rate"),
    ({"workload": {"arrivals": "constant"}}, r"workload\.arrivals: goes with request_rate"),
    ({"workload": {"request_rate": [1], "arrivals": "bursty"}}, r"workload\.arrivals: 'bursty' "),
    ({"workload": {"request_rate": [1], "think_time_s": 5}}, r"workload\.think_time_s: goes with concurrency"),
    (
        {"workload": {"request_rate": [1], "duration_s": 5, "requests_per_point": 3}},
        r"workload\.duration_s: .* give one",
    ),
    ({"workload": {"request_rate": [1], "duration_s": 0}}, r"workload\.duration_s: 0 "),
    ({"workload": {"requests_per_point": 0}}, r"workload\.requests_per_point: 0 "),
    ({"workload": {"requests_per_point": "all"}}, r"workload\.requests_per_point: 'all' "),
    (
        {"workload": {"requests_per_point": {"per_rate": 3}}},
        r"requests_per_point\.per_rate: no such key; .*per_concurrency",
    ),
    ({"workload": {"requests_per_point": {}}}, r"workload\.requests_per_point: \{\} "),
    ({"workload": {"requests": "no.csv"}}, r"workload\.?:? ?requests: no\.csv: no such file"),
    ({"workload": {"trace": {"file": "no.csv"}}}, r"workload\.trace: None .* trace file"),
    ({"workload": {"warmup_requests": 10}}, r"workload\.warmup_requests: 10 .* fewer than the 10 requests"),
    ({"workload": {"seed": -1}}, r"workload\.seed: -1 "),
    ({"workload": {"think_time_s": "long"}}, r"workload\.think_time_s: 'long' "),
    ({"slo": {"ttft_ms": "fast"}}, r"slo\.ttft_ms: 'fast' .* milliseconds above 0"),
    ({"slo": {"ttft_ms": 0}}, r"slo\.ttft_ms: 0 "),
    ({"slo": {"attainment": 99}}, r"slo\.attainment: 99 .* at most 1"),
    ({"deployment": {"tensor_parallel_size": 0}}, r"deployment\.tensor_parallel_size: 0 "),
    ({"deployment": {"max_num_sequences": 4}}, r"max_num_sequences"),
    ({"deployment": 5}, r"deployment: 5 .* table"),
    ({"chip": "a1000-nope"}, r"a1000-nope"),
    ({"chip": 5}, r"chip: 5 "),
    ({"model": "No/Such-Model-9B"}, r"No/Such-Model-9B"),
    ({"model": {"layrs": 1}}, r"layrs|model"),
    ({"model": {"layers": "eighty"}}, r"model: .*int"),
    ({"model": None}, r"model: None .* catalog name"),
    ({"name": 5}, r"name: 5 "),
    ({"description": 5}, r"description: 5 "),
    ({"arm": {"name": "a"}}, r"arm: .* \[\[arm\]\]"),
    ({"arm": [{}]}, r"arm\[0\]\.name: None "),
    ({"arm": [{"name": "base"}]}, r"arm\[0\]\.name: 'base' "),
    ({"arm": [{"name": "a"}, {"name": "a"}]}, r"arm\[1\]\.name: 'a' "),
    ({"arm": [{"name": "a", "arm": []}]}, r"arm\[0\]\.arm: no such key"),
    ({"arm": [{"name": "a", "workload": {"prompt_tokens": 0}}]}, r"arm 'a': workload\.prompt_tokens: 0 "),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says for _, says in BAD])
def test_a_mistake_is_one_clear_error(changes: dict[str, Any], says: str):
    with pytest.raises(InputError, match=says) as caught:
        study(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "workload",
    [
        {"prompt_tokens": 1},
        {"concurrency": [1], "request_rate": [1]},
        {"concurrency": [1], "requests": "x.csv"},
    ],
)
def test_a_workload_has_exactly_one_loop(workload: dict[str, Any]):
    with pytest.raises(InputError, match="workload: give exactly one of concurrency, request_rate, requests, trace"):
        load_study(BASE | {"workload": workload})


def test_a_replay_has_its_own_lengths():
    with pytest.raises(InputError, match="prompt_tokens: goes with concurrency or request_rate, not with requests"):
        load_study(BASE | {"workload": {"requests": "x.csv", "prompt_tokens": 5}})


def test_an_arm_that_is_not_there():
    with pytest.raises(InputError, match="arm: 'b' is not allowed; give one of a"):
        load_study(BASE | {"arm": [{"name": "a"}]}, ["arm.b.chip=l4"])
    with pytest.raises(InputError, match="arm: 'x' is not allowed; give one of base"):
        study().arm("x")


def test_errors_name_the_file(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(TOML.replace("1024", "-5"))
    with pytest.raises(InputError, match=r"mine\.toml: workload\.prompt_tokens: -5 "):
        load_study(file)


@pytest.mark.parametrize(
    ("broken", "line"), [("model = ", 1), (TOML + "x = [1,\n", 7), (TOML + "seed = 1\nseed = 2\n", 8)]
)
def test_broken_toml_names_the_file_and_the_line(tmp_path: Path, broken: str, line: int):
    file = tmp_path / "broken.toml"
    file.write_text(broken)
    with pytest.raises(InputError, match=rf"broken\.toml: not valid TOML: .*line {line}\b"):
        load_study(file)


def test_a_file_that_is_not_text(tmp_path: Path):
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"b\.toml: cannot be read"):
        load_study(tmp_path / "b.toml")


def test_a_missing_file_is_named_and_so_are_the_packaged_studies(tmp_path: Path):
    with pytest.raises(InputError, match=r"none\.toml: no such study file; packaged studies: .*a100-qwen3-8b"):
        load_study("none.toml")
    with pytest.raises(InputError, match="is a folder"):
        load_study(tmp_path)


def test_model_and_chip_files_beside_the_study(tmp_path: Path):
    (tmp_path / "card.toml").write_text(
        'id = "mine"\nname = "mine"\nmemory_bytes = 80_000_000_000\nbandwidth_bytes_per_s = 2e12\n'
        "flops_per_s = { bf16 = 3e14 }\n"
    )
    (tmp_path / "s.toml").write_text(TOML.replace("a100-sxm4-80gb", "card.toml"))
    assert load_study(tmp_path / "s.toml").base.deployment.chip.memory_bytes == 80_000_000_000


@pytest.mark.parametrize("name", sorted(packaged_studies()))
def test_packaged_studies_resolve(name: str):
    loaded = load_study(name)
    assert loaded.name == name
    assert loaded.description
    for arm in loaded.arms:
        assert arm.points
        assert "gpu_memory_utilization" not in arm.deployment.flags


def test_the_sweep_of_the_second_seed():
    loaded = load_study("a100-qwen3-8b")
    base = loaded.base
    assert [point.concurrency for point in base.points] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert all(point.workload.requests == 10 * point.concurrency for point in base.points if point.concurrency)
    assert base.deployment.engine_version == "0.26.0"
    assert base.deployment.flags == {"max_num_batched_tokens": 2048, "enable_prefix_caching": False}
    assert base.slo.limits() == {"ttft_s": 0.5, "tpot_s": 0.05}
    arms = {arm.name: arm for arm in loaded.arms}
    assert {point.workload.prompt_tokens for point in arms["context-8k"].points} == {8192}
    assert arms["token-budget-8192"].deployment.flags["max_num_batched_tokens"] == 8192
    assert [point.request_rate for point in arms["open-loop"].points] == [1.0]


def test_the_replayed_studies_state_that_runs_flags():
    studies = {name: load_study(name).base.deployment for name in packaged_studies() if name.startswith("rtxpro6000")}
    assert len(studies) == 3
    for deployment in studies.values():
        assert deployment.engine_version == "0.19.0"
        assert (deployment.flags["max_num_seqs"], deployment.flags["max_num_batched_tokens"]) == (128, 2048)
    assert studies["rtxpro6000-qwen3-32b-tp2"].tensor_parallel_size == 2
    split = studies["rtxpro6000-qwen3-30b-a3b-dp2"]
    assert (split.data_parallel_size, split.enable_expert_parallel) == (2, True)


@pytest.mark.parametrize("name", [name for name in sorted(packaged_studies()) if name.startswith("rtxpro6000")])
def test_a_replayed_study_takes_its_own_models_requests_and_resembles_them(name: str):
    """The stated lognormal lengths keep the measured means and spreads: the drawn load stands for the replayed one."""
    drawn = load_study(name, ["workload.requests_per_point=20000"]).base.points[0].workload
    file = shared("data/vllm_replay_requests.csv")
    measured = generate(load_study(name, [f"workload.requests={file}"]).base.points[0].workload)
    assert len(measured) == 300
    for column in ("prompt_tokens", "output_tokens"):
        ours, theirs = np.log(getattr(generate(drawn, 0), column)), np.log(getattr(measured, column))
        assert getattr(generate(drawn, 0), column).mean() == pytest.approx(getattr(measured, column).mean(), rel=0.02)
        assert ours.std() == pytest.approx(theirs.std(), abs=0.02)
