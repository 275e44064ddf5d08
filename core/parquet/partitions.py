"""Partition columns as folders, Hive's way: ``day=2013-01-01/hour=7``."""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported.

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["NULL_VALUE", "group_starts", "split"]

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

# What Spark escapes in a partition's folder name (ExternalCatalogUtils.escapePathName).
_UNSAFE = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}


def split(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Cut rows into those of each partition, in one pass whatever the number of partitions.

    Returns:
        Pairs of a folder, relative to the table and empty without partition columns, and its
        rows without these columns; none without rows.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield "", rows
        return
    order = pc.sort_indices(rows, [(name, "ascending") for name in columns])
    ordered = rows.take(order)
    keys = ordered.select(list(columns))
    data = ordered.drop_columns(list(columns))
    starts = group_starts(keys)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield _folder(keys.slice(start, 1)), data.slice(start, end - start)


def group_starts(keys: pa.Table) -> list[int]:
    """Where the key changes in sorted rows, beginning with 0."""
    changed = None
    for column in keys.columns:
        values = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = _flat(values).indices
        differs = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
        changed = differs if changed is None else pc.or_(changed, differs)
    return [0, *(index.as_py() + 1 for index in pc.indices_nonzero(changed))]


def _flat(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _folder(key: pa.Table) -> str:
    return "/".join(
        f"{_escape(name)}={_text(column[0])}"
        for name, column in zip(key.column_names, key.columns, strict=True)
    )


def _text(value: pa.Scalar) -> str:
    if not value.is_valid:
        return NULL_VALUE
    if pa.types.is_timestamp(value.type):
        text = str(value.cast(pa.timestamp("us")).cast(pa.string()))
        text = text.rstrip("0").rstrip(".") if "." in text else text
    elif pa.types.is_decimal(value.type):
        text = format(value.as_py(), "f")  # Arrow and Python would write 0E-18
    else:
        text = str(value.cast(pa.string()))
    return _escape(text) if text else NULL_VALUE


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _UNSAFE else char for char in text)
