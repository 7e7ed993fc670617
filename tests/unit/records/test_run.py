"""Runs are checked when made, compare by content, and have ids from it."""

from __future__ import annotations

import pickle
import subprocess
import sys

import msgspec
import numpy as np
import polars as pl
import pytest

from inferometer.errors import InputError
from inferometer.records.run import (
    REQUEST_SCHEMA,
    SERVER_SCHEMA,
    Run,
    RunMeta,
    TokenTimes,
    content_id,
    make_run,
    runs_equal,
)


def two_requests(**changes: object) -> Run:
    columns: dict[str, object] = {
        "sent_s": [0.0, 1.0],
        "first_token_s": [0.5, None],
        "last_token_s": [1.5, None],
        "end_s": [1.5, 1.0],
        "prompt_tokens": [8, 8],
        "output_tokens": [3, 0],
        "error": [None, "refused"],
    }
    times = TokenTimes(np.array([0, 3, 3]), np.array([0.5, 1.0, 1.5]))
    return make_run(RunMeta(kind="measured", seed=1), {**columns, **changes}, token_times=times)


def test_make_run_fills_and_casts_to_the_schema() -> None:
    run = make_run(RunMeta(kind="simulated"), {"output_tokens": np.array([4.0, 5.0]), "sent_s": [0, np.nan]})
    assert dict(run.requests.schema) == REQUEST_SCHEMA
    assert run.requests["output_tokens"].to_list() == [4, 5]
    assert run.requests["sent_s"].to_list() == [0.0, None]
    assert run.requests["error"].null_count() == 2
    assert dict(run.server.schema) == SERVER_SCHEMA


def test_server_keeps_columns_beyond_the_schema() -> None:
    run = make_run(RunMeta(kind="measured"), None, {"time_s": [0.0], "running": [3], "gpu_watts": [250.0]})
    assert run.server.columns == [*SERVER_SCHEMA, "gpu_watts"]


def test_empty_tables_have_the_columns_and_no_rows() -> None:
    nothing = make_run(RunMeta(kind="measured"))
    assert (nothing.requests.schema, nothing.requests.height) == (pl.Schema(REQUEST_SCHEMA), 0)
    assert (nothing.server.schema, nothing.server.height) == (pl.Schema(SERVER_SCHEMA), 0)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"send_s": [0.0]}, "send_s"),
        ({"sent_s": [0.0], "end_s": [0.0, 1.0]}, "one length"),
        ({"sent_s": [np.inf]}, "finite"),
        ({"output_tokens": [-1]}, "output_tokens"),
        ({"output_tokens": [1.5]}, "whole"),
        ({"prompt_tokens": ["many"]}, "prompt_tokens"),
        ({"prompt_tokens": [1, "many"]}, "different kinds"),
        ({"sent_s": [1.0], "end_s": [0.5]}, "end_s of row 0"),
        ({"sent_s": [0.0, 1.0], "first_token_s": [0.5, 0.9]}, "first_token_s of row 1"),
        ({"first_token_s": [1.0], "last_token_s": [0.5]}, "last_token_s"),
    ],
)
def test_what_cannot_be_is_refused(columns: dict[str, list[object]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_run(RunMeta(kind="imported"), columns)


@pytest.mark.parametrize("offsets", [[0, 3], [0, 1, 2], [1, 2, 3], [0, 4, 3]])
def test_token_times_must_fit_the_requests(offsets: list[int]) -> None:
    times = TokenTimes(np.array(offsets), np.zeros(3))
    with pytest.raises(InputError, match="offsets"):
        make_run(RunMeta(kind="imported"), {"sent_s": [0.0, 0.0]}, token_times=times)


def test_equal_runs_are_equal_and_have_equal_ids() -> None:
    a, b = two_requests(), two_requests()
    assert a == b
    assert content_id(a) == content_id(b)
    assert len(content_id(a)) == 16
    assert int(content_id(a), 16) >= 0


@pytest.mark.parametrize(
    "change",
    [
        {"sent_s": [0.0, 0.999999]},
        {"sent_s": [0.0, None]},
        {"output_tokens": [2, 0]},
        {"error": [None, "timeout"]},
        {"error": ["refused", None]},
        {"preemptions": [0, 0]},
        {"preemptions": [None, 0]},
        {"preemptions": [0, None]},
    ],
)
def test_any_change_of_content_changes_the_id(change: dict[str, object]) -> None:
    ids = {content_id(two_requests()), content_id(two_requests(**change))}
    assert len(ids) == 2
    assert two_requests() != two_requests(**change)


def test_a_columns_name_and_its_nulls_places_count() -> None:
    def sampled(column: str) -> Run:
        return make_run(RunMeta(kind="measured"), None, {"time_s": [0.0], column: [250.0]})

    assert content_id(sampled("gpu_watts")) != content_id(sampled("gpu_celsius"))
    assert content_id(two_requests(preemptions=[None, 0])) != content_id(two_requests(preemptions=[0, None]))


def test_meta_server_and_token_times_count_too() -> None:
    plain = two_requests()
    seeded = Run(
        meta=msgspec.structs.replace(plain.meta, seed=2),
        requests=plain.requests,
        server=plain.server,
        token_times=plain.token_times,
    )
    bare = Run(meta=plain.meta, requests=plain.requests, server=plain.server)
    sampled = make_run(plain.meta, plain.requests, {"time_s": [0.0], "running": [1]}, plain.token_times)
    assert len({content_id(run) for run in (plain, seeded, bare, sampled)}) == 4


def test_id_and_time_of_creation_are_no_content() -> None:
    a, b = two_requests(), two_requests()
    b.meta.created, b.meta.id = "2026-01-01T00:00:00", "another"
    assert runs_equal(a, b)
    assert content_id(a) == content_id(b)


def test_id_is_lazy_and_kept() -> None:
    run = two_requests()
    assert run.meta.id == ""
    assert run.id == content_id(run) == run.meta.id
    run.meta.id = "given"
    assert run.id == "given"


def test_id_is_the_same_in_another_process() -> None:
    code = (
        "from inferometer.records.run import *;"
        "print(make_run(RunMeta(kind='simulated', slo={'b': 1.0, 'a': 2.0}), {'sent_s': [0.0, 0.25]}).id)"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    here = make_run(RunMeta(kind="simulated", slo={"a": 2.0, "b": 1.0}), {"sent_s": [0.0, 0.25]}).id
    assert there == here


def test_pickle_round_trip() -> None:
    run = two_requests()
    assert pickle.loads(pickle.dumps(run)) == run


def test_to_dict_is_plain_and_names_the_id() -> None:
    values = two_requests().to_dict()
    assert msgspec.json.decode(msgspec.json.encode(values)) == values
    assert (values["id"], values["requests"]) == (two_requests().id, 2)


def test_a_number_too_large_for_its_column_is_bad_input() -> None:
    with pytest.raises(InputError):
        make_run(RunMeta(kind="measured"), {"sent_s": [0.0], "prompt_tokens": [10**30]})
