"""Request-level tables: CSV, JSON objects one a line, or a JSON list of objects; one run a ``model``.

Columns, in seconds on one clock (any: the first request's sending becomes 0):

- ``queued_s`` or ``arrival_s``: when the engine, or the client, took the request; of both, ``queued_s``
- ``input_tokens`` or ``prompt_tokens``, ``output_tokens``
- ``first_token_s``, ``last_token_s``; optionally ``end_s``, ``first_byte_s``
- optionally ``scheduled_s``, when the engine's scheduler admitted the request, ``cached_tokens``, ``preemptions``,
  ``replica``, ``session``, ``error``, ``model``, ``gpu``

A table with ``sent_s`` is one of our own: its columns are those of `REQUEST_SCHEMA`, with their meanings.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from inferometer.records.importers.files import in_file, read_table, refuse, source_fields, table_columns
from inferometer.records.run import REQUEST_SCHEMA, Run, RunMeta, make_run

EXPECTED = (
    "a request table: columns queued_s or arrival_s, input_tokens or prompt_tokens, output_tokens, first_token_s, "
    "last_token_s, optionally scheduled_s, cached_tokens, session, error, model"
)

NEEDED = (
    ("sent_s", "queued_s", "arrival_s"),
    ("prompt_tokens", "input_tokens"),
    ("output_tokens",),
    ("first_token_s",),
    ("last_token_s", "end_s"),
)
"""Of each, one column must be there; the first that is, is read."""

TIMES = tuple(name for name in REQUEST_SCHEMA if name.endswith("_s"))


def sniff(path: Path) -> bool:
    """Whether the table has a column for when a request came and one for when its tokens did."""
    names = set(table_columns(path))
    came = names & set(NEEDED[0])
    return bool(came and names & {"first_token_s", "last_token_s"})


def read(path: Path) -> list[Run]:
    """One run a model, in the order they first appear. Raises `FormatError` naming the columns that are missing."""
    table = read_table(path, EXPECTED)
    missing = [" or ".join(names) for names in NEEDED if not set(names) & set(table.columns)]
    if missing:
        refuse(path, f"no column {', '.join(missing)}", EXPECTED)
    if "model" not in table.columns:
        return [_run(path, table, None, path.stem)]
    parts = table.partition_by("model", maintain_order=True)
    models = [None if part["model"][0] is None else str(part["model"][0]) for part in parts]
    names = [f"{path.stem}:{model}" if len(parts) > 1 else path.stem for model in models]
    return [_run(path, part, model, name) for part, model, name in zip(parts, models, names, strict=True)]


def _run(path: Path, table: pl.DataFrame, model: str | None, name: str) -> Run:
    meta = RunMeta(kind="imported", name=name, tool="request table", model=model, **source_fields(path))
    if "gpu" in table.columns and table["gpu"].n_unique() == 1:
        meta.deployment = {"gpu": str(table["gpu"][0])}
    run = in_file(path, lambda: make_run(meta, _columns(table)))
    origin = run.requests["sent_s"].min()
    if origin is None:
        refuse(path, "no request has a time of sending", EXPECTED)
    run.requests = run.requests.with_columns(pl.col(TIMES) - origin)
    return run


def _columns(table: pl.DataFrame) -> pl.DataFrame:
    """The columns that are read, by our names."""
    if "sent_s" not in table.columns:
        table = _foreign(table)
    elif "prompt_tokens" not in table.columns:
        table = table.rename({"input_tokens": "prompt_tokens"})
    if "end_s" not in table.columns:
        table = table.with_columns(end_s=pl.col("last_token_s"))
    if "last_token_s" not in table.columns:
        table = table.with_columns(last_token_s=pl.when(pl.col("first_token_s").is_not_null()).then(pl.col("end_s")))
    if "session" in table.columns and table["session"].dtype == pl.String:
        table = table.with_columns(session=_numbered(table["session"]))
    if "error" in table.columns:
        told = pl.col("error").cast(pl.String)
        table = table.with_columns(error=pl.when(told.str.strip_chars() != "").then(told))
    return table.select(name for name in REQUEST_SCHEMA if name in table.columns)


def _foreign(table: pl.DataFrame) -> pl.DataFrame:
    """The table of another tool with our names: its ``scheduled_s`` is when the scheduler admitted a request."""
    sent = "queued_s" if "queued_s" in table.columns else "arrival_s"
    prompt = "prompt_tokens" if "prompt_tokens" in table.columns else "input_tokens"
    renames = {sent: "sent_s", prompt: "prompt_tokens"}
    if "scheduled_s" in table.columns:
        table = table.drop("admitted_s", strict=False)
        renames["scheduled_s"] = "admitted_s"
    return table.rename(renames)


def _numbered(sessions: pl.Series) -> pl.Series:
    """Session names as numbers, in the order they first appear."""
    names = sessions.drop_nulls().unique(maintain_order=True)
    return sessions.replace_strict(names, range(names.len()), default=None, return_dtype=pl.Int64)
