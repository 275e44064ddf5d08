"""The origins of changes: their time and their position in the log of the database. Executor.

A position is a text that tells its kind, and sorts as the changes of one row do: ``lsn:`` and
PostgreSQL's position, or ``binlog:`` with file, position and row of MySQL and MariaDB. The GTID of
the transaction may follow after a ``@``: it is the same on each server, and has no part in the
order. The position of a row that a snapshot has read begins with ``snapshot:``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.shapes import DELETED, Form

__all__ = [
    "BINLOG",
    "GTID_MARK",
    "OFFSET",
    "SNAPSHOT",
    "TIME_TYPE",
    "Origins",
    "filter_origins",
    "format_lsn",
    "format_number",
    "gather_origins",
    "list_origin_fields",
    "mark_reads",
    "read_origins",
    "read_positions",
]

SNAPSHOT, OFFSET = "snapshot:", "offset:"
"""The beginnings of the position of a row that a snapshot has read, and of a position that is the
offset of a record in Kafka."""

GTID_MARK = r"@.*$"
"""The GTID at the end of a position, as a regular expression."""

BINLOG = r"^binlog:(?P<file>[0-9]+):.*@(?P<gtid>(?P<source>.*[^0-9])(?P<number>[0-9]{1,18}))$"
"""A position of a change with its GTID, as a regular expression. A server numbers its transactions
in the order of its log; the source is the server, with domain or tag."""

TIME_TYPE = pa.timestamp("us", tz="UTC")

_FILE, _POS, _ROW, _GTID = "file", "pos", "row", "gtid"
_NUMBERS = ("lsn", _POS, _ROW, "ts_us", "ts_ns", "ts_ms")
_FIELDS_OF_SOURCE = (
    *(pa.field(name, pa.int64()) for name in _NUMBERS),
    pa.field(_FILE, pa.string()),
    pa.field(_GTID, pa.string()),
)
"""The fields of an envelope's ``source`` from which origins are read."""

_FIELDS_OF_TIMES = tuple(pa.field(name, pa.int64()) for name in ("lsn", "ts_us", "ts_ns", "ts_ms"))
"""Those of them that are read for mirrors."""

_POSITIONS_OF_ROWS = ("__lsn", "__source_lsn")
_FIELDS_OF_ROWS = tuple(
    pa.field(name, pa.int64())
    for name in (*_POSITIONS_OF_ROWS, "__source_ts_us", "__source_ts_ns", "__source_ts_ms")
)
"""Fields that ``ExtractNewRecordState`` adds to rows alone if ``add.fields`` names them."""

_NULL = pa.scalar(None, pa.int64())
_DIGITS, _FILE_DIGITS = 20, 10
_NS, _MS = 1_000, 1_000


@dataclass(frozen=True)
class Origins:
    """The origins of some records.

    Attributes:
        rows: The numbers of the records in their batch.
        places: Their positions; null for a record without one, and if they were not read.
        times: The times of their changes in the database, microseconds in UTC; null for none.
        reads: Whether a snapshot has read the row.
    """

    rows: NDArray[np.int64]
    places: pa.Array
    times: pa.Array
    reads: NDArray[np.bool_]


def list_origin_fields(form: Form, *, with_places: bool) -> Sequence[pa.Field]:
    """Return the fields of ``source``, or of rows alone, from which origins are read.

    Args:
        form: The form of the records.
        with_places: Those of positions as texts, too.
    """
    if form == "row":
        return _FIELDS_OF_ROWS
    return _FIELDS_OF_SOURCE if with_places else _FIELDS_OF_TIMES


def read_origins(
    form: Form,
    objects: pa.StructArray,
    reads: NDArray[np.bool_],
    rows: NDArray[np.int64],
    *,
    with_places: bool,
) -> Origins:
    """Return the origins of parsed records.

    Args:
        form: The form of the records.
        objects: The records, with the fields of `list_origin_fields`.
        reads: Whether a snapshot has read the row.
        rows: The numbers of the records.
        with_places: Read the positions.
    """
    found = objects.field("source") if form == "envelope" else objects
    names = {each.name for each in found.type}
    fields = [
        each.name
        for each in list_origin_fields(form, with_places=with_places)
        if each.name in names
    ]
    columns = {name.removeprefix("__source_"): found.field(name) for name in fields}
    if not with_places:
        return Origins(rows, pa.nulls(len(rows), pa.string()), _find_times(columns), reads)
    position = read_positions(objects) if form == "row" else columns["lsn"]
    places = pc.binary_join_element_wise("lsn:", format_number(position), "")
    if _FILE in columns:
        places = pc.coalesce(places, _format_binlog(columns))
    return Origins(rows, mark_reads(places, reads), _find_times(columns), reads)


