"""The types of Arrow and of PostgreSQL, and which values of one fit a column of the other.

A column is staged in a type whose binary form is known (`WIRES`). If the column of the table has
another type, the statement that moves the rows casts it. Types are listed that are known to
keep every value, or whose values are checked in the task; all others are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.postgresql.catalog import TableColumn
from krishiv_spark.postgresql.copy_encoding import WIRES, Wire
from krishiv_spark.postgresql.names import quote
from krishiv_spark.postgresql.options import FORMAT

__all__ = [
    "WIRE_OF",
    "StagedColumn",
    "UnfitValue",
    "arrow_type",
    "column_type",
    "convert_column",
    "fit_column",
    "fit_new_column",
    "moved_column",
    "to_stored",
]


@dataclass(frozen=True)
class StagedColumn:
    """A column of rows, and how it reaches the table.

    Attributes:
        source: Its name in the rows.
        target: Its name in the table.
        wire: Name of the type in which it is staged.
        is_array: True for an array of that type.
        cast: The type that it is cast to when it is moved; None if it needs no cast.
        fraction: Number of fractional digits of the seconds that the table keeps.
        text: The built-in type of a column that limits texts; None for others.
        longest: Most characters of a text; of ``name``, most bytes. -1 without a limit.
        fingerprint: `TableColumn.fingerprint` of the column that it was made for.
        is_absent: True for a column that the staging table does not have: its values are null.
    """

    source: str
    target: str
    wire: str
    is_array: bool
    cast: str | None = None
    fraction: int = 6
    text: str | None = None
    longest: int = -1
    fingerprint: str = ""
    is_absent: bool = False

    @property
    def declaration(self) -> str:
        """The column in the statement that creates the staging table."""
        return f"{quote(self.target)} {self._staged_type}"

    @property
    def _staged_type(self) -> str:
        return f"{self.wire}{'[]' if self.is_array else ''}"

    @property
    def value_type(self) -> str:
        """The type of `value`."""
        return self._staged_type if self.cast is None else self.cast

    @property
    def value(self) -> str:
        """The value in the statement that moves the rows."""
        if self.is_absent:
            return f"NULL::{self.value_type}"
        return quote(self.target) if self.cast is None else f"{quote(self.target)}::{self.cast}"

    @property
    def known_wire(self) -> tuple[Wire, bool]:
        """The encoder, and whether it encodes the elements of arrays."""
        return WIRES[self.wire], self.is_array


def column_type(field: pa.Field) -> str:
    """Return the type of a new column.

    Raises:
        SchemaError: If PostgreSQL has no type for it.
    """
    kind, is_array = _element_of(field.type)
    if pa.types.is_decimal(kind):
        name = f"numeric({kind.precision},{kind.scale})"
    else:
        found = next((name for test, name in _NEW if test(kind)), None)
        if found is None:
            raise SchemaError(_describe_unfit(field))
        name = found
    return f"{name}[]" if is_array else name


def arrow_type(column: TableColumn) -> pa.DataType:
    """Return the Arrow type of a column whose type may be widened; null for the others."""
    if column.is_array or column.is_generated:
        return pa.null()
    if column.base == "numeric" and column.limit >= 0:
        if column.type != "numeric":  # a domain, which a change of the type would remove
            return pa.null()
        scale = _scale_of(column)
        most = min((column.limit - 4) >> 16, 38)
        return pa.decimal128(most, scale) if 0 <= scale <= most else pa.null()
    wire = WIRES.get(column.base)
    return wire.arrow if wire is not None and column.shown == column.base else pa.null()


def to_stored(rows: pa.Schema) -> pa.Schema:
    """Return the columns of rows with the types of new columns: PostgreSQL has no tinyint."""
    fields = (f.with_type(pa.int16()) if pa.types.is_int8(f.type) else f for f in rows)
    return pa.schema(list(fields))


def fit_column(
    field: pa.Field, column: TableColumn, *, takes_numbers: bool = False
) -> StagedColumn:
    """Return how a column of rows is stored in a column of a table.

    Args:
        field: The column of the rows.
        column: The column of the table.
        takes_numbers: True if texts for a ``numeric`` are known to be numbers.

    Raises:
        SchemaError: If not all of its values can be stored unchanged.
    """
    kind, is_array = _element_of(field.type)
    if _is_nested(kind):
        raise SchemaError(_describe_unfit(field))
    made = _fit_kind(kind, column) if is_array == column.is_array else None
    if takes_numbers and made is None and _is_text(kind) and column.base == "numeric":
        made = ("text", True) if is_array == column.is_array and column.kind != "d" else None
    if made is None:
        raise SchemaError(_describe_misfit(field, column))
    wire, needs_cast = made
    is_limited = _is_text(kind) and column.base in _TEXTS and column.base != "text"
    return StagedColumn(
        field.name,
        column.name,
        wire,
        is_array,
        cast=column.type if needs_cast else None,
        fraction=_fraction_of(column),
        text=column.base if is_limited else None,
        longest=_longest_of(column) if is_limited else -1,
        fingerprint=column.fingerprint,
    )


def fit_new_column(field: pa.Field) -> StagedColumn:
    """Return how a column of rows is stored in the new column that a table would get.

    Raises:
        SchemaError: If PostgreSQL has no type for it.
    """
    shown, (kind, is_array) = column_type(field), _element_of(field.type)
    base = shown.removesuffix("[]").partition("(")[0]
    limit = ((kind.precision << 16) | kind.scale) + 4 if pa.types.is_decimal(kind) else -1
    return fit_column(field, TableColumn(field.name, shown, shown, base, is_array, limit))


def moved_column(staged: TableColumn, column: TableColumn, fingerprint: str) -> StagedColumn:
    """Return how a column of a staging table reaches a column of the table.

    Args:
        staged: The column of the staging table, which `fit_column` has chosen.
        column: The column of the table.
        fingerprint: That of the column for which the rows were staged.
    """
    is_cast_text = staged.base == "text" and column.base not in _TEXTS
    is_cast_array = staged.is_array and staged.base != column.base
    cast = column.type if is_cast_text or is_cast_array else None
    wire = WIRE_OF.get(staged.base, "text")
    return StagedColumn(
        column.name, column.name, wire, staged.is_array, cast, fingerprint=fingerprint
    )


def _scale_of(column: TableColumn) -> int:
    """Return the scale of a numeric with limits: 11 bits with a sign."""
    return (((column.limit - 4) & 0x7FF) ^ 1024) - 1024


def _fraction_of(column: TableColumn) -> int:
    """Return the digits of a second that a column of times keeps; 6 for other columns."""
    digits = column.limit & 0xFFFF if column.base == "interval" else column.limit
    is_time = column.base in _TIMES and column.limit >= 0
    return digits if is_time and digits <= 6 else 6  # noqa: PLR2004  microseconds


def _longest_of(column: TableColumn) -> int:
    if column.base == "name":
        return _NAME_BYTES
    return column.limit - 4 if column.limit >= 0 else -1


def _keeps_seconds(column: TableColumn) -> bool:
    """Return False for a column such as ``interval day``, which cuts off what is smaller."""
    return column.base != "interval" or column.limit < 0 or bool(column.limit >> 16 & _SECONDS)


def _takes_text(column: TableColumn) -> bool:
    """Return True for types that keep a text's value, or refuse it."""
    if column.base == "bit varying":
        return column.limit < 0
    if column.base:
        return column.base in _TEXTS | _TEXT_FORMS
    # An enum, or a type of an extension, which alone knows what its texts mean.
    return column.kind in {"e", "b"}


