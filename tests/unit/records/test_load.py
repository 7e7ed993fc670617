"""`load` finds the importer, takes folders and globs, and says clearly what it cannot read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferometer.errors import FormatError, InferometerWarning, InputError
from inferometer.records.importers import load, registry
from inferometer.records.run import Run, RunMeta, make_run
from shared import shared

SWEEP = "concurrency,output_tok_per_s\n1,10\n2,20\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.json", b'{"a": ', "not complete JSON"),
        ("empty.json", b"", "empty"),
        ("blank.csv", b"\n \n", "empty"),
        ("l.json", b"[]", "known format"),
        ("n.json", b"3", "known format"),
        ("o.json", b'{"a": 1}', "known format"),
        ("x.csv", b"a,b\n1,2\n", "known format"),
        ("b.csv", b"\xff\xfe\x00", "known format"),
        ("b.json", b"\xff\xfe\x00", "not complete JSON"),
    ],
)
def test_what_is_no_result_is_refused_with_the_known_formats(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=says) as error:
        load(tmp_path / name)
    assert str(error.value).startswith(name + ":")
    assert "vllm bench serve" in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="glob"):
        load(str(tmp_path / "*.csv"))
    with pytest.raises(FormatError, match="no result file"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read any file")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "closed.csv"
    path.write_text(SWEEP)
    path.chmod(0)
    with pytest.raises(FormatError, match="cannot be read"):
        load(path)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_bytes(b"\xef\xbb\xbf" + SWEEP.encode())
    assert [run.meta.concurrency for run in load(tmp_path / "sweep.csv")] == [1, 2]


def test_a_folder_and_a_glob_in_order_of_name(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("concurrency,output_tok_per_s\n8,80\n")
    (tmp_path / "a.csv").write_text(SWEEP)
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    assert [run.meta.concurrency for run in load(tmp_path)] == [1, 2, 8]
    assert [run.meta.concurrency for run in load(str(tmp_path / "?.csv"))] == [1, 2, 8]
    with pytest.raises(FormatError, match=r"config\.json"):
        load(str(tmp_path / "*.json"))


CUT = '{"date": "2026'


@pytest.mark.parametrize("pattern", ["", "*"])
@pytest.mark.parametrize("content", [CUT, ""])
def test_a_truncated_file_among_results_is_passed_over_and_named(tmp_path: Path, pattern: str, content: str) -> None:
    (tmp_path / "a.csv").write_text(SWEEP)
    (tmp_path / "b.json").write_text(content)
    fault = "not complete JSON" if content else "the file is empty"
    with pytest.warns(InferometerWarning) as said:
        runs = load(str(tmp_path / pattern))
    assert [run.meta.concurrency for run in runs] == [1, 2]
    (text,) = [str(each.message) for each in said]
    assert text.startswith(f"{tmp_path / 'b.json'} is passed over: {fault}")


def test_a_truncated_file_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(CUT)
    (tmp_path / "notes.txt").write_text("not looked at")
    for source in (tmp_path / "b.json", tmp_path, str(tmp_path / "*")):
        with pytest.raises(FormatError, match=r"b\.json: not complete JSON"):
            load(source)


def test_a_killed_benchmarks_own_file_is_passed_over_too(tmp_path: Path) -> None:
    """Cut after the keys that tell the format; its pages beside it are no result."""
    folder = shared("data/cpu_engine/main_clean")
    whole = (folder / "c8.json").read_bytes()
    (tmp_path / "c8.json").write_bytes(whole[: len(whole) * 9 // 10])
    (tmp_path / "c8.metrics.prom").write_bytes((folder / "c8.metrics.prom").read_bytes())
    with pytest.raises(FormatError, match=r"c8\.json: not complete JSON"):
        load(tmp_path)
    (tmp_path / "c4.json").write_bytes((folder / "c4.json").read_bytes())
    with pytest.warns(InferometerWarning, match=r"c8\.json is passed over: not complete JSON"):
        runs = load(tmp_path)
    assert [run.meta.name for run in runs] == ["c4"]
    with pytest.raises(FormatError, match=r"c8\.json"):
        load(tmp_path / "c8.json")


def test_a_whole_file_with_a_wrong_figure_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(SWEEP)
    (tmp_path / "b.json").write_text('[{"concurrency": 1, "output_tok_per_s": -1}]')
    with pytest.raises(FormatError, match=r"b\.json.*output_tok_per_s"):
        load(tmp_path)


def test_of_one_export_what_is_whole_is_read(tmp_path: Path) -> None:
    for path in shared("data/bench_outputs/aiperf").glob("profile_export*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = tmp_path / "profile_export.jsonl"
    lines.write_bytes(lines.read_bytes()[:-40])
    with pytest.warns(InferometerWarning, match=r"profile_export\.jsonl is passed over"):
        (run,) = load(tmp_path)
    assert run.requests.height == 0
    assert run.meta.stated["ttft_s.p50"] > 0


def test_pages_and_logs_beside_results_are_no_runs(tmp_path: Path) -> None:
    folder = shared("data/cpu_engine")
    for name in ("c1.json", "c1.metrics.prom", "c2.metrics.prom"):
        (tmp_path / name).write_bytes((folder / "main_clean" / name).read_bytes())
    (tmp_path / "server.log").write_bytes((folder / "main_clean.server.log").read_bytes())
    for source in (tmp_path, str(tmp_path / "*")):
        assert [run.meta.source for run in load(source)] == ["c1.json"]
    (tmp_path / "c1.json").unlink()
    assert [run.meta.source for run in load(tmp_path)] == ["c1.metrics.prom", "c2.metrics.prom", "server.log"]
    assert len(load(str(tmp_path / "*.prom"))) == 2


def test_a_name_with_glob_characters_that_exists_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "sweep[1].csv").write_text(SWEEP)
    assert len(load(tmp_path / "sweep[1].csv")) == 2


def test_the_source_is_a_name_and_a_hash_not_a_place(tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_text(SWEEP)
    run = load(tmp_path / "sweep.csv")[0]
    assert (run.meta.kind, run.meta.source, len(run.meta.source_sha256 or "")) == ("imported", "sweep.csv", 64)
    assert str(tmp_path) not in str(run.to_dict())


def test_importers_of_other_packages_are_found_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs:
        name = "their format"

        def load(self) -> Theirs:
            return self

        def sniff(self, path: Path) -> bool:
            return path.suffix == ".their"

        def read(self, path: Path) -> list[Run]:
            return [make_run(RunMeta(kind="imported", tool="theirs"))]

    asked = []

    def entry_points(group: str) -> list[Theirs]:
        asked.append(group)
        return [Theirs()]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    (tmp_path / "x.their").write_text("anything")
    assert load(tmp_path / "x.their")[0].meta.tool == "theirs"
    assert set(asked) == {"inferometer.importers"}
    assert "their format" in registry.importers()


def test_a_glob_reads_the_files_of_one_export_together() -> None:
    (run,) = load(str(shared("data/bench_outputs/aiperf")) + "/profile*")
    assert run.requests.height > 0
    assert run.meta.stated
    assert len(load(str(shared("data/bench_outputs/inference-perf")) + "/*")) == 1


def test_a_glob_passes_over_what_is_of_no_known_format(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sweep.csv").write_text(SWEEP)
    (tmp_path / "a" / "other.csv").write_text("x,y\n1,2\n")
    assert [run.meta.concurrency for run in load(str(tmp_path / "*" / "*.csv"))] == [1, 2, 1, 2]
    with pytest.raises(FormatError, match=r"other\.csv: not a result file"):
        load(str(tmp_path / "*" / "other.csv"))


def test_a_folder_of_folders() -> None:
    folder = shared("data/bench_outputs")
    below = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "genai-perf"]
    assert len(below) == 7
    assert [run.meta.source for run in load(folder)] == [run.meta.source for path in below for run in load(path)]


def test_the_folders_below_are_read_only_where_the_folder_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "sweep.csv").write_text(SWEEP)
    assert len(load(tmp_path)) == 2
    (tmp_path / "own.csv").write_text("concurrency,output_tok_per_s\n8,80\n")
    assert [run.meta.concurrency for run in load(tmp_path)] == [8]
