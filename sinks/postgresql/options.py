"""Options of the sink."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field, model_validator
from typing_extensions import Self

from krishiv_spark.options import DistinctNames, Duration
from krishiv_spark.postgresql.names import MARKS, TableName
from krishiv_spark.postgresql.options import ConnectionOptions
from krishiv_spark.sinks.column_policy import Evolution
from krishiv_spark.sinks.options import CheckpointOptions

__all__ = ["PostgresqlSinkOptions"]


def _check_table(text: str) -> str:
    if TableName.parse(text).name == MARKS:
        raise ValueError("that table has the committed epochs: name another one")
    return text


def _check_schema(text: str) -> str:
    if TableName.parse(text).schema is not None:
        raise ValueError("write the name of one schema, without a dot")
    return text


class PostgresqlSinkOptions(ConnectionOptions, CheckpointOptions):
    """Options of the sink."""

    table: Annotated[str, AfterValidator(_check_table)] = Field(
        validation_alias=AliasChoices("table", "dbtable"),
        description='Table, as SQL names it: `orders`, `shop.orders`, `"Shop"."Orders"`.',
    )
    mode: Literal["append", "upsert"] = Field(
        default="append",
        description="Append the rows (`append`), or replace rows with the same key (`upsert`).",
    )
    key_columns: DistinctNames = Field(
        default=(),
        description="Columns that identify a row, separated by commas; required for `upsert`. The "
        "table needs a unique index on them.",
    )
    op_column: str | None = Field(
        default=None,
        description="Column that marks a row as a delete (`d`, `delete`, `-`) or an upsert. It is "
        "not written to the table.",
    )
    order_column: str | None = Field(
        default=None,
        description="Column whose highest value wins among the rows of an epoch with the same key. "
        "By default, the last row in Spark's order wins.",
    )
    create_table: Literal["ifMissing", "never"] = Field(
        default="ifMissing",
        description="Action for a missing table: create it with the columns of the rows "
        "(`ifMissing`), or fail (`never`).",
    )
    schema_evolution: Evolution = Field(
        default="none",
        description="Action for columns that the table does not have: fail, `add` them, or "
        "`widen`: also give columns the wider type of the rows (`integer` to `bigint`, `real` to "
        "`double precision`, more digits of a `numeric`), for which the server rewrites the table. "
        "The user must own the table.",
    )
    truncate: bool = Field(
        default=False,
        description="With `complete` and `overwrite`, empty the table by TRUNCATE instead of "
        "DELETE: that leaves no dead rows, blocks readers until the commit, and readers of older "
        "snapshots see an empty table.",
    )
    staging_schema: Annotated[str, AfterValidator(_check_schema)] | None = Field(
        default=None,
        description="Schema of the staging tables. Default: the schema of the table.",
    )
    staging_retention: Duration = Field(
        default=86_400_000,
        ge=3_600_000,
        description="Age at which staging tables of jobs and queries that no longer run are "
        "dropped. It must be longer than any job.",
    )
    commit_timeout: Duration = Field(
        default=60_000,
        gt=0,
        description="Maximum time to find out whether a commit without an answer has happened.",
    )

    @property
    def table_name(self) -> TableName:
        """The parsed name of the table."""
        return TableName.parse(self.table)

    def target_text(self) -> str:
        """See `NumberedJobOptions`."""
        return f"{self.address()} {self.table_name}"

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "upsert" and not self.key_columns:
            raise ValueError("'mode' = 'upsert' needs the option 'keyColumns'")
        if self.mode == "append" and (self.key_columns or self.op_column or self.order_column):
            raise ValueError("'keyColumns', 'opColumn' and 'orderColumn' require 'mode' = 'upsert'")
        if self.op_column is not None and self.op_column in {*self.key_columns, self.order_column}:
            raise ValueError(
                f"'opColumn' = {self.op_column!r} is also in 'keyColumns' or 'orderColumn', and is "
                "not written to the table: name another column there"
            )
        return self