def _fit_kind(kind: pa.DataType, column: TableColumn) -> tuple[str, bool] | None:
    """Return the type in which values are staged, and whether they are cast; None if unfit."""
    base = column.base
    if pa.types.is_null(kind):
        return "text", True
    if column.kind == "d":  # a domain over a domain, or an array of one: casts cut off silently
        return None
    if _is_text(kind):
        return ("text", base not in _TEXTS) if _takes_text(column) else None
    if base == "numeric":
        return _fit_numeric(kind, column)
    is_fit = any(base in names and test(kind) for names, test in _FITS) and _keeps_seconds(column)
    return (WIRE_OF[base], False) if is_fit else None


def _fit_numeric(kind: pa.DataType, column: TableColumn) -> tuple[str, bool] | None:
    is_whole = pa.types.is_integer(kind)
    if not is_whole and not pa.types.is_decimal(kind):
        return None
    digits = 0 if is_whole else kind.scale
    if column.limit >= 0 and _scale_of(column) < digits:
        return None
    return ("bigint", column.is_array) if is_whole else ("text", True)


def _element_of(kind: pa.DataType) -> tuple[pa.DataType, bool]:
    is_array = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return (kind.value_type, True) if is_array else (kind, False)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_local_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is None)


def _is_exact_in_double(kind: pa.DataType) -> bool:
    whole = pa.types.is_integer(kind) and kind.bit_width <= 32  # noqa: PLR2004
    return bool(whole or pa.types.is_floating(kind))


