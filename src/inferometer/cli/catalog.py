"""``inferometer catalog``: the chips, models and engines there are, with the source of each figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from inferometer.cli.options import Output, Storage
from inferometer.cli.output import print_json

Kind = Literal["chips", "models", "engines"]
KINDS: tuple[Kind, ...] = ("chips", "models", "engines")
SCHEMA = "inferometer/catalog/1"
EXAMPLES = """Examples:
  inferometer catalog chips
  inferometer catalog models Qwen/Qwen3-8B
  inferometer catalog engines vllm --json
"""
Entry = dict[str, Any]
Sources = dict[str, dict[str, str]]


def catalog(
    kind: Kind | None = None,
    name: str | None = None,
    /,
    *,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """List chips, models and engines, or show one with the source of each figure.

    Parameters
    ----------
    kind
        chips, models or engines; without it, how many there are of each.
    name
        Show this one.
    """
    if kind is None:
        return _counts(output)
    if name is None:
        return _list(kind, output)
    entry, sources = _READ[kind](name)
    return _show(kind, name, entry, sources, output)


def _ids(kind: Kind) -> list[str]:
    from inferometer.specs.catalog import names
    from inferometer.specs.engine import engines

    return engines() if kind == "engines" else names(kind)


# ---------------------------------------------------------------- entries: figures in SI units, and their sources


def _chip(name: str) -> tuple[Entry, Sources]:
    import msgspec

    from inferometer.specs.chip import chip

    entry: Entry = msgspec.to_builtins(chip(name))
    return entry, entry.pop("sources")


def _model(name: str) -> tuple[Entry, Sources]:
    import msgspec

    from inferometer.specs.model import model
    from inferometer.steptime.ops import kv_bytes_per_token
    from inferometer.steptime.weights import active_parameters, parameters, weight_bytes

    found = model(name)
    entry: Entry = {"id": name, **msgspec.to_builtins(found)}
    if found.blocks:
        entry |= {"parameters": parameters(found), "active_parameters": active_parameters(found)}
    entry |= {"weight_bytes": weight_bytes(found), "kv_bytes_per_token": kv_bytes_per_token(found, 2)}
    return entry, entry.pop("sources")


def _engine(name: str) -> tuple[Entry, Sources]:
    from importlib import resources

    from inferometer.errors import UnknownNameError
    from inferometer.specs.catalog import read_table

    if name not in _ids("engines"):
        raise UnknownNameError("engine", name, _ids("engines"))
    table = read_table(resources.files("inferometer.specs") / "data" / "engines" / f"{name}.toml")
    return {"id": name, **table}, {"": {"source": table["source"], "checked": table["checked"]}}


_READ: dict[Kind, Callable[[str], tuple[Entry, Sources]]] = {"chips": _chip, "models": _model, "engines": _engine}


# ---------------------------------------------------------------- lists

COLUMNS: dict[Kind, tuple[tuple[str, str, float], ...]] = {
    "chips": (
        ("GiB", "memory_bytes", 2**30),
        ("reported", "reported_memory_bytes", 2**30),
        ("TB/s", "bandwidth_bytes_per_s", 1e12),
        ("bf16 TFLOP/s", "flops_per_s.bf16", 1e12),
        ("fp8", "flops_per_s.fp8", 1e12),
        ("link GB/s", "link_bytes_per_s", 1e9),
        ("W", "tdp_w", 1.0),
        ("family", "family", 0),
    ),
    "models": (
        ("B parameters", "parameters", 1e9),
        ("active", "active_parameters", 1e9),
        ("GiB", "weight_bytes", 2**30),
        ("layers", "layers", 0),
        ("KV KiB/token", "kv_bytes_per_token", 2**10),
        ("context", "max_position_embeddings", 0),
    ),
    "engines": (("from", "first", 0), ("to", "last", 0), ("newest", "newest", 0)),
}
"""Of each kind: a column's header, the figure it shows, and its unit (0: as it is)."""


def _counts(output: Output) -> int:
    from inferometer.report import terminal

    ids = {kind: _ids(kind) for kind in KINDS}
    if output.json:
        print_json({"schema": SCHEMA, **ids})
        return 0
    for kind, found in ids.items():
        terminal.command(terminal.make_console(), f"{len(found):>4} {kind:8}  ", f"inferometer catalog {kind}")
    return 0


