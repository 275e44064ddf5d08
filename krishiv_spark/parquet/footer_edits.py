"""Footers changed so that PyArrow reads what it would refuse, crash on, or read wrongly.

PyArrow refuses a file as a whole if it cannot represent one of its columns, ends the process where
it is asked about an encrypted column, and computes some times of INT96 modulo 2^64. The pages are
in order in all three cases. So the footer is changed in memory, and the file is opened with that:
without the columns that cannot be read, and with INT96 as the 12 bytes that it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.parquet.leaves import MAP_ENTRIES
from krishiv_spark.parquet.thrift import I32, STRUCT, Field, Struct, decode, encode

__all__ = [
    "EditedFooter",
    "UnsupportedColumn",
    "int96_as_bytes",
    "metadata_of",
    "without_encrypted",
    "without_unsupported",
]

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
"""Errors of decoding bytes that are no struct of Thrift, or not that of a Parquet file."""


class UnsupportedColumn(NamedTuple):
    """A column that cannot be read.

    Attributes:
        reason: What PyArrow lacks for it, for messages.
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

    def refused(self, reason: str) -> UnsupportedColumn:
        return UnsupportedColumn(reason, self.elements[0].get(_FIELD_ID, _NO_FIELD).value)


def metadata_of(footer: bytes) -> pq.FileMetaData:
    """Return the metadata that PyArrow has of a footer.

    Raises:
        pa.ArrowException, OSError: If PyArrow refuses it.
    """
    # Of a file that consists of it: PyArrow reads nothing else when it opens one.
    whole = b"PAR1%b%bPAR1" % (footer, len(footer).to_bytes(4, "little"))
    return pq.ParquetFile(pa.BufferReader(whole)).metadata


def int96_as_bytes(footer: bytes) -> bytes:
    """Return a footer whose columns of INT96 are ones of 12 bytes: the pages of both are the same.

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
            column.name: column.refused("it is encrypted")
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
    """Return a footer without the columns that PyArrow cannot represent; None if that is no help.

    Maps whose keys are not declared as required, as Presto wrote them, become lists: see
    `MAP_ENTRIES`. The Arrow schema that some writers add is removed if PyArrow cannot use it.

    Args:
        footer: One that PyArrow refuses.
    """
    try:
        tree, _ = decode(footer)
        columns = [*_columns(tree)]
        for column in columns:
            _maps_to_lists(column.elements)
        if _refusal(tree) is None:
            return EditedFooter(encode(tree), {})
        refusals = {column.name: _refusal(_schema_with(tree, [column])) for column in columns}
        unsupported = {
            column.name: column.refused(refusal)
            for column in columns
            if (refusal := refusals[column.name]) is not None
        }
        edited = _without(tree, columns, unsupported)
        return EditedFooter(encode(edited), unsupported) if _refusal(edited) is None else None
    except (*_DAMAGE, pa.ArrowException, OSError):
        return None


def _refusal(tree: Struct) -> str | None:
    """Return the reason for which PyArrow refuses a footer; None if it does not.

    Raises:
        OSError: If the footer is damaged.
    """
    try:
        metadata_of(encode(tree))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return str(error)
    return None


def _columns(tree: Struct) -> Iterator[_TopColumn]:
    """Yield the top-level columns. The schema lists a tree, each group before its children."""
    elements: list[Struct] = tree[_SCHEMA].value.values
    start, leaf = 1, 0
    while start < len(elements):
        end = _end_of(elements, start)
        inside = elements[start:end]
        leaves = sum(_CHILDREN not in element for element in inside)
        yield _TopColumn(inside[0][_NAME].value.decode(), inside, range(leaf, leaf + leaves))
        start, leaf = end, leaf + leaves


def _end_of(elements: Sequence[Struct], index: int) -> int:
    """Return the index after the last element of the tree that begins at an index."""
    missing = 1
    while missing:
        missing += elements[index].get(_CHILDREN, Field(I32, 0)).value - 1
        index += 1
    return index


def _maps_to_lists(elements: Sequence[Struct]) -> None:
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


def _schema_with(tree: Struct, columns: Sequence[_TopColumn]) -> Struct:
    """A footer with some of its columns, and without row groups.

    The Arrow schema describes all columns, so that it goes as well.
    """
    root = {**tree[_SCHEMA].value.values[0], _CHILDREN: Field(I32, len(columns))}
    elements = [root, *(element for column in columns for element in column.elements)]
    kept = {number: field for number, field in tree.items() if number not in {_ORDERS, _KEY_VALUES}}
    return kept | {_SCHEMA: _listed(tree[_SCHEMA], elements), _GROUPS: _listed(tree[_GROUPS], [])}


def _without(tree: Struct, columns: Sequence[_TopColumn], removed: Collection[str]) -> Struct:
    """A footer without some of its columns, and without the Arrow schema."""
    kept = [column for column in columns if column.name not in removed]
    leaves = [leaf for column in kept for leaf in column.leaves]
    made = _schema_with(tree, kept)
    made[_GROUPS] = _listed(
        tree[_GROUPS], [_group_with(group, leaves) for group in tree[_GROUPS].value.values]
    )
    if _ORDERS in tree:
        orders = tree[_ORDERS].value.values
        made[_ORDERS] = _listed(tree[_ORDERS], [orders[leaf] for leaf in leaves])
    if _KEY_VALUES in tree:
        pairs = [
            pair for pair in tree[_KEY_VALUES].value.values if pair[_KEY].value != b"ARROW:schema"
        ]
        made[_KEY_VALUES] = _listed(tree[_KEY_VALUES], pairs)
    return made


def _group_with(group: Struct, leaves: Sequence[int]) -> Struct:
    chunks = group[_CHUNKS].value.values
    kept = {number: field for number, field in group.items() if number != _SORTING}
    return kept | {_CHUNKS: _listed(group[_CHUNKS], [chunks[leaf] for leaf in leaves])}


def _listed(field: Field, values: list[Struct]) -> Field:
    return field._replace(value=field.value._replace(values=values))
