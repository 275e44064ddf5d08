"""Options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, Field, model_validator
from typing_extensions import Self

from krishiv_spark.options import Duration
from krishiv_spark.postgresql.names import CHANGES, MARKS, TableName
from krishiv_spark.postgresql.options import ConnectionOptions
from krishiv_spark.sinks.change_options import KeyedChangeOptions
from krishiv_spark.sinks.options import CheckpointOptions

__all__ = ["PostgresqlSinkOptions"]


def _check_table(text: str) -> str:
    if TableName.parse(text).name in {MARKS, CHANGES}:
        raise ValueError("that table has the committed epochs: name another one")
    return text


def _check_schema(text: str) -> str:
    if TableName.parse(text).schema is not None:
        raise ValueError("write the name of one schema, without a dot")
    return text


class PostgresqlSinkOptions(ConnectionOptions, CheckpointOptions, KeyedChangeOptions):
    """Options of the sink."""

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **ConnectionOptions.collects_prefixes,
        **CheckpointOptions.collects_prefixes,
        **KeyedChangeOptions.collects_prefixes,
    }

    table: Annotated[str, AfterValidator(_check_table)] = Field(
        validation_alias=AliasChoices("table", "dbtable"),
        description='Table, as SQL names it: `orders`, `shop.orders`, `"Shop"."Orders"`.',
    )
    mode: Literal["append", "upsert"] = Field(
        default="append",
        description="Append the rows (`append`), or replace rows with the same key (`upsert`).",
    )
    create_table: Literal["ifMissing", "never"] = Field(
        default="ifMissing",
        description="Action for a missing table: create it with the columns of the rows "
        "(`ifMissing`), or fail (`never`).",
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
        return self