def _list(kind: Kind, output: Output) -> int:
    from inferometer.report import terminal
    from inferometer.report.grid import Column

    if output.quiet and not output.json:
        print("\n".join(_ids(kind)))
        return 0
    entries = [_READ[kind](id)[0] for id in _ids(kind)]
    if output.json:
        kept = {key.split(".")[0] for _, key, _ in COLUMNS[kind]} | {"id", "name"}
        short = [{key: value for key, value in entry.items() if key in kept} for entry in entries]
        print_json({"schema": SCHEMA, "kind": kind, "entries": short})
        return 0
    texts = {key for _, key, unit in COLUMNS[kind] if not unit and isinstance(_at(entries[0], key), str)}
    columns = [Column(header, "left" if key in texts else "right") for header, key, _ in COLUMNS[kind]]
    rows = [[entry["id"], *(_cell(_at(entry, key), unit) for _, key, unit in COLUMNS[kind])] for entry in entries]
    terminal.listing(kind.capitalize(), columns, rows, terminal.make_console())
    return 0


def _at(entry: Entry, path: str) -> Any:
    head, _, rest = path.partition(".")
    value = entry.get(head)
    return value.get(rest) if rest and isinstance(value, dict) else value


def _cell(value: Any, unit: float) -> str:
    from inferometer.report.grid import figure

    return value if isinstance(value, str) else figure(value / unit if value is not None and unit else value)


# ---------------------------------------------------------------- one entry


def _show(kind: Kind, name: str, entry: Entry, sources: Sources, output: Output) -> int:
    """Each figure with the number of its source, the sources by number, and a model's layers."""
    from inferometer.report import terminal
    from inferometer.report.grid import Column

    if output.json:
        print_json({"schema": SCHEMA, "kind": kind, "id": entry["id"], "entry": entry, "sources": sources})
        return 0
    if output.quiet:
        print(entry["id"])
        return 0
    console = terminal.make_console()
    cited = list(dict.fromkeys((source["source"], source["checked"]) for source in sources.values()))
    rows = []
    for key, value in _figures(kind, entry):
        source = sources.get(key) or sources.get("")
        number = str(1 + cited.index((source["source"], source["checked"]))) if source else ""
        number = "counted" if kind == "models" and key in COUNTED else number
        rows.append([key, _with_unit(key, value), number])
    terminal.listing(name, [Column(""), Column("source")], rows, console)
    for line in _layers(entry.get("blocks", [])):
        terminal.say(console, line)
    terminal.say(console)
    for i, (source_text, checked) in enumerate(cited, 1):
        terminal.command(console, f"{i}  {source_text}, checked {checked}", "")
    return 0


def _figures(kind: Kind, entry: Entry) -> list[tuple[str, Any]]:
    if kind == "engines":
        return [(f"{row['flag']} from {row['since']}", row["value"]) for row in entry["default"]]
    flat: list[tuple[str, Any]] = []
    for key, value in entry.items():
        if isinstance(value, dict):
            flat += [(f"{key}.{inner}", each) for inner, each in value.items()]
        elif key not in ("id", "blocks"):
            flat.append((key, value))
    return [(key, value) for key, value in flat if value not in (None, "", False, [])]


COUNTED = ("parameters", "active_parameters", "weight_bytes", "kv_bytes_per_token")
"""Figures of a model that no source states: they are counted from its shape."""
_UNITS = (
    ("memory_bytes", 2**30, "GiB"),
    ("weight_bytes", 2**30, "GiB"),
    ("kv_bytes_per_token", 2**10, "KiB"),
    ("link_bytes_per_s", 1e9, "GB/s"),
    ("pcie_bytes_per_s", 1e9, "GB/s"),
    ("bandwidth_bytes_per_s", 1e12, "TB/s"),
    ("flops_per_s", 1e12, "TFLOP/s"),
    ("tdp_w", 1.0, "W"),
)


def _with_unit(key: str, value: Any) -> str:
    from inferometer.report.grid import figure

    for name, unit, text in _UNITS:
        if key.split(".")[0].endswith(name):
            scaled = value / unit
            return f"{scaled:,.2f} {text}" if text == "GiB" else f"{figure(scaled)} {text}"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _layers(blocks: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of layer, however often it alternates with others: how many, and what is set in it."""
    kinds: dict[str, int] = {}
    for block in blocks:
        kinds[_layer(block)] = kinds.get(_layer(block), 0) + block["count"]
    return [f"{count} x  {kind}" for kind, count in kinds.items()]


def _layer(block: dict[str, Any]) -> str:
    """The mixer and the feed-forward part of a layer with what is set in them."""
    parts = []
    for part in (block.get("mixer"), block.get("mlp")):
        if part:
            known = {key: value for key, value in part.items() if key != "type" and value not in (None, False, 0)}
            parts.append(f"{part['type']} ({', '.join(f'{key} {value}' for key, value in known.items())})")
    return "  ".join(parts)
