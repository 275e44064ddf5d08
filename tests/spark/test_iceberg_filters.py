"""Filters on values that are in no file, compared with Iceberg-Java.

Type by operator by nesting: a column that older files lack (with a default of format version 3, and
without one), and one that a file lacks because its partition has the value. Every table has files
with the column beside those without, and null structs around it.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_reading import batch
from iceberg_tables import append_files, make_table, table_in
from java_iceberg import JavaTables
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)


class Kind(NamedTuple):
    """A type, and three values in ascending order; the middle one is the default.

    Attributes:
                type: Type of the column.
        values: Values for Arrow.
        partition: The same values, as PyIceberg writes them into a partition.
        literals: The same values in both notations; none if a notation has no literals of the type.
        default: The default in the table's metadata.
    """

    type: PrimitiveType
    values: tuple[Any, ...]
    partition: tuple[Any, ...]
    literals: tuple[Any, ...]
    default: Any


def _kind(kind: PrimitiveType, values: Any, *, literals: Any = None, partition: Any = None) -> Kind:
    shown = tuple(values if literals is None else literals)
    default = str(values[1]) if isinstance(values[1], Decimal) else values[1]
    return Kind(
        kind, tuple(values), tuple(partition or values), shown, shown[1] if literals else default
    )


_DAYS = [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]
_TIMES = [dt.time(0), dt.time(12, 30, 0, 1), dt.time(23, 59, 59, 999999)]
_LOCAL = [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 1, 1, 0, 0, 0, 123456)]  # noqa: DTZ001
_LOCAL.append(dt.datetime(2024, 1, 1, 0, 0, 0, 123457))  # noqa: DTZ001  of a column without a zone
_INSTANTS = [moment.replace(tzinfo=dt.timezone.utc) for moment in _LOCAL]
_UUIDS = [
    uuid.UUID(int=1),
    uuid.UUID("779c3e09-677c-4bbd-a479-3f349cb785e7"),
    uuid.UUID(int=2**127 - 1),
]
# Above, Iceberg-Java 1.12 orders UUIDs as signed numbers, and so against their bytes in files.


def _microseconds(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=moment.tzinfo)) // dt.timedelta(microseconds=1)


def _iso(values: Any) -> list[str]:
    return [value.isoformat() for value in values]


KINDS = {
    "b": Kind(BooleanType(), (False, True), (False, True), (False, True), default=True),
    "i": _kind(IntegerType(), [-(2**31), 34, 2**31 - 1]),
    "lg": _kind(LongType(), [-(2**63), 35, 2**63 - 1]),
    "f": _kind(FloatType(), [-1.5, 0.25, 1.5]),
    "d": _kind(DoubleType(), [-1.5, 0.25, 2.5]),
    "dec": _kind(DecimalType(9, 2), [Decimal("-1.25"), Decimal("1.25"), Decimal("7.00")]),
    "day": _kind(
        DateType(),
        _DAYS,
        literals=_iso(_DAYS),
        partition=[(day - dt.date(1970, 1, 1)).days for day in _DAYS],
    ),
    "ti": _kind(
        TimeType(),
        _TIMES,
        literals=_iso(_TIMES),
        partition=[_microseconds(dt.datetime.combine(dt.date(1970, 1, 1), one)) for one in _TIMES],
    ),
    "ts": _kind(
        TimestampType(), _LOCAL, literals=_iso(_LOCAL), partition=[*map(_microseconds, _LOCAL)]
    ),
    "tz": _kind(
        TimestamptzType(),
        _INSTANTS,
        literals=_iso(_INSTANTS),
        partition=[*map(_microseconds, _INSTANTS)],
    ),
    "st": _kind(StringType(), ["", "é", "\U0001f600"]),
    "u": _kind(
        UUIDType(), [one.bytes for one in _UUIDS], literals=[*map(str, _UUIDS)], partition=_UUIDS
    ),
    "bin": Kind(BinaryType(), (b"", b"\0\xff", b"\xff"), (b"", b"\0\xff", b"\xff"), (), "00ff"),
    "fix": Kind(
        FixedType(2),
        (b"\0\0", b"\0\xff", b"\xff\xff"),
        (b"\0\0", b"\0\xff", b"\xff\xff"),
        (),
        "00ff",
    ),
}


def _inside() -> list[tuple[str, PrimitiveType]]:
    return [(name, kind.type) for name, kind in KINDS.items()]


def _value(name: str, index: int | None) -> Any:
    kind = KINDS[name]
    return None if index is None else kind.values[min(index, len(kind.values) - 1)]


def _row(number: int, index: int | None) -> dict[str, Any]:
    values = {name: _value(name, index) for name in KINDS}
    return {"id": number, **values, "s": {"a": 1, **values, "in": {"a": 1, **values}}, "o": None}


def _arrow(schema: Schema) -> pa.Schema:
    """Return the schema with UUIDs as bytes, from which Arrow creates arrays."""
    made: pa.Schema = schema.as_arrow()

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(plain(field.type)) for field in kind])
        return pa.binary(16) if isinstance(kind, pa.UuidType) else kind

    return pa.schema([field.with_type(plain(field.type)) for field in made])


def _make_evolved(folder: Path, *, defaults: bool) -> str:
    """Create a table whose columns were added later, flat and in structs; return its metadata file.

    Rows 1 to 4 are in a file without these columns: 2 has null structs, 3 a null inner one. Rows
    11 to 14 are in a file with them: of each value, and of nulls. ``o`` is a struct that came later
    as a whole.
    """
    make_table(folder, pa.schema([("id", pa.int64()), ("s", _INNER)]))
    rows = [
        {"id": 1, "s": {"a": 1, "in": {"a": 1}}},
        {"id": 2, "s": None},
        {"id": 3, "s": {"a": 1, "in": None}},
        {"id": 4, "s": {"a": None, "in": {"a": None}}},
    ]
    append_files(folder, pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("s", _INNER)])))
    with table_in(folder).update_schema() as update:
        for path in ((), ("s",), ("s", "in")):
            for name, kind in _inside():
                update.add_column((*path, name), kind)
        update.add_column("o", StructType(NestedField(1, "a", IntegerType(), required=False)))
    with table_in(folder).update_schema() as update:
        for name, kind in _inside():
            update.add_column(("o", name), kind)
    later = [_row(11, 0), _row(12, 1), _row(13, 2), _row(14, None)]
    append_files(folder, pa.Table.from_pylist(later, _arrow(table_in(folder).schema())))
    location = Path(table_in(folder).metadata_location.removeprefix("file://"))
    if defaults:
        metadata = json.loads(location.read_text())
        metadata |= {"format-version": 3, "next-row-id": 8}
        _set_defaults(metadata["schemas"][-1]["fields"])
        location.write_text(json.dumps(metadata))
    return str(location)


_INNER = pa.struct([("a", pa.int32()), ("in", pa.struct([("a", pa.int32())]))])


def _set_defaults(fields: list[dict[str, Any]]) -> None:
    for field in fields:
        if field["name"] in KINDS:
            default = KINDS[field["name"]].default
            field |= {"initial-default": default, "write-default": default}
        elif isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            _set_defaults(field["type"]["fields"])


def _make_partitioned(folder: Path, *, defaults: bool) -> str:
    """Create a table of files whose columns are in partitions alone, as by ``add_files``.

    Files 1 to 4 have each value, and null; file 5 has the columns, and the middle values.
    """
    fields = [NestedField(1, "id", LongType(), required=False)]
    fields += [
        NestedField(number, name, kind, required=False)
        for number, (name, kind) in enumerate(_inside(), 2)
    ]
    parts = [
        PartitionField(
            field.field_id, 1000 + field.field_id, IdentityTransform(), f"{field.name}_p"
        )
        for field in fields[1:]
    ]
    make_table(folder, Schema(*fields), partition_spec=PartitionSpec(*parts))
    table = table_in(folder)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for number, index in ((1, 0), (2, 1), (3, 2), (4, None)):
            update.append_data_file(_added(table, number, index, whole=False))
        update.append_data_file(_added(table, 5, 1, whole=True))
    location = Path(table_in(folder).metadata_location.removeprefix("file://"))
    if defaults:
        metadata = json.loads(location.read_text())
        metadata |= {"format-version": 3, "next-row-id": 5}
        _set_defaults(metadata["schemas"][-1]["fields"])
        location.write_text(json.dumps(metadata))
    return str(location)


def _added(table: Any, number: int, index: int | None, *, whole: bool) -> DataFile:
    schema = _arrow(table.schema())
    row = {"id": number, **{name: _value(name, index) for name in KINDS}}
    rows = pa.Table.from_pylist([row], schema)
    path = Path(f"{table.location()}/data/{number}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows if whole else rows.select(["id"]), path)
    partitions = (kind.partition for kind in KINDS.values())
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(path),
        file_format=FileFormat.PARQUET,
        partition=Record(
            *(None if index is None else of[min(index, len(of) - 1)] for of in partitions)
        ),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
    )
    file.spec_id = table.spec().spec_id
    return file


def _shown(literal: Any) -> str:
    if isinstance(literal, bool):
        return str(literal).lower()
    return f"'{literal}'" if isinstance(literal, str) else str(literal)


def _java_literal(literal: Any) -> Any:
    return str(literal) if isinstance(literal, Decimal) else literal


def _conditions(name: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Yield operators with their literals."""
    kind = KINDS[name]
    found: list[tuple[str, tuple[Any, ...]]] = [("is null", ()), ("is not null", ())]
    if not kind.literals:
        return found
    if isinstance(kind.type, BooleanType):
        return [*found, *((op, (one,)) for op in ("=", "!=") for one in kind.literals)]
    found += [(op, (kind.literals[1],)) for op in ("=", "!=", "<", "<=", ">", ">=")]
    return [*found, ("in", kind.literals[1:]), ("not in", kind.literals[1:])]


