"""Whether a sealed file is still what was sealed, and whether a folder of them is one chain.

Of a file: the hash is computed again; ``sealed``, which a reader sees, must say what ``ink`` says, which the hash
covers; nothing may hide in the text (`prediction.canonical`). Of a folder: every seal but the first names the one
before it, no two name the same, and times do not go back. A chain on one's own disk can be rewritten from its first
link: what is written down elsewhere is checked with ``sha256``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import FormatError, InputError
from inferometer.prediction.canonical import SEALED, Reading, digest, read

FAMILY = "inferometer/prediction/"
"""How the schema of a prediction begins."""
HASH = re.compile(r"[0-9a-f]{64}")
LEAST_DIGITS = 12
"""Of a hash that was written down, at least so many hex digits are asked for."""
NAME_DIGITS = 16
"""Of the hash, in a sealed file's name."""
FOLDER = "predictions"
_MEMBERS = {"path", "sha256", "time", "previous"}
_INK = {"time", "previous", "clock"}


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about one sealed file, or about a folder of them; true where it is sound."""

    path: Path
    ok: bool
    sha256: str
    """As computed again; of a folder: the last seal's. Empty where it cannot be computed."""
    time: str
    """When it was sealed, as it says: ISO 8601, UTC."""
    previous: str | None
    """SHA-256 of the seal before it, as it says; None for a store's first."""
    faults: tuple[str, ...] = ()
    """What is wrong, a sentence each."""
    notes: tuple[str, ...] = ()
    """What could not be checked, and what the clock did."""
    seals: tuple[Verification, ...] = ()
    """Of a folder: its files, oldest first."""

    def __bool__(self) -> bool:
        return self.ok

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``verify``."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        lists = {"faults": list(self.faults), "notes": list(self.notes)}
        return {**values, **lists, "path": str(self.path), "seals": [seal.to_dict() for seal in self.seals]}


def verify(path: str | os.PathLike[str], sha256: str | None = None) -> Verification:
    """Whether a sealed file, or every one in a folder or store and their chain, is what was sealed.

    Args:
        path: a sealed prediction; or a folder of them, or a store.
        sha256: the hash as it was written down elsewhere, whole or at least its first 12 digits. Of a folder: it must
            be one of its seals, so that a seal that was taken out is missed.

    Raises:
        InputError: there is no such file, it is no sealed prediction, or ``sha256`` is no hash.

    >>> import inferometer as im, tempfile
    >>> prediction = im.predict("demo", overrides=["workload.concurrency=[1]", "workload.output_tokens=8"])
    >>> path = prediction.seal(tempfile.mkdtemp())
    >>> im.verify(path).ok
    True
    >>> _ = path.write_text(path.read_text().replace('"concurrency": 1', '"concurrency": 2', 1))
    >>> im.verify(path).ok
    False
    """
    wanted = None if sha256 is None else _hash_start(sha256)
    given = Path(path).expanduser()
    if given.is_dir():
        return _verified_folder(given, wanted)
    found = _verified_file(given, read_file(given), wanted)
    return _beside_the_one_before(found)


def _hash_start(given: str) -> str:
    start = given.strip().lower()
    if not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", start):
        raise InputError("sha256", given, f"a SHA-256 in hex, whole or at least its first {LEAST_DIGITS} digits")
    return start


