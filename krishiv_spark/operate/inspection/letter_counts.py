"""Dead letters of a target, counted by reason. The process of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.formats import format_of
from krishiv_spark.sinks.fanout.dead_letters import group_reason
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["ReasonSummary", "count_letters", "locate_letters"]

_RECORDED = re.compile(r"dead_letters: krishiv-parquet (?P<path>.+?)( \(Parquet table \w+\))?(;|$)")
_GIVE = "give its format and options, such as --format kafka -o kafka.bootstrap.servers=… -o "


@dataclass
class ReasonSummary:
    """The dead letters with one reason.

    Attributes:
        name: The rule, or the reason without numbers.
        count: Number of dead letters.
        reason: The reason of one of them.
        position: The position of the same one: topic, partition and offset, or "not known".
        values: The values of the first ones.
    """

    name: str
    count: int = 0
    reason: str = ""
    position: str = "not known"
    values: list[bytes] = field(default_factory=list)


def locate_letters(checkpoint: SparkCheckpoint) -> str:
    """Return the path of the folder to which a query writes its dead letters.

    Raises:
        OptionError: If the checkpoint records no dead letters, or those are not in a folder.
        CheckpointMismatch, StorageError: As `SparkCheckpoint.recorded_target`.
    """
    recorded = checkpoint.recorded_target()
    name = "" if recorded is None else recorded.name
    if "dead_letters: " not in name:
        raise OptionError(f"the query of {checkpoint.location} has written no dead letters")
    match = _RECORDED.search(name)
    if match is None:
        raise OptionError(f"the query writes to {name}: {_GIVE}subscribe=…")
    return match["path"]


def count_letters(name: str, given: Mapping[str, str], *, samples: int = 0) -> list[ReasonSummary]:
    """Read all dead letters of a target; the greatest number comes first.

    Args:
        name: Format of the target without ``krishiv-``.
        given: Options of the format's source.
        samples: Maximum number of values to keep of each reason.

    Raises:
        OptionError: If the format is no source, an option is wrong, or the rows are no dead
            letters.
        KrishivError: If the target cannot be read.
    """
    found: dict[str, ReasonSummary] = {}
    for batch in _read(name, given):
        for row in _letters(batch):
            reason = row["reason"] or ""
            key = group_reason(reason, row["rule"])
            summary = found.setdefault(key, ReasonSummary(key))
            summary.count += 1
            summary.reason = summary.reason or reason
            if row["offset"] is not None and summary.position == "not known":
                summary.position = (
                    f"topic {row['topic']}, partition {row['partition']}, offset {row['offset']}"
                )
            if len(summary.values) < samples:
                summary.values.append(row["value"] or b"")
    return sorted(found.values(), key=lambda each: (-each.count, each.name))


def _read(name: str, given: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a source, as a batch read of Spark's would."""
    from krishiv_spark.arrow.schemas import plain_schema
    from krishiv_spark.lifecycle.read import BatchRead, RowSchema

    source = format_of(name)
    kind = source.reader_type
    if kind is None:
        raise OptionError(f"{source.format_name} cannot be read")
    options = kind.options_type.parse(given, source.format_name)
    columns = plain_schema(kind(options, None, streaming=False).infer_schema())
    row_schema = RowSchema.from_reader(columns, options)
    read = BatchRead(kind(options, row_schema.columns, streaming=False), row_schema)
    for partition in read.partitions():
        yield from read.read(partition)


_WANTED = ("value", "reason", "rule", "topic", "partition", "offset")


def _letters(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    names = set(batch.schema.names)
    if {"value", "reason"} <= names:
        kept = [name for name in _WANTED if name in names]
        for row in batch.select(kept).to_pylist():
            yield {name: row.get(name) for name in _WANTED}
    elif {"value", "headers"} <= names:
        for row in batch.select(["value", "headers"]).to_pylist():
            headers = {each["key"]: _to_text(each["value"]) for each in row["headers"] or ()}
            yield {**{name: headers.get(name) for name in _WANTED}, "value": row["value"]}
    else:
        raise OptionError(
            f"the rows are no dead letters: they have the columns {', '.join(batch.schema.names)}"
        )


def _to_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
