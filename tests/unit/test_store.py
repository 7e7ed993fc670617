"""The store keeps runs whole, finds them by id or the start of one, and survives the loss of its index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from inferometer.errors import FormatError, InputError, UnknownNameError
from inferometer.records.run import Run, RunMeta, TokenTimes, make_run
from inferometer.store import COLUMNS, Store, store_path


def run_of(seed: int = 0, **meta: object) -> Run:
    rng = np.random.default_rng(seed)
    sent = np.cumsum(rng.random(5))
    times = TokenTimes(np.array([0, 2, 2, 5, 6, 7]), np.sort(rng.random(7)))
    columns = {
        "sent_s": sent,
        "first_token_s": sent + 0.1,
        "last_token_s": [*(sent[:4] + 0.3), None],
        "end_s": sent + 0.5,
        "prompt_tokens": [8] * 5,
        "output_tokens": [2, 0, 3, 1, 1],
        "error": [None, "refused", None, None, None],
    }
    server = {"time_s": [0.0, 1.0], "running": [1, 2], "watts": [200.5, 210.0]}
    return make_run(RunMeta(kind="simulated", seed=seed, **meta), columns, server, times)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_run_comes_back_as_it_was(store: Store) -> None:
    run = run_of(model="m", slo={"ttft_s": 0.5}, notes=["a"], deployment={"flags": {"max_num_seqs": 4}})
    run_id = store.save(run)
    again = store.load(run_id)
    assert again == run
    assert again.summary() == run.summary()
    assert (run_id, again.meta.id) == (run.id, run.id)
    assert again.token_times == run.token_times


def test_a_run_without_token_times_requests_or_samples(store: Store) -> None:
    run = make_run(RunMeta(kind="imported", concurrency=2, stated={"output_tok_per_s": 3.5, "ttft_s.p50": 0.25}))
    again = store.load(store.save(run))
    assert again == run
    assert again.token_times is None
    (row,) = store.list()
    assert (row["output_tok_per_s"], row["ttft_p50_s"], row["requests"]) == (3.5, 0.25, None)


def test_saving_again_changes_nothing(store: Store) -> None:
    first = store.save(run_of())
    store.save(run_of(1))
    assert store.save(run_of()) == first
    assert [row["id"] for row in store.list()] == [first, run_of(1).id]


def test_an_id_taken_by_other_content_is_refused(store: Store) -> None:
    store.save(run_of(1, id="mine"))
    store.save(run_of(1, id="mine"))
    with pytest.raises(InputError, match="mine"):
        store.save(run_of(2, id="mine"))
    assert store.load("mine").meta.seed == 1


@pytest.mark.parametrize("run_id", ["../up", "a/b", ".hidden", "", "a b"])
def test_an_id_that_is_no_folders_name_is_refused(store: Store, run_id: str) -> None:
    run = run_of()
    run.meta.id = run_id
    if not run_id:
        assert store.save(run) == run.id
        return
    with pytest.raises(InputError, match="id"):
        store.save(run)
    assert list(store.path.parent.iterdir()) == []


def test_a_unique_start_of_an_id_will_do(store: Store) -> None:
    for run_id in ("abc1", "abc2", "abd", "ab"):
        store.save(run_of(1, id=run_id))
    assert store.load("abd").id == "abd"
    assert store.load("abc1").id == "abc1"
    assert store.load("ab").id == "ab"  # a whole id, though others start so
    with pytest.raises(InputError, match="abc1, abc2"):
        store.load("abc")
    for unknown in ("zz", ""):
        with pytest.raises(UnknownNameError, match="unknown run"):
            store.load(unknown)


def test_list_filters(store: Store) -> None:
    ids = [store.save(run_of(i, model="m" if i < 2 else "n", concurrency=i + 1)) for i in range(3)]
    assert [row["id"] for row in store.list()] == ids
    assert [row["id"] for row in store.list(model="m")] == ids[:2]
    assert [row["id"] for row in store.list(model="m", concurrency=2)] == [ids[1]]
    assert store.list(kind="measured") == []
    assert tuple(store.list()[0]) == COLUMNS
    assert store.list()[0]["ttft_p50_s"] == pytest.approx(0.1)
    with pytest.raises(InputError, match="colour"):
        store.list(colour="red")


def test_an_empty_store_lists_nothing_and_makes_no_folder(store: Store) -> None:
    assert (store.list(), store.reindex()) == ([], 0)
    assert not store.path.exists()


def test_delete(store: Store) -> None:
    keep, drop = store.save(run_of(1)), store.save(run_of(2))
    assert store.delete(drop[:8]) == drop
    assert [row["id"] for row in store.list()] == [keep]
    assert [folder.name for folder in store.runs.iterdir()] == [keep]
    with pytest.raises(UnknownNameError):
        store.load(drop)


def test_the_index_is_made_again_from_the_folders(store: Store) -> None:
    ids = [store.save(run_of(i)) for i in range(3)]
    rows = store.list()
    (store.path / "index.sqlite3").unlink()
    assert store.list() == []
    assert store.load(ids[0]).id == ids[0]  # the folder is enough
    assert store.reindex() == 3
    assert store.list() == rows


def test_reindex_drops_rows_whose_folder_is_gone(store: Store) -> None:
    first, second = store.save(run_of(1)), store.save(run_of(2))
    (store.runs / first).rename(store.path / "elsewhere")
    assert store.reindex() == 1
    assert [row["id"] for row in store.list()] == [second]


def test_a_failed_write_leaves_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="no space"):
        store.save(run_of())
    assert list(store.runs.iterdir()) == []
    assert store.list() == []


def test_what_is_half_written_is_no_run(store: Store) -> None:
    run_id = store.save(run_of())
    (store.runs / ".writing-dead").mkdir()
    assert store.reindex() == 1
    assert [row["id"] for row in store.list()] == [run_id]


@pytest.mark.parametrize("file", ["meta.json", "requests.parquet", "server.parquet", "token_times.parquet"])
def test_a_damaged_folder_is_one_clear_error(store: Store, file: str) -> None:
    run_id = store.save(run_of())
    whole = (store.runs / run_id / file).read_bytes()
    (store.runs / run_id / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=run_id):
        store.load(run_id)
    rows = store.list()
    with pytest.raises(FormatError, match=run_id):
        store.reindex()
    assert store.list() == rows


def test_a_damaged_index_is_one_clear_error(store: Store) -> None:
    store.save(run_of())
    (store.path / "index.sqlite3").write_bytes(b"not a database" * 100)
    with pytest.raises(FormatError, match="reindex"):
        store.list()


def test_meta_of_a_newer_version_is_refused_not_cut(store: Store) -> None:
    run_id = store.save(run_of())
    path = store.runs / run_id / "meta.json"
    path.write_text(path.read_text().replace('"seed"', '"seeds"'))
    with pytest.raises(FormatError, match="seeds"):
        store.load(run_id)


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)
    assert store_path() == Path(".inferometer")
    monkeypatch.setenv("INFEROMETER_STORE", str(tmp_path))
    assert store_path() == tmp_path
    assert store_path("given") == Path("given")
    assert Store("given").path == Path("given")


def test_an_index_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite3").mkdir()
    with pytest.raises(FormatError, match=r"index\.sqlite3"):
        Store(tmp_path).list()


def test_scores_are_kept_whole_and_once(store: Store) -> None:
    assert store.scores() == []
    first = store.save_score({"schema": "inferometer/score/1", "mean": 1.5, "none": None, "n": np.int64(3)})
    again = store.save_score({"n": 3, "none": None, "mean": 1.5, "schema": "inferometer/score/1"})
    assert first == again
    second = store.save_score({"schema": "inferometer/score/1", "mean": float("nan")})
    assert first.parent == second.parent == store.path / "scores"
    assert store.scores() == [
        {"schema": "inferometer/score/1", "mean": 1.5, "none": None, "n": 3},
        {"schema": "inferometer/score/1", "mean": None},
    ]
    assert {file.name for file in first.parent.iterdir()} == {first.name, second.name}


def test_a_score_that_cannot_be_read_is_one_clear_error(store: Store) -> None:
    store.save_score({"a": 1}).write_text("{")
    with pytest.raises(FormatError, match="score"):
        store.scores()


def test_predictions_that_do_not_say_their_seal_are_passed_over(store: Store) -> None:
    assert store.list_predictions() == []
    sealed = {"path": "p", "sha256": "a" * 64, "time": "2026-01-01T00:00:00.000Z", "previous": None}
    with store.sealing() as earlier:
        assert earlier == []
        store.write_prediction(
            "a.json", f'{{"name": "s", "sealed": {str(sealed).replace("None", "null")}}}'.replace("'", '"')
        )
    for name, text in {
        "b": "{",
        "c": '{"sealed": null}',
        "d": '{"sealed": {"sha256": "x", "time": "", "previous": null}}',
    }.items():
        (store.predictions / f"{name}.json").write_text(text)
    (row,) = store.list_predictions()
    assert row == {
        "path": str(store.predictions / "a.json"), "name": "s", "sha256": "a" * 64,
        "time": "2026-01-01T00:00:00.000Z", "previous": None,
    }  # fmt: skip


def test_the_newest_measurement(store: Store) -> None:
    assert store.newest_start_unix_s() is None
    store.save(run_of())
    assert store.newest_start_unix_s() is None
    for number, start in enumerate((5.0, 7.5, None)):
        store.save(make_run(RunMeta(kind="measured", id=f"m{number}", started_unix_s=start), {"sent_s": [0.0]}))
    assert store.newest_start_unix_s() == 7.5
