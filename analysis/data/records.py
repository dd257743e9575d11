"""Reads the files of a run directory; a missing or cut-off one becomes a remark, not an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

SCHEMA = 1

Schema = Mapping[str, "pl.DataType | type[pl.DataType]"]

ROUNDS: Schema = {
    "round": pl.Int64,
    "critical": pl.Boolean,
    "gradient_norm": pl.Float64,
    "tolerance_gather": pl.Float64,
    "tolerance_broadcast": pl.Float64,
    "compute_s": pl.Float64,
    "gather_s": pl.Float64,
    "broadcast_s": pl.Float64,
    "latency_s": pl.Float64,
    "iteration_s": pl.Float64,
    "impairments": pl.List(pl.String),
    "workers_lost": pl.List(pl.String),
}
TRANSFERS: Schema = {
    "round": pl.Int64,
    "leg": pl.String,
    "role": pl.String,
    "host": pl.String,
    "peer": pl.String,
    "chunk_count": pl.Int64,
    "chunks_received": pl.Int64,
    "passes": pl.Int64,
    "chunks_sent": pl.Int64,
    "bytes_sent": pl.Int64,
    "bytes_received": pl.Int64,
    "control_bytes": pl.Int64,
    "retransmitted_bytes": pl.Int64,
    "duplicates": pl.Int64,
    "duration_s": pl.Float64,
}
# Receivers add this on request. It is long, so it is averaged while it is read.
TENSOR_LOSS: Schema = {
    **TRANSFERS,
    "tensor_loss": pl.List(pl.Float64),
}
TRAINING: Schema = {
    "round": pl.Int64,
    "host": pl.String,
    "loss": pl.Float64,
    "compute_s": pl.Float64,
    "compute_overrun_s": pl.Float64,
    "accuracy": pl.Float64,
    "perplexity": pl.Float64,
    "elapsed_s": pl.Float64,
}
EFFECTS: Schema = {
    "round": pl.Int64,
    "gathered": pl.String,  # JSON objects: one, and one per worker
    "applied": pl.String,
    "divergence": pl.Float64,
}
IMPAIRMENTS: Schema = {
    "name": pl.String,
    "kind": pl.String,
    "host": pl.String,
    "action": pl.String,
    "round": pl.Int64,
    "leg": pl.String,
    "planned_s": pl.Float64,
    "sent_s": pl.Float64,
    "acknowledged_s": pl.Float64,
    "dropped": pl.Int64,
    "frames_sent": pl.Int64,
    "target": pl.String,
    "details": pl.String,  # a JSON object: what it did in this kind's own terms
}

_LAYER_LABELS = {"run_key": pl.String, "arm": pl.String, "leg": pl.String}
_LAYER_LOSS: dict[str, Any] = _LAYER_LABELS | {
    "layer": pl.Int64,
    "missing": pl.Float64,
    "transfers": pl.Int64,
}


def read_document(
    path: Path, problems: list[str], *, require_schema: bool = False
) -> dict[str, Any]:
    """A JSON object; empty, with a remark in `problems`, where there is none to read.

    Raises:
        ValueError: the document has another schema and `require_schema` is set; the message names
            the command to use.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(document, dict):
        problems.append(f"{path.name} is not a JSON object")
        return {}
    if document.get("schema", SCHEMA) != SCHEMA:
        if require_schema:
            raise ValueError(
                f"{path}: schema {document['schema']!r}; valid: {SCHEMA}. These results are of "
                f"another version of the lab: run './lab run {path.parent.name} --out OTHER-DIR', "
                "or read them with the version named in a manifest.json's `commit` there"
            )
        problems.append(
            f"{path.name} has schema {document['schema']!r}; this version reads {SCHEMA}"
        )
        return {}
    return document


def section(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A section of a configuration; empty where it is not there."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def read_lines(path: Path, schema: Schema, problems: list[str]) -> pl.DataFrame:
    """A JSON-lines log as a frame with the columns of `schema`; what a record lacks is null.

    A cut-off or broken line is left out and remarked on in `problems`.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        problems.append(f"events/{path.name} is missing")
        return pl.DataFrame(schema=schema)
    except OSError as error:
        problems.append(f"events/{path.name} cannot be read: {error.strerror}")
        return pl.DataFrame(schema=schema)
    if content.endswith(b"\n"):  # the fast way, for logs that are whole
        try:
            frame = pl.read_ndjson(content, schema=dict(schema))
        except pl.exceptions.PolarsError:
            pass
        else:
            if frame.height == content.count(b"\n") and frame["round"].null_count() == 0:
                return frame
    return _line_by_line(path, content, schema, problems)


def _plain(value: Any) -> Any:
    """An object inside a record as JSON text, like the fast way has it."""
    return json.dumps(value) if isinstance(value, dict) else value


def _line_by_line(path: Path, content: bytes, schema: Schema, problems: list[str]) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    broken: list[int] = []
    lines = content.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("round")) is not int:
                raise ValueError("not a record with a round")
        except ValueError:
            broken.append(number)
        else:
            rows.append({name: _plain(record.get(name)) for name in schema})
    if broken == [len(lines)] and not content.endswith(b"\n"):
        problems.append(f"events/{path.name}: last line (line {len(lines)}) is cut off")
    elif broken:
        shown = ", ".join(map(str, broken[:5])) + (", ..." if len(broken) > 5 else "")
        problems.append(f"events/{path.name}: {len(broken)} broken lines left out ({shown})")
    return pl.DataFrame(rows, schema=dict(schema), strict=False, orient="row")


def summed_layer_loss(transfers: pl.DataFrame) -> pl.DataFrame:
    """Per run, leg and layer: `missing`, the summed shares, and `transfers`, how many.

    `transfers` has `run_key`, `arm`, `leg` and `tensor_loss`, the share of each layer's elements
    that is missing, in the order of the layers; null where it was not logged.
    """
    known = transfers.filter(pl.col("tensor_loss").list.len() > 0)
    return (
        known.select(
            *_LAYER_LABELS,
            pl.int_ranges(1, pl.col("tensor_loss").list.len() + 1).alias("layer"),
            "tensor_loss",
        )
        .explode("layer", "tensor_loss")
        .group_by(*_LAYER_LABELS, "layer")
        .agg(pl.col("tensor_loss").sum().alias("missing"), pl.len().alias("transfers"))
        .select(pl.col(name).cast(kind) for name, kind in _LAYER_LOSS.items())
    )


def mean_layer_loss(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Per run, leg and layer the mean share that was missing, from the sums of several logs."""
    return (
        pl.concat([pl.DataFrame(schema=_LAYER_LOSS), *parts])
        .group_by(*_LAYER_LABELS, "layer")
        .agg(pl.col("missing").sum() / pl.col("transfers").sum(), pl.col("transfers").sum())
        .select(*_LAYER_LOSS)
        .sort("run_key", "leg", "layer")
    )
