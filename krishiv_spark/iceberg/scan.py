"""What a scan reads of a table: its columns, and the rows under a filter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.iceberg.files import TableFile

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import NameMapping

__all__ = ["ScanProjection", "groups_with"]


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

    @cached_property
    def bound_filter(self) -> BooleanExpression | None:
        """The filter, bound to the columns."""
        from krishiv_spark.iceberg.conditions import bind_filter

        return None if self.row_filter is None else bind_filter(self.row_filter, self.wanted)

    @cached_property
    def condition(self) -> Any:
        """The filter as Arrow's condition on projected columns; None for all rows. Executor."""
        from krishiv_spark.iceberg.conditions import condition_on

        bound = self.bound_filter
        return None if bound is None else condition_on(bound, self.wanted)


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
    from pyiceberg.expressions.visitors import extract_field_ids
    from pyiceberg.io.pyarrow import expression_to_pyarrow

    from krishiv_spark.iceberg.conditions import filter_in_file

    bound = scan.bound_filter
    if bound is None:
        return None
    if any(_may_be_nan(scan.wanted, number) for number in extract_field_ids(bound)):
        return None
    try:
        inside = filter_in_file(bound, scan.wanted, held, dict(file.constants))
        condition = expression_to_pyarrow(inside, held)
        fragment = ds.ParquetFileFormat().make_fragment(source).subset(filter=condition)
    except (TypeError, ValueError, pa.ArrowException):
        return None  # the file's types are others: its rows are looked at one by one
    return frozenset(group.id for group in fragment.row_groups)


def _may_be_nan(schema: Schema, number: int) -> bool:
    """Whether a row group's statistics do not tell of all values: Parquet leaves NaN out."""
    from pyiceberg.types import DoubleType, FloatType

    return isinstance(schema.find_type(number), (DoubleType, FloatType))