def _is_exact_in_real(kind: pa.DataType) -> bool:
    whole = pa.types.is_integer(kind) and kind.bit_width <= 16  # noqa: PLR2004
    return bool(whole or pa.types.is_float32(kind))


_Test = Callable[[pa.DataType], bool]

_NEW: tuple[tuple[_Test, str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: pa.types.is_int8(kind) or pa.types.is_int16(kind), "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (_is_text, "text"),
    (pa.types.is_null, "text"),
    (_is_bytes, "bytea"),
    (pa.types.is_date32, "date"),
    (_is_instant, "timestamp with time zone"),
    (_is_local_time, "timestamp without time zone"),
    (pa.types.is_time, "time without time zone"),
    (pa.types.is_duration, "interval"),
)
"""The types of new columns."""

_WIRES_OF_TIMES = frozenset({"timestamp", "timestamptz", "time", "interval"})

WIRE_OF = {
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
    "time without time zone": "time",
    **{
        name: name
        for name in ("boolean", "smallint", "integer", "bigint", "real", "double precision")
    },
    **{name: name for name in ("bytea", "date", "interval")},
}
"""The names of `WIRES` by the names in the catalog."""

_FITS: tuple[tuple[tuple[str, ...], _Test], ...] = (
    (("boolean",), pa.types.is_boolean),
    # Each value is compared with the limits of the smaller type, in the task.
    (("smallint", "integer", "bigint"), pa.types.is_integer),
    (("real",), _is_exact_in_real),
    (("double precision",), _is_exact_in_double),
    (("bytea",), _is_bytes),
    (("date",), pa.types.is_date32),
    (("timestamp with time zone",), _is_instant),
    (("timestamp without time zone",), _is_local_time),
    (("time without time zone",), pa.types.is_time),
    (("interval",), pa.types.is_duration),
)
"""Columns of a table, by their types, and the values that they take."""

_TEXTS = frozenset({"text", "character varying", "character", "name"})
_TEXT_FORMS = frozenset(
    {
        *("uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8", "oid"),
        *("tsvector", "tsquery", "int4range", "int8range", "numrange"),
        *("int4multirange", "int8multirange", "nummultirange"),
    }
)
"""Built-in types whose text form means one value, which they keep or refuse.

Not among them: types that round or cut off what a text has (``money``, ``bit``, ``"char"``,
points), and those where its meaning depends on settings (dates, times).
"""

_TIMES = frozenset(
    {
        "timestamp with time zone",
        "timestamp without time zone",
        "time without time zone",
        "interval",
    }
)
_SECONDS = 1 << 12
"""The bit of seconds in the fields of an interval's type."""

_NAME_BYTES = 63


# --- values, in the task

_LOW_DAY, _HIGH_DAY = -2_440_588, 2_145_031_948 + 10_957
_LOW_MICROS = -210_866_803_200_000_000


def convert_column(array: pa.Array, column: StagedColumn) -> pa.Array:
    """Return the values of a column in the type in which they are staged. Executor.

    Raises:
        UnfitValue: If one cannot be stored unchanged.
    """
    if column.is_array:
        flat = array.flatten()
        converted = _convert(flat, column)
        counts = pc.list_value_length(array).fill_null(0)
        offsets = pa.concat_arrays(
            [pa.array([0], pa.int64()), pc.cumulative_sum(counts.cast("int64"))]
        )
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(offsets.cast(pa.int32()), converted, mask=mask)
    return _convert(array, column)


class UnfitValue(ValueError):  # noqa: N818  a reason, which the task completes
    """A value does not fit its column.

    Attributes:
        row: Its index among the values; -1 if it is not known.
    """

    def __init__(self, reason: str, row: int = -1) -> None:
        super().__init__(reason)
        self.row = row


def _convert(array: pa.Array, column: StagedColumn) -> pa.Array:
    wire = WIRES[column.wire]
    try:
        found = array.cast(wire.arrow)
    except pa.ArrowException as error:
        raise UnfitValue(str(error)) from error
    if column.wire == "text":
        _refuse(pc.match_substring(found, "\0"), "PostgreSQL's texts cannot contain U+0000")
        _check_text(found, column)
    elif column.wire == "date":
        days = found.cast(pa.int32())
        strange = pc.or_(pc.less(days, _LOW_DAY), pc.greater(days, _HIGH_DAY))
        _refuse(strange, "PostgreSQL's dates begin in 4714 BC and end in 5874897")
    elif column.wire.startswith("timestamp"):
        micros = found.cast(pa.int64())
        _refuse(pc.less(micros, _LOW_MICROS), "PostgreSQL's times begin in 4714 BC")
    if column.fraction < 6 and column.wire in _WIRES_OF_TIMES:  # noqa: PLR2004  microseconds
        _check_fraction(found.cast(pa.int64()), column.fraction)
    return found


def _check_fraction(micros: pa.Array, digits: int) -> None:
    step = 10 ** (6 - digits)
    rest = pc.subtract(micros, pc.multiply(pc.divide(micros, step), step))
    _refuse(
        pc.not_equal(rest, 0),
        f"the column keeps {digits} digits of a second, and the value has more: round it in the "
        "query, as with date_trunc, or change the column's type",
    )


def _check_text(texts: pa.Array, column: StagedColumn) -> None:
    """Refuse texts that the column would cut off without an error."""
    if column.text == "name":
        _refuse(
            pc.greater(pc.binary_length(texts), column.longest),
            f"the type name keeps {column.longest} bytes, and the text is longer: change the "
            "column's type to text",
        )
    elif column.longest >= 0:
        _refuse(
            pc.greater(pc.utf8_length(texts), column.longest),
            f"the column keeps {column.longest} characters, and the text has more: cut it in the "
            "query, as with left, or change the column's type to text",
        )
    if column.text == "character":
        _refuse(
            pc.ends_with(texts, " "),
            "a column of type char drops blanks at the end of a text: use rtrim in the query, or "
            "change the column's type to text",
        )


def _refuse(flags: pa.Array, reason: str) -> None:
    if pc.any(flags, min_count=0).as_py():
        raise UnfitValue(reason, pc.index(flags, pa.scalar(value=True)).as_py())


# --- messages


def _describe_unfit(field: pa.Field) -> str:
    return (
        f"{FORMAT}: column {field.name!r} is {field.type}, for which PostgreSQL has no column: "
        f"write JSON, as with to_json({field.name}), which a jsonb column takes, or write its "
        "fields as columns"
    )


def _describe_misfit(field: pa.Field, column: TableColumn) -> str:
    return (
        f"{FORMAT}: column {field.name!r} is {field.type}, and the table's column is "
        f"{column.shown}, which cannot hold every such value unchanged: cast it in the query, or "
        "change the column's type"
    )