def read_positions(rows: pa.StructArray) -> pa.Array:
    """Return the positions of rows alone in PostgreSQL's log; null for none.

    Rows without the flag of deletes have none: a delete of such a row is only a tombstone, whose
    place among them would not be known.

    Args:
        rows: The rows, with the fields of `list_origin_fields`.
    """
    kinds = {each.name: each.type for each in rows.type}
    names = [each for each in _POSITIONS_OF_ROWS if pa.types.is_integer(kinds.get(each, pa.null()))]
    found = [rows.field(each).cast(pa.int64()) for each in names]
    positions = pc.coalesce(*found, pa.nulls(len(rows), pa.int64()))
    return pc.if_else(rows.field(DELETED).is_valid(), positions, _NULL)


def format_number(values: pa.Array, digits: int = _DIGITS) -> pa.Array:
    """Return numbers, which are not negative, as texts that sort as they do."""
    return pc.utf8_lpad(values.cast(pa.string()), digits, "0")


def format_lsn(position: int) -> str:
    """Return the text of a position in PostgreSQL's log."""
    return f"lsn:{position:0{_DIGITS}}"


def mark_reads(places: pa.Array, reads: NDArray[np.bool_]) -> pa.Array:
    """Return positions with a mark of those whose rows a snapshot has read."""
    marks = pc.if_else(pa.array(reads), SNAPSHOT, "")
    return pc.binary_join_element_wise(marks, places, "")


def _format_binlog(columns: dict[str, pa.Array]) -> pa.Array:
    """Return positions in a binlog, whose files are numbered: ``mysql-bin.000003``."""
    number = pc.struct_field(pc.extract_regex(columns[_FILE], r"\.(?P<number>[0-9]+)$"), "number")
    parts = (
        pc.utf8_lpad(number, _FILE_DIGITS, "0"),
        format_number(columns[_POS]),
        format_number(pc.fill_null(columns[_ROW], 0), _FILE_DIGITS),
    )
    places = pc.binary_join_element_wise("binlog", *parts, ":")
    if _GTID not in columns:
        return places
    marks = pc.coalesce(pc.binary_join_element_wise("@", columns[_GTID], ""), "")
    return pc.binary_join_element_wise(places, marks, "")


def _find_times(columns: dict[str, pa.Array]) -> pa.Array:
    of_nanos = pc.divide(columns.get("ts_ns", _NULL), _NS)
    of_millis = pc.multiply(columns.get("ts_ms", _NULL), _MS)
    return pc.coalesce(columns.get("ts_us", _NULL), of_nanos, of_millis).cast(TIME_TYPE)


def gather_origins(pieces: Sequence[Origins], records: NDArray[np.int64]) -> Origins:
    """Return the origin of each of some records, in their order; null for one without."""
    count = int(records.max(initial=-1)) + 1
    spots = np.full(count, -1, np.int64)
    first = 0
    for piece in pieces:  # a record that was read again has the same origin
        own = piece.rows < count
        spots[piece.rows[own]] = first + np.flatnonzero(own)
        first += len(piece.rows)
    places = pa.concat_arrays([pa.array([], pa.string()), *(piece.places for piece in pieces)])
    times = pa.concat_arrays([pa.array([], TIME_TYPE), *(piece.times for piece in pieces)])
    reads = np.concatenate([np.empty(0, np.bool_), *(piece.reads for piece in pieces)])
    chosen = spots[records]
    taken = pa.array(np.maximum(chosen, 0), mask=chosen < 0)
    flags = np.zeros(len(records), np.bool_)
    flags[chosen >= 0] = reads[chosen[chosen >= 0]]
    return Origins(records, places.take(taken), times.take(taken), flags)


def filter_origins(origins: Origins, flags: NDArray[np.bool_]) -> Origins:
    """Return some of the origins."""
    mask = pa.array(flags)
    return Origins(
        origins.rows[flags],
        origins.places.filter(mask),
        origins.times.filter(mask),
        origins.reads[flags],
    )