# ---------------------------------------------------------------- one file
def read_file(path: Path) -> Reading:
    """The document of a prediction's file, sealed or not, and what its text hides.

    What was once a sealed file but is JSON no longer has that as its fault, and nothing in it.

    Raises:
        InputError: it cannot be read, or is something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise FormatError.because(f"{path}: cannot be read: {reason}") from error
    try:
        found = read(text)
    except FormatError as error:
        if f'"{FAMILY}' not in text:
            raise FormatError.because(f"{path}: no prediction: {error}") from error
        return Reading({}, [f"It is {error}."])
    if not str(found.document.get("schema", "")).startswith(FAMILY) and SEALED not in found.document:
        raise FormatError.because(f"{path}: no prediction: its schema is {found.document.get('schema')!r}")
    return found


def _verified_file(path: Path, reading: Reading, wanted: str | None) -> Verification:
    document, faults = reading
    seal, ink = document.get(SEALED), document.get("ink")
    if document and seal is None and ink is None:
        raise InputError.because(f"{path}: not sealed; inferometer predict STUDY --seal writes a sealed prediction")
    seal, ink = _table(seal), _table(ink)
    computed, wrong = _computed(document)
    # the hash's verdict first: what hides in the text is a detail of it
    found = [*wrong, *(_disagreements(seal, ink, computed) if document else ()), *dict.fromkeys(faults)]
    if wanted and not computed.startswith(wanted):
        found.append(f"Its SHA-256 is {computed or 'not to be had'}, not {wanted}, which was written down.")
    return Verification(
        path=path,
        ok=not found,
        sha256=computed,
        time=str(ink.get("time", "")),
        previous=ink.get("previous") if isinstance(ink.get("previous"), str) else None,
        faults=tuple(found),
        notes=(str(ink["clock"]),) if ink.get("clock") else (),
    )


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _computed(document: Mapping[str, Any]) -> tuple[str, list[str]]:
    if not document:
        return "", []
    try:
        return digest(document), []
    except ValueError as error:  # rfc8785's errors are ValueErrors
        return "", [f"It cannot be hashed: {error}."]


def _disagreements(seal: Mapping[str, Any], ink: Mapping[str, Any], computed: str) -> Iterator[str]:
    """What the seal says that is not so."""
    if set(seal) != _MEMBERS or set(ink) != _INK:
        yield f"sealed must hold {', '.join(sorted(_MEMBERS))}, and ink {', '.join(sorted(_INK))}, and nothing else."
    if computed != seal.get("sha256"):
        yield f"It is not what was sealed: its SHA-256 is {computed}, the seal says {seal.get('sha256')}."
    for name in ("time", "previous"):
        if seal.get(name) != ink.get(name):
            yield f"sealed.{name} is {seal.get(name)!r}, ink.{name}, which the hash covers, {ink.get(name)!r}."
    named, path = f"{FOLDER}/{str(seal.get('sha256'))[:NAME_DIGITS]}.json", str(seal.get("path"))
    if path != named and not path.endswith(f"/{named}"):
        yield f"sealed.path is {path!r}, not {named!r} as its hash says."
    if unix_s(ink.get("time")) is None:
        yield f"ink.time is {ink.get('time')!r}, no time."
    if not (ink.get("previous") is None or HASH.fullmatch(str(ink["previous"]))):
        yield f"ink.previous is {ink['previous']!r}, no SHA-256."


def unix_s(time: object) -> float | None:
    """Seconds since 1970 of an ISO 8601 time with its zone; None where it is none.

    >>> unix_s("1970-01-01T00:00:01.500Z")
    1.5
    """
    try:
        found = datetime.fromisoformat(str(time))
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None


def iso_time(unix: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC, to the millisecond.

    >>> iso_time(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _beside_the_one_before(found: Verification) -> Verification:
    """The same, having looked at the seal before it: whether it lies beside it, where others do, and is not later."""
    if found.previous is None or not HASH.fullmatch(found.previous):
        return found
    others = [file for file in sealed_files(found.path.parent) if file.name != found.path.name]
    before = next((file for file in others if file.stem == found.previous[:NAME_DIGITS]), None)
    if before is None:
        missing = f"The seal before it, {found.previous[:NAME_DIGITS]}, is not in this folder."
        return msgspec.structs.replace(found, notes=(*found.notes, *([missing] if others else [])))
    faults = (*found.faults, *_order_faults(_verified_quietly(before), found))
    return msgspec.structs.replace(found, faults=faults, ok=not faults)


def _order_faults(before: Verification, seal: Verification) -> Iterator[str]:
    """Whether a seal is older than the one that it names."""
    earlier, later = unix_s(before.time), unix_s(seal.time)
    if earlier is not None and later is not None and earlier > later:
        yield f"{seal.path.name} says {seal.time}, but the seal before it, {before.path.name}, says {before.time}."


# ---------------------------------------------------------------- a folder
def sealed_files(folder: Path) -> list[Path]:
    """The files in a folder that are named as sealed predictions are."""
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.glob("*.json") if re.fullmatch(r"[0-9a-f]{16}", file.stem))


def _verified_folder(given: Path, wanted: str | None) -> Verification:
    folder = given / FOLDER if (given / FOLDER).is_dir() else given
    files = sealed_files(folder)
    if not files:
        raise InputError.because(f"{given}: no sealed predictions there; inferometer predict STUDY --seal makes one")
    seals = sorted((_verified_quietly(file) for file in files), key=lambda seal: (seal.time, seal.path.name))
    faults = [f"{seal.path.name}: {fault}" for seal in seals for fault in seal.faults]
    faults += _chain_faults(seals)
    hashes = {seal.sha256 for seal in seals if seal.sha256}
    if wanted and not any(sha256.startswith(wanted) for sha256 in hashes):
        faults.append(f"No seal in this folder has the SHA-256 {wanted}, which was written down.")
    named = {seal.previous for seal in seals}
    last = [seal for seal in seals if seal.sha256 not in named] or seals
    return Verification(
        path=folder,
        ok=not faults,
        sha256=last[-1].sha256,
        time=last[-1].time,
        previous=last[-1].previous,
        faults=tuple(faults),
        notes=tuple(f"{seal.path.name}: {note}" for seal in seals for note in seal.notes),
        seals=tuple(seals),
    )


def _verified_quietly(file: Path) -> Verification:
    """`_verified_file`, with a file that cannot be read or is not sealed as a fault."""
    try:
        found = _verified_file(file, read_file(file), None)
    except InputError as error:
        return Verification(path=file, ok=False, sha256="", time="", previous=None, faults=(f"{error}.",))
    if found.sha256 and file.stem != found.sha256[:NAME_DIGITS]:
        other = f"The file is not named after its SHA-256, {found.sha256[:NAME_DIGITS]}."
        return msgspec.structs.replace(found, ok=False, faults=(*found.faults, other))
    return found


def _chain_faults(seals: list[Verification]) -> Iterator[str]:
    """Gaps, forks, and more than one beginning."""
    here = {seal.sha256: seal for seal in seals if seal.sha256}
    known = [seal for seal in seals if seal.sha256]
    for seal in known:
        if seal.previous is not None and seal.previous not in here:
            yield f"A gap: {seal.path.name} names a seal before it, {seal.previous[:NAME_DIGITS]}, that is not here."
        elif seal.previous is not None:
            yield from _order_faults(here[seal.previous], seal)
    firsts = [seal.path.name for seal in known if seal.previous is None]
    if len(firsts) > 1:
        yield f"{len(firsts)} seals say that they are the first: {', '.join(firsts)}."
    for previous, count in Counter(seal.previous for seal in known if seal.previous).items():
        if count > 1:
            both = ", ".join(seal.path.name for seal in known if seal.previous == previous)
            yield f"A fork: {both} name the same seal before them, {previous[:NAME_DIGITS]}."
