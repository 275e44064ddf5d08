"""Options of sinks whose rows replace and delete others by key: of rows, and of change data."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from krishiv_spark.changes.options import ChangeOptions
from krishiv_spark.options import DistinctNames
from krishiv_spark.sinks.column_policy import Evolution

__all__ = ["KeyedChangeOptions"]


class KeyedChangeOptions(ChangeOptions):
    """Options of a sink whose rows change others by key.

    Attributes:
        mode: The effect of rows on others; each sink has its own modes, one of them `append`.
    """

    modes_of_changes: ClassVar[str] = "'upsert'"
    """The modes in which rows change others, for messages."""

    mode: Any = "append"
    key_columns: DistinctNames = Field(
        default=(),
        description="Columns that identify a row, separated by commas; required unless rows are "
        "only appended.",
    )
    op_column: str | None = Field(
        default=None,
        description="Column that marks a row as a delete (`d`, `delete`, `-`) or an upsert. It is "
        "not written to the table.",
    )
    order_column: str | None = Field(
        default=None,
        description="Column whose highest value wins among the rows of a key in an epoch. By "
        "default, the last row in Spark's order wins.",
    )
    schema_evolution: Evolution = Field(
        default="none",
        description="Action for columns that the table lacks: fail, `add` them, or `widen`: "
        "also give columns the wider type of the rows.",
    )

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        if self.mode == "append" and (self.key_columns or self.op_column or self.order_column):
            raise ValueError(
                "'keyColumns', 'opColumn' and 'orderColumn' require 'mode' = "
                f"{self.modes_of_changes}"
            )
        if self.change_format is not None and (self.op_column, self.order_column) != (None, None):
            raise ValueError(
                "'opColumn' and 'orderColumn' contradict 'changeFormat', whose events have their "
                "operation and their order"
            )
        if self.op_column is not None and self.op_column in {*self.key_columns, self.order_column}:
            raise ValueError(
                f"'opColumn' = {self.op_column!r} is also in 'keyColumns' or 'orderColumn', and is "
                "not written to the table: name another column there"
            )
        if self.change_format is None:
            if self.table_schema:
                raise ValueError("'tableSchema' requires 'changeFormat'")
            if self.registry is not None:
                raise ValueError("'registry.url' requires 'changeFormat'")
            return self
        if self.mode == "append":
            raise ValueError(f"'changeFormat' requires 'mode' = {self.modes_of_changes}")
        return self