def _text(column: str, operator: str, literals: tuple[Any, ...]) -> str:
    if not literals:
        return f"{column} {operator}"
    values = ", ".join(map(_shown, literals))
    return (
        f"{column} {operator} ({values})" if "in" in operator else f"{column} {operator} {values}"
    )


_ID = pa.schema([("id", pa.int64())])


def _ids(folder: Path, text: str) -> Any:
    try:
        return sorted(batch(folder, _ID, rowFilter=text)["id"].to_pylist())
    except Exception as error:  # noqa: BLE001  shown beside the right answer
        return f"{type(error).__name__}: {error}"


def _differences(java: JavaTables, folder: Path, location: str, columns: list[str]) -> list[Any]:
    """Return the filters for which Java has another result."""
    table, wrong = java.table(location), []
    assert _ids(folder, "id is not null") == java.numbers(table)
    for column in columns:
        for operator, literals in _conditions(column.rpartition(".")[2]):
            text = _text(column, operator, literals)
            one = java.condition(column, operator, *map(_java_literal, literals))
            few = java.condition("id", "<", 3)
            asked = {text: one}
            if operator == "=":
                there = java.condition(column, "is not null")
                asked[f"{text} or id < 3"] = java.any_of(one, few)
                asked[f"not ({text})"] = java.all_of(java.negate(one), there)
            for words, condition in asked.items():
                found, right = _ids(folder, words), java.numbers(table, condition)
                if found != right:
                    wrong.append((words, found, right))
    return wrong


@pytest.mark.parametrize(
    ("above", "defaults"),
    [
        ("", True),
        ("s.in.", True),
        pytest.param("s.", True, marks=pytest.mark.long),
        pytest.param("o.", True, marks=pytest.mark.long),
        pytest.param("s.", False, marks=pytest.mark.long),
    ],
)
def test_columns_that_older_files_lack_are_filtered_as_iceberg_java_does(
    tmp_path, java, above, defaults
):
    location = _make_evolved(tmp_path, defaults=defaults)
    columns = [f"{above}{name}" for name in KINDS]
    assert _differences(java, tmp_path, location, columns) == []


@pytest.mark.parametrize("defaults", [True, False])
def test_columns_that_only_partitions_have_are_filtered_as_iceberg_java_does(
    tmp_path, java, monkeypatch, defaults
):
    monkeypatch.delitem(KINDS, "fix")  # PyIceberg writes partitions of it that Java cannot read
    location = _make_partitioned(tmp_path, defaults=defaults)
    assert _differences(java, tmp_path, location, list(KINDS)) == []
