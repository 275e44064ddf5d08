"""What a scan reads of a table: its columns, and the rows under a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.iceberg.files import TableFile

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import NameMapping

__all__ = ["ScanProjection", "condition_of", "groups_with"]


@dataclass(frozen=True)
class ScanProjection:
    """What tasks must know to read the files of a table.

    Attributes:
        io: How files are opened; it knows nothing of the catalog.
        wanted: The columns to read, named as Spark knows them; those that only the filter looks
            at come last.
        columns: How many of them are yielded.
        names: Field ids of files that have none (Iceberg spec, "Column Projection").
        row_filter: Rows to yield; None for all.
    """

    io: FileIO
    wanted: Schema
    columns: int
    names: NameMapping | None
    row_filter: BooleanExpression | None


def groups_with(
    source: Any, held: Schema, file: TableFile, scan: ScanProjection
) -> frozenset[int] | None:
    """Numbers of the row groups that may have rows under the filter; None for any of them.

    Args:
        source: The file, open.
        held: The columns that are in the file, by their field ids.
        file: What is known of it.
        scan: Has the filter.
    """
    import pyarrow.dataset as ds
    from pyiceberg.expressions.visitors import bind, extract_field_ids, translate_column_names
    from pyiceberg.io.pyarrow import expression_to_pyarrow

    if scan.row_filter is None:
        return None
    bound = bind(scan.wanted, scan.row_filter, case_sensitive=False)
    if any(_may_be_nan(scan.wanted, number) for number in extract_field_ids(bound)):
        return None
    try:
        inside = translate_column_names(
            bound, held, case_sensitive=True, projected_field_values=dict(file.constants)
        )
        condition = expression_to_pyarrow(bind(held, inside, case_sensitive=True), held)
        fragment = ds.ParquetFileFormat().make_fragment(source).subset(filter=condition)
    except (TypeError, ValueError, pa.ArrowException):
        return None  # the file's types are others: its rows are looked at one by one
    return frozenset(group.id for group in fragment.row_groups)


def _may_be_nan(schema: Schema, number: int) -> bool:
    """Whether a row group's statistics do not tell of all values: Parquet leaves NaN out."""
    from pyiceberg.types import DoubleType, FloatType

    return isinstance(schema.find_type(number), (DoubleType, FloatType))


def condition_of(scan: ScanProjection) -> Any:
    """The filter as an expression of pyarrow over projected columns; None for all rows."""
    from pyiceberg.expressions.visitors import bind
    from pyiceberg.io.pyarrow import expression_to_pyarrow

    if scan.row_filter is None:
        return None
    bound = bind(scan.wanted, scan.row_filter, case_sensitive=False)
    return expression_to_pyarrow(bound, scan.wanted)
