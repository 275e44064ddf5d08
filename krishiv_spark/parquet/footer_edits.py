"""Edits of footers for files that PyArrow would refuse, crash on, or read wrongly.

PyArrow refuses a whole file if it cannot represent one of its columns, ends the process when it
reads the statistics of an encrypted column, and computes some times of INT96 modulo 2^64. The pages
are right in all three cases. So the footer is changed in memory, and the file is opened with it:
without the columns that cannot be read, and with INT96 as its 12 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.parquet.thrift import I32, STRUCT, Field, Struct, decode, encode

__all__ = [
    "MAP_ENTRIES",
    "EditedFooter",
    "UnsupportedColumn",
    "int96_as_bytes",
    "parse_footer",
    "without_encrypted",
    "without_unsupported",
]

MAP_ENTRIES = "krishiv_spark.map_entries"
"""The name of the elements of a list that was a map with keys that are not declared as required."""

# Field ids and values of parquet.thrift.
_SCHEMA, _GROUPS, _KEY_VALUES, _ORDERS, _ENCRYPTION, _SIGNING_KEY = 2, 4, 5, 7, 8, 9  # FileMetaData
_TYPE, _LENGTH, _REPETITION, _NAME, _CHILDREN, _CONVERTED = 1, 2, 3, 4, 5, 6  # SchemaElement
_FIELD_ID, _LOGICAL = 9, 10  # likewise
_CHUNKS, _SORTING = 1, 4  # RowGroup
_CHUNK_DATA, _CHUNK_CRYPTO = 3, 8  # ColumnChunk
_KEY = 1  # KeyValue
_INT96, _FIXED_LENGTH = 3, 7  # Type
_OPTIONAL, _REPEATED = 1, 2  # FieldRepetitionType
_MAP, _MAP_KEY_VALUE, _LIST = 1, 2, 3  # ConvertedType
_LOGICAL_MAP, _LOGICAL_LIST = 2, 3  # LogicalType

_INT96_BYTES = 12
_ENTRY_FIELDS = 2
_NO_FIELD = Field(0, None)

_DAMAGE = (ValueError, LookupError, TypeError, AttributeError)
"""Errors of decoding bytes that are not a struct of Thrift, or not that of a Parquet file."""


class UnsupportedColumn(NamedTuple):
    """A column that cannot be read.

    Attributes:
        reason: Reason for messages.
        field_id: Its id in the file; None if it has none.
    """

    reason: str
    field_id: int | None


class EditedFooter(NamedTuple):
    """A footer that PyArrow can use.

    Attributes:
        footer: Its bytes.
        unsupported: The columns that were removed, by name.
    """

    footer: bytes
    unsupported: dict[str, UnsupportedColumn]


class _TopColumn(NamedTuple):
    """A top-level column: its elements in the schema, and the numbers of its leaves."""

    name: str
    elements: list[Struct]
    leaves: range

    def to_unsupported(self, reason: str) -> UnsupportedColumn:
        return UnsupportedColumn(reason, self.elements[0].get(_FIELD_ID, _NO_FIELD).value)


def parse_footer(footer: bytes) -> pq.FileMetaData:
    """Return PyArrow's metadata of a footer.

    Raises:
        pa.ArrowException, OSError: If PyArrow refuses it.
    """
    # A file that consists only of the footer: PyArrow reads nothing else when it opens one.
    whole = b"PAR1%b%bPAR1" % (footer, len(footer).to_bytes(4, "little"))
    return pq.ParquetFile(pa.BufferReader(whole)).metadata


def int96_as_bytes(footer: bytes) -> bytes:
    """Return a footer that declares INT96 columns as 12 bytes: the pages of both are the same.

    Only the schema is decoded. The row groups repeat the type of a column, which is not used.

    Raises:
        pa.ArrowInvalid: If it is damaged.
    """
    with _damage_errors():
        fields, end = decode(footer, last=_SCHEMA)
        if max(fields) != _SCHEMA:  # another order than that of every known writer
            fields, end = decode(footer)
        for element in fields[_SCHEMA].value.values:
            if element.get(_TYPE, _NO_FIELD).value == _INT96:
                element[_TYPE] = Field(I32, _FIXED_LENGTH)
                element[_LENGTH] = Field(I32, _INT96_BYTES)
        edited = encode(fields)
        return edited if max(fields) != _SCHEMA else edited[:-1] + footer[end:]


def without_encrypted(footer: bytes) -> EditedFooter | None:
    """Return a plain footer without its encrypted columns; None if it has none.

    Raises:
        pa.ArrowInvalid: If it is damaged.
    """
    with _damage_errors():
        tree, _ = decode(footer)
        groups = [group[_CHUNKS].value.values for group in tree[_GROUPS].value.values]
        secret = {
            leaf
            for chunks in groups
            for leaf, chunk in enumerate(chunks)
            if _CHUNK_CRYPTO in chunk or _CHUNK_DATA not in chunk
        }
        columns = [*_columns(tree)]
        unsupported = {
            column.name: column.to_unsupported("it is encrypted")
            for column in columns
            if not secret.isdisjoint(column.leaves)
        }
        if not unsupported:
            return None
        for field in (_ENCRYPTION, _SIGNING_KEY):
            tree.pop(field, None)
        return EditedFooter(encode(_without(tree, columns, unsupported)), unsupported)


@contextmanager
def _damage_errors() -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise pa.ArrowInvalid(f"its footer is damaged: {error!r}") from error


def without_unsupported(footer: bytes) -> EditedFooter | None:
    """Return a footer without the columns that PyArrow cannot represent; None if it stays refused.

    Maps whose keys are not declared as required, as Presto wrote them, become lists: see
    `MAP_ENTRIES`. The Arrow schema that some writers add is removed if PyArrow cannot use it.

    Args:
        footer: A footer that PyArrow refuses.
    """
    try:
        tree, _ = decode(footer)
        columns = [*_columns(tree)]
        for column in columns:
            _change_maps_to_lists(column.elements)
        if _find_refusal(tree) is None:
            return EditedFooter(encode(tree), {})
        refusals = {
            column.name: _find_refusal(_with_schema_of(tree, [column])) for column in columns
        }
        unsupported = {
            column.name: column.to_unsupported(refusal)
            for column in columns
            if (refusal := refusals[column.name]) is not None
        }
        edited = _without(tree, columns, unsupported)
        return EditedFooter(encode(edited), unsupported) if _find_refusal(edited) is None else None
    except (*_DAMAGE, pa.ArrowException, OSError):
        return None


def _find_refusal(tree: Struct) -> str | None:
    """Return PyArrow's reason to refuse a footer; None if it accepts it.

    Raises:
        OSError: If the footer is damaged.
    """
    try:
        parse_footer(encode(tree))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return str(error)
    return None


def _columns(tree: Struct) -> Iterator[_TopColumn]:
    """Yield the top-level columns. The schema lists a tree, each group before its children."""
    elements: list[Struct] = tree[_SCHEMA].value.values
    start, leaf = 1, 0
    while start < len(elements):
        end = _find_end(elements, start)
        inside = elements[start:end]
        leaves = sum(_CHILDREN not in element for element in inside)
        yield _TopColumn(inside[0][_NAME].value.decode(), inside, range(leaf, leaf + leaves))
        start, leaf = end, leaf + leaves


def _find_end(elements: Sequence[Struct], index: int) -> int:
    """Return the index after the last element of the tree that starts at an index."""
    missing = 1
    while missing:
        missing += elements[index].get(_CHILDREN, Field(I32, 0)).value - 1
        index += 1
    return index


def _change_maps_to_lists(elements: Sequence[Struct]) -> None:
    for outer, entries, key in zip(elements, elements[1:], elements[2:], strict=False):
        shape = [
            entries.get(_CHILDREN, _NO_FIELD).value,
            entries.get(_REPETITION, _NO_FIELD).value,
            key.get(_REPETITION, _NO_FIELD).value,
        ]
        if _is_map(outer) and shape == [_ENTRY_FIELDS, _REPEATED, _OPTIONAL]:
            outer[_CONVERTED] = Field(I32, _LIST)
            outer[_LOGICAL] = Field(STRUCT, {_LOGICAL_LIST: Field(STRUCT, {})})
            entries[_NAME] = entries[_NAME]._replace(value=MAP_ENTRIES.encode())


def _is_map(element: Struct) -> bool:
    logical = element.get(_LOGICAL, Field(STRUCT, {})).value
    converted = element.get(_CONVERTED, _NO_FIELD).value
    return converted in {_MAP, _MAP_KEY_VALUE} or _LOGICAL_MAP in logical


def _with_schema_of(tree: Struct, columns: Sequence[_TopColumn]) -> Struct:
    """Return a footer with some of its columns, and without row groups.

    The Arrow schema describes all columns, so it is removed as well.
    """
    root = {**tree[_SCHEMA].value.values[0], _CHILDREN: Field(I32, len(columns))}
    elements = [root, *(element for column in columns for element in column.elements)]
    kept = {number: field for number, field in tree.items() if number not in {_ORDERS, _KEY_VALUES}}
    return kept | {
        _SCHEMA: _with_values(tree[_SCHEMA], elements),
        _GROUPS: _with_values(tree[_GROUPS], []),
    }


def _without(tree: Struct, columns: Sequence[_TopColumn], removed: Collection[str]) -> Struct:
    """Return a footer without some of its columns, and without the Arrow schema."""
    kept = [column for column in columns if column.name not in removed]
    leaves = [leaf for column in kept for leaf in column.leaves]
    made = _with_schema_of(tree, kept)
    made[_GROUPS] = _with_values(
        tree[_GROUPS], [_with_leaves(group, leaves) for group in tree[_GROUPS].value.values]
    )
    if _ORDERS in tree:
        orders = tree[_ORDERS].value.values
        made[_ORDERS] = _with_values(tree[_ORDERS], [orders[leaf] for leaf in leaves])
    if _KEY_VALUES in tree:
        pairs = [
            pair for pair in tree[_KEY_VALUES].value.values if pair[_KEY].value != b"ARROW:schema"
        ]
        made[_KEY_VALUES] = _with_values(tree[_KEY_VALUES], pairs)
    return made


def _with_leaves(group: Struct, leaves: Sequence[int]) -> Struct:
    chunks = group[_CHUNKS].value.values
    kept = {number: field for number, field in group.items() if number != _SORTING}
    return kept | {_CHUNKS: _with_values(group[_CHUNKS], [chunks[leaf] for leaf in leaves])}


def _with_values(field: Field, values: list[Struct]) -> Field:
    return field._replace(value=field.value._replace(values=values))
