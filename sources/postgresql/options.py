"""Options of the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, AliasChoices, Field, model_validator
from typing_extensions import Self

from krishiv_spark.options import ByteSize, Duration, Names
from krishiv_spark.postgresql.names import TableName
from krishiv_spark.postgresql.options import ConnectionOptions
from krishiv_spark.sources.base import SourceOptions

__all__ = ["PostgresqlSourceOptions"]

_ONLY_BATCHES = "PostgreSQL is read in batches; a batch has all rows"


def _check_table(text: str) -> str:
    if text.lstrip().startswith("("):
        raise ValueError("it is a query: write it into the option 'query', without the brackets")
    TableName.parse(text)
    return text


def _check_query(text: str) -> str:
    found = text.strip().rstrip(";").rstrip()
    if not found:
        raise ValueError("write a SELECT")
    return found


class PostgresqlSourceOptions(SourceOptions, ConnectionOptions):
    """Options of the source; the names of JDBC's options have the same meaning."""

    unsupported: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("max_rows_per_trigger", "max_files_per_trigger", "max_bytes_per_trigger"),
            _ONLY_BATCHES,
        ),
        "answer_timeout": "a read has no COMMIT",
        **dict.fromkeys(
            ("event_time", "watermark_delay", "late_rows", "max_event_time_ahead"), _ONLY_BATCHES
        ),
    }

    table: Annotated[str, AfterValidator(_check_table)] | None = Field(
        default=None,
        validation_alias=AliasChoices("table", "dbtable"),
        description='Table or view, as SQL names it: `orders`, `shop.orders`, `"Shop"."Orders"`.',
    )
    query: Annotated[str, AfterValidator(_check_query)] | None = Field(
        default=None, description="A SELECT, whose rows are read instead of those of a table."
    )
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. A schema given to Spark takes "
        "precedence.",
    )
    partition_column: str | None = Field(
        default=None,
        description="Column by whose ranges the rows are divided into tasks: a whole number, a "
        "`numeric`, a date or a time. By default, a table is divided by its pages, and a query or "
        "view is one task.",
    )
    lower_bound: str | None = Field(
        default=None,
        description="Start of the second range is computed from it; it skips no row. Default: the "
        "smallest value of `partitionColumn`.",
    )
    upper_bound: str | None = Field(
        default=None,
        description="Start of the last range is computed from it; it skips no row. Default: the "
        "highest value of `partitionColumn`.",
    )
    num_partitions: int | None = Field(
        default=None,
        gt=0,
        description="Number of tasks, approximately. Each running task has one connection. "
        "Required with `partitionColumn`.",
    )
    max_partition_bytes: ByteSize = Field(
        default=128 * 2**20,
        gt=0,
        description="Approximate size of the part of a table that one task reads, where "
        "`numPartitions` is not set.",
    )
    snapshot_timeout: Duration = Field(
        default=300_000,
        ge=0,
        description="Time without a reading task after which the server ends the snapshot that "
        "all tasks read. With `0s`, each task reads the rows of the time when it starts.",
    )

    @property
    def table_name(self) -> TableName | None:
        """The parsed name of the table; None for a query."""
        return None if self.table is None else TableName.parse(self.table)

    @property
    def relation(self) -> str:
        """The rows in a FROM clause."""
        # The line break ends a comment in the last line of the query.
        name = self.table_name
        return f"(\n{self.query}\n) AS krishiv_query" if name is None else name.sql

    @property
    def subject(self) -> str:
        """The rows in a message."""
        return "the rows of the option 'query'" if self.table is None else f"table {self.table}"

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise ValueError("write either the option 'table' or the option 'query'")
        if self.partition_column is not None and self.num_partitions is None:
            raise ValueError("'partitionColumn' needs the option 'numPartitions'")
        if (self.lower_bound is None) != (self.upper_bound is None):
            raise ValueError("write both 'lowerBound' and 'upperBound', or neither")
        if self.lower_bound is not None and self.partition_column is None:
            raise ValueError("'lowerBound' and 'upperBound' need the option 'partitionColumn'")
        if self.query is not None and self.partition_column is None and self.num_partitions:
            raise ValueError(
                "'numPartitions' of a query needs the option 'partitionColumn', by which its rows "
                "are divided"
            )
        return self
