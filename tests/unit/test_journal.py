import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from inferometer.errors import FormatError, InputError
from inferometer.journal import Journal, abandoned, read_journal, read_pages
from inferometer.records.ended import Ended
from inferometer.records.run import RunMeta
from inferometer.store import Store

PAGE = 'vllm:num_requests_running{{engine="0"}} {running}\nvllm:prompt_tokens_total{{engine="0"}} {prompt}\n'


def meta(id: str = "bench-1") -> RunMeta:
    return RunMeta(kind="measured", id=id, partial="killed", started_unix_s=1000.0)


def line(index: int, **values: object) -> str:
    times = {"sent_s": float(index), "first_token_s": index + 0.5, "last_token_s": index + 1.5, "end_s": index + 1.5}
    values = {"index": index, **times, "output_tokens": 3, "times_s": [index + 0.5, index + 1.0, index + 1.5], **values}
    return json.dumps(values) + "\n"


def test_rows_come_in_order_of_number_over_all_workers(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, meta())
    journal.requests(0).write_text(line(2) + line(0))
    journal.requests(1).write_text(line(3, error="reset: gone") + line(1))
    run = read_journal(journal.folder)
    assert run.requests["sent_s"].to_list() == [0.0, 1.0, 2.0, 3.0]
    assert run.requests["error"].to_list() == [None, None, None, "reset: gone"]
    assert run.token_times is not None
    assert run.token_times.times_s[3:6].tolist() == [1.5, 2.0, 2.5]
    assert run.meta.partial == "killed"


def test_the_warm_up_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    told = RunMeta(kind="measured", id="warm", workload={"warmup_requests": 2})
    journal = Journal.create(tmp_path, told)
    journal.requests(0).write_text("".join(line(i) for i in range(6)))
    assert read_journal(journal.folder).meta.window_s == (2.0, 5.0)
    longer = RunMeta(kind="measured", id="longer", workload={"warmup_s": 60.0})
    journal = Journal.create(tmp_path, longer)
    journal.requests(0).write_text("".join(line(i) for i in range(6)))
    run = read_journal(journal.folder)
    assert run.meta.window_s is None
    assert any("warm-up took the whole run" in note for note in run.meta.notes)


def test_a_journal_that_cannot_be_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "write_meta", full)
    with pytest.raises(InputError, match="No space left"):
        Journal.create(tmp_path, meta())
    assert list(tmp_path.iterdir()) == []


def test_a_torn_line_is_passed_over_and_said(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, meta())
    journal.requests(0).write_text(line(0) + line(1)[:30])
    run = read_journal(journal.folder)
    assert run.requests.height == 1
    assert any("1 torn line" in note for note in run.meta.notes)


def test_columns_that_nothing_is_known_of_are_not_there(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, meta())
    journal.requests(0).write_text(line(0, finish_reason="length"))
    columns = read_journal(journal.folder).requests.columns
    assert "finish_reason" in columns
    assert "first_content_s" not in columns


def test_pages_become_the_server_table_and_counters(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, meta())
    journal.requests(0).write_text(line(0))
    first, second = PAGE.format(running=0, prompt=100), PAGE.format(running=3, prompt=164)
    torn = "# ts 1002.0 52.0\nvllm:num_requests_run"
    journal.pages.write_text(f"# ts 1000.5 50.5\n{first}# ts 1001.5 51.5\n{second}{torn}")
    run = read_journal(journal.folder)
    assert run.server["time_s"].to_list() == [0.5, 1.5]
    assert run.server["running"].to_list() == [0, 3]
    assert run.meta.counters["prompt_tokens"] == 64


def test_no_pages_file_is_no_pages(tmp_path: Path) -> None:
    assert read_pages(tmp_path / "metrics.prom") == []


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    held = Journal.create(tmp_path, meta())
    with pytest.raises(InputError, match="bench-1"):
        Journal.create(tmp_path, meta())
    held.close(remove=True)
    assert not held.folder.exists()


def test_a_journal_without_meta_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    with pytest.raises(FormatError, match=r"broken: meta\.json"):
        read_journal(tmp_path / "broken")


def test_the_columns_of_ended_are_those_of_a_run() -> None:
    from inferometer.records.run import MEASURED_SCHEMA, REQUEST_SCHEMA

    own = {"index", "retry_after_s", "times_s"}
    assert set(Ended.__struct_fields__) - own <= {*REQUEST_SCHEMA, *MEASURED_SCHEMA}


def _hold(root: str, ready: object) -> None:
    journal = Journal.create(Path(root), meta("held"))
    journal.requests(0).write_text(line(0) + line(1))
    ready.set()  # type: ignore[attr-defined]
    time.sleep(60)


def test_a_store_takes_in_the_journal_of_a_killed_benchmark_and_not_of_a_living_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold, args=(str(store.running), ready))
    process.start()
    assert ready.wait(20)
    assert abandoned(store.running) == []
    assert store.recover() == []
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert store.recover() == ["held"]
    run = store.load("held")
    assert run.requests.height == 2
    assert run.meta.partial == "killed"
    assert store.list()[0]["id"] == "held"
    assert not (store.running / "held").exists()


def test_of_a_killed_run_the_time_after_its_last_answer_is_not_counted(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, meta())
    cut = line(3, error="cancelled: the coordinator is gone", end_s=9.0, last_token_s=4.5)
    journal.requests(0).write_text(line(0) + line(1) + line(2) + cut)
    run = read_journal(journal.folder)
    assert run.meta.window_s == (0.0, 3.5)
    assert any("1 in flight when it was killed" in note for note in run.meta.notes)
    assert run.summary().duration_s == 3.5
    journal = Journal.create(tmp_path, RunMeta(kind="measured", id="whole", started_unix_s=1000.0))
    journal.requests(0).write_text(line(0) + line(1))
    assert read_journal(journal.folder).meta.window_s is None


def test_with_a_duration_the_window_ends_with_it(tmp_path: Path) -> None:
    told = RunMeta(kind="measured", id="timed", workload={"warmup_s": 1.0, "duration_s": 8.0})
    journal = Journal.create(tmp_path, told)
    journal.requests(0).write_text("".join(line(i) for i in range(6)))
    assert read_journal(journal.folder).meta.window_s == (1.0, 8.0)


def test_a_journal_without_requests_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    Journal.create(store.running, meta()).close(remove=False)
    assert store.recover() == []
    assert not (store.running / "bench-1").exists()
