"""Partition columns as folders, Hive's way: ``day=2013-01-01/hour=7``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.texts import text_of

__all__ = ["group_starts", "split"]

# What Spark escapes in a partition's folder name (ExternalCatalogUtils.escapePathName).
_UNSAFE = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}


def split(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Cut rows into those of each partition, in one pass whatever the number of partitions.

    Returns:
        Pairs of a folder, relative to the table and empty without partition columns, and its
        rows without these columns; none without rows.

    Raises:
        SchemaError: If a value cannot be the name of a folder.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield "", rows
        return
    keys = rows.select(list(columns))
    numbered = keys.rename_columns(list(map(str, range(len(columns)))))  # names may look like paths
    order = pc.sort_indices(numbered, [(name, "ascending") for name in numbered.column_names])
    ordered, keys = rows.take(order), keys.take(order)
    data = ordered.drop_columns(list(columns))
    starts = group_starts(keys)
    folders = [_folder(keys.slice(start, 1)) for start in starts]  # all of them, or no row
    ends = [*starts[1:], rows.num_rows]
    for folder, start, end in zip(folders, starts, ends, strict=True):
        yield folder, data.slice(start, end - start)


def group_starts(keys: pa.Table) -> list[int]:
    """Where the key changes in sorted rows, beginning with 0."""
    changed = None
    for column in keys.columns:
        # Codes instead of values: among them null equals null, and NaN equals NaN.
        values = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = _flat(values).indices
        differs = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
        changed = differs if changed is None else pc.or_(changed, differs)
    return [0, *(index.as_py() + 1 for index in pc.indices_nonzero(changed))]


def _flat(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _folder(key: pa.Table) -> str:
    return "/".join(
        _name(name, column[0]) for name, column in zip(key.column_names, key.columns, strict=True)
    )


def _name(column: str, value: pa.Scalar) -> str:
    """The name of one folder.

    Raises:
        SchemaError: If there can be none for a value.
    """
    try:
        name = f"{_escape(column)}={_escape(text_of(value))}"
        size = len(name.encode())
        if size > _MOST_BYTES:
            raise ValueError(f"its folder's name has {size} bytes, and file systems take 255")
    except ValueError as error:
        raise SchemaError(
            f"column {column!r} has the value {_shown(value)}, which cannot be a partition: "
            f"{error}. Change it before it is written, or take the column out of 'partitionBy'; "
            "the query then goes on where it stands"
        ) from error
    return name


# Of a name, in the usual file systems.
_MOST_BYTES = 255


def _shown(value: pa.Scalar) -> str:
    # Python has no dates of some years, and Arrow no text for some bytes.
    text = str(value if pa.types.is_binary(value.type) else value.cast(pa.string()))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 40


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _UNSAFE else char for char in text)
