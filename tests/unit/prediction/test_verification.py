"""Verifying: any digit that was changed, whatever else was done to a file, and folders of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inferometer as im
from inferometer.errors import InputError
from inferometer.prediction.canonical import digest, written
from inferometer.prediction.verification import verify
from inferometer.store import Store


@pytest.fixture(scope="module")
def small() -> im.Prediction:
    return im.predict("demo", overrides=["workload.concurrency=[1]", "workload.output_tokens=8"])


@pytest.fixture(scope="module")
def sealed(small: im.Prediction, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second seal, so that it names one before it."""
    store = Store(tmp_path_factory.mktemp("store"))
    small.seal(store)
    return small.seal(store)


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Path:
    """One sealed file alone, to be tampered with."""
    return Path(shutil.copy(sealed, tmp_path))


def contents(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def sound(path: Path) -> bool:
    try:
        return verify(path).ok
    except InputError:
        return False


def test_a_fresh_seal_is_sound(sealed: Path):
    found = verify(sealed)
    assert found
    assert found.faults == found.notes == ()
    assert found.sha256 == contents(sealed)["sealed"]["sha256"] == digest(contents(sealed))
    assert found.to_dict()["path"] == str(sealed)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(which=st.integers(0), by=st.integers(1, 9))
def test_any_one_digit_changed_is_found(sealed: Path, copy: Path, which: int, by: int):
    text = sealed.read_text()
    digits = [match.start() for match in re.finditer(r"\d", text)]
    at = digits[which % len(digits)]
    copy.write_text(text[:at] + str((int(text[at]) + by) % 10) + text[at + 1 :])
    assert not sound(copy), text[max(0, at - 60) : at + 20]


def test_any_digit_of_ink_and_seal_changed_is_found(sealed: Path, copy: Path):
    text = sealed.read_text()
    spans = [match.span() for match in re.finditer(r'  "(?:ink|sealed)": \{[^}]*\}', text)]
    assert len(spans) == 2
    digits = [at for start, end in spans for at in range(start, end) if text[at].isdigit()]
    assert len(digits) > 100
    for at in digits:
        copy.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
        assert not sound(copy), text[max(0, at - 60) : at + 20]


def last_digits(text: str) -> list[tuple[int, int]]:
    """Where the long numbers are."""
    return [match.span() for match in re.finditer(r"\d+\.\d{14,}", text)]


def test_the_last_digit_of_every_long_number_is_found(sealed: Path, copy: Path):
    """A changed seventeenth digit may be read as the same double, so the hash alone would not see it."""
    text, unseen_by_the_hash = sealed.read_text(), 0
    for _, end in last_digits(text)[:40]:
        for other in {str((int(text[end - 1]) + by) % 10) for by in (1, 5, 9)}:
            changed = text[: end - 1] + other + text[end:]
            copy.write_text(changed)
            unseen_by_the_hash += digest(json.loads(changed)) == digest(json.loads(text))
            assert not sound(copy)
    copy.write_text(text.replace('"kv_usage": ', '"kv_usage": 0', 1))
    assert not verify(copy).ok


def test_a_digit_that_the_double_does_not_keep_is_named(sealed: Path, copy: Path):
    start, end = last_digits(sealed.read_text())[0]
    text = sealed.read_text()
    copy.write_text(text[:end] + "0000001" + text[end:])
    assert digest(contents(copy)) == digest(contents(sealed))
    assert text[start:end] in verify(copy).faults[0]


def test_another_layout_is_still_sound(sealed: Path, copy: Path):
    copy.write_text(json.dumps(contents(sealed)))
    assert verify(copy)
    jq = shutil.which("jq")
    if jq:
        copy.write_bytes(subprocess.run([jq, "-c", ".", str(sealed)], capture_output=True, check=True).stdout)
        assert verify(copy)


@pytest.mark.parametrize("member", ["time", "previous"])
def test_the_seal_must_say_what_the_ink_says(copy: Path, member: str):
    document = contents(copy)
    document["sealed"][member] = {"time": "2020-01-01T00:00:00.000Z", "previous": "0" * 64}[member]
    copy.write_text(written(document))
    assert any(f"sealed.{member}" in fault for fault in verify(copy).faults)


def test_a_rewritten_time_with_a_new_hash_has_another_hash(copy: Path, sealed: Path):
    """Whoever can write the file can write another seal, but not one of the hash that was written down."""
    document = contents(copy)
    document["ink"]["time"] = document["sealed"]["time"] = "2020-01-01T00:00:00.000Z"
    sha256 = digest(document)
    document["sealed"] |= {"sha256": sha256, "path": f"predictions/{sha256[:16]}.json"}
    copy.write_text(written(document))
    assert verify(copy).ok
    kept = contents(sealed)["sealed"]["sha256"]
    assert not verify(copy, sha256=kept).ok
    assert verify(sealed, sha256=kept).ok
    assert verify(sealed, sha256=kept[:12].upper()).ok


@pytest.mark.parametrize("sha256", ["", "abc", "g" * 64, "0" * 65])
def test_what_is_no_hash(sealed: Path, sha256: str):
    with pytest.raises(InputError, match="sha256"):
        verify(sealed, sha256=sha256)


def test_more_tampering_each_with_its_fault(copy: Path):
    text = copy.read_text()
    cases = {
        "stands twice": text.replace('"seed": null', '"seed": null, "seed": null'),
        "not valid JSON": text[:-20],
        "nothing else": text.replace('"clock": ""', '"clock": "", "by": "me"'),
        "no time": text.replace(contents(copy)["ink"]["time"], "yesterday"),
        "cannot be hashed": text.replace('"seed": null', '"seed": "\\ud800"'),
        "sealed.path": text.replace('"path": "predictions/', '"path": "elsewhere/'),
    }
    for says, changed in cases.items():
        assert changed != text
        copy.write_text(changed)
        found = verify(copy)
        assert not found.ok
        assert any(says in fault for fault in found.faults), (says, found.faults)
        assert all(fault.endswith(".") for fault in found.faults)


def test_what_is_no_sealed_prediction(small: im.Prediction, tmp_path: Path):
    cases = {
        "absent.json": None,
        "unsealed.json": json.dumps(small.to_dict()).encode(),
        "run.json": b'{"schema": "inferometer/runs/1"}',
        "list.json": b"[]",
        "noise.json": b"\xff\xfe\x00",
        "text.json": b"hello",
    }
    for name, content in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            verify(tmp_path / name)
    with pytest.raises(InputError, match="no sealed predictions"):
        verify(tmp_path)


# ---------------------------------------------------------------- chains
@pytest.fixture
def chain(small: im.Prediction, tmp_path: Path) -> list[Path]:
    store = Store(tmp_path / "store")
    return [small.seal(store) for _ in range(4)]


def resealed(path: Path, **ink: Any) -> Path:
    """The same prediction with other ink, sealed by hand beside it."""
    document = contents(path)
    document["ink"] |= ink
    sha256 = digest(document)
    document["sealed"] = {
        "path": f"predictions/{sha256[:16]}.json",
        "sha256": sha256,
        "time": document["ink"]["time"],
        "previous": document["ink"]["previous"],
    }
    target = path.with_name(f"{sha256[:16]}.json")
    target.write_text(written(document))
    return target


def test_a_whole_chain_is_sound_by_store_and_by_folder(chain: list[Path]):
    for folder in (chain[0].parent, chain[0].parent.parent):
        found = verify(folder)
        assert found
        assert [seal.path for seal in found.seals] == chain
        assert found.sha256 == contents(chain[-1])["sealed"]["sha256"]


def test_a_gap(chain: list[Path]):
    chain[1].unlink()
    (fault,) = verify(chain[0].parent).faults
    assert "gap" in fault
    assert chain[2].name in fault
    assert "is not in this folder" in verify(chain[2]).notes[0]
    assert verify(chain[2]).ok


def test_a_fork_and_a_second_beginning(chain: list[Path]):
    fork = resealed(chain[3], clock="another")
    (fault,) = verify(chain[0].parent).faults
    assert "fork" in fault
    assert fork.name in fault
    assert chain[3].name in fault
    fork.unlink()
    resealed(chain[3], previous=None)
    (fault,) = verify(chain[0].parent).faults
    assert "they are the first" in fault


def test_a_last_seal_that_was_taken_out_is_missed_by_its_hash(chain: list[Path]):
    last = contents(chain[-1])["sealed"]["sha256"]
    assert verify(chain[0].parent, sha256=last).ok
    assert verify(chain[0].parent, sha256=contents(chain[1])["sealed"]["sha256"]).ok
    chain[-1].unlink()
    assert verify(chain[0].parent).ok
    assert not verify(chain[0].parent, sha256=last).ok


def test_a_seal_older_than_the_one_it_names(chain: list[Path]):
    early = resealed(chain[3], time="2020-01-01T00:00:00.000Z")
    chain[3].unlink()
    for found in (verify(early), verify(early.parent)):
        assert any("2020-01-01" in fault for fault in found.faults)


def test_faults_of_a_folder_name_the_file(chain: list[Path]):
    chain[0].write_text(chain[0].read_text().replace('"concurrency": 1', '"concurrency": 2', 1))
    chain[2].rename(chain[2].with_name("0123456789abcdef.json"))
    (chain[0].parent / ("f" * 16 + ".json")).write_text("hello")
    found = verify(chain[0].parent)
    text = "\n".join(found.faults)
    assert re.search(rf"{chain[0].name}: It is not what was sealed", text)
    assert "0123456789abcdef.json: The file is not named after" in text
    assert "no prediction" in text
    assert [seal.ok for seal in found.seals].count(False) == 3


def test_sealing_goes_on_after_a_file_that_was_changed(small: im.Prediction, chain: list[Path]):
    named = contents(chain[-1])["sealed"]["sha256"]
    chain[-1].write_text(chain[-1].read_text().replace('"concurrency": 1', '"concurrency": 2', 1))
    chain[1].write_text("torn {")
    assert contents(small.seal(chain[0].parent.parent))["ink"]["previous"] == named


def test_the_hashs_verdict_comes_first_and_each_fault_once(tmp_path: Path):
    path = im.predict("demo", overrides=["workload.concurrency=[1]", "workload.output_tokens=8"]).seal(tmp_path)
    number = re.search(r"\d\.\d{15,}", path.read_text())
    assert number is not None
    path.write_text(path.read_text().replace(number[0], number[0] + "123"))
    faults = im.verify(path).faults
    assert len(faults) == len(set(faults))
    path.write_text(path.read_text().replace('"output_tok_per_s": ', '"output_tok_per_s": 1', 1))
    assert im.verify(path).faults[0].startswith("It is not what was sealed")
