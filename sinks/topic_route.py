"""Sinks that can write a table for each topic: the routes that `TopicTablesWriter` makes."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa
from pydantic import BaseModel
from typing_extensions import Self, TypeVar

from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.sinks.participant import ModelT

__all__ = ["TopicRoute", "TopicTable"]

PlanT = TypeVar("PlanT", default=None)


class TopicTable(BaseModel, frozen=True):
    """The table of a topic, as intents name it.

    Attributes:
        topic: Name of the topic, from which the options compute the name of the table.
        keys: Key columns of the table, if records name them; empty if the options do, or rows are
            only added.
    """

    topic: str
    keys: tuple[str, ...] = ()


class TopicRoute(LoggedWriter[ModelT, PlanT]):
    """A sink whose option for the table is an expression over the topic.

    Only `check_topics`, `find_table` and `of_topic` are called then; the writer that `of_topic`
    returns is that of one table.
    """

    @abstractmethod
    def check_topics(self, *, starts: bool) -> None:
        """Refuse rows and options that no topic's table would accept. Planner.

        Args:
            starts: False for a check before the query starts, which must not change anything.

        Raises:
            OptionError, SchemaError: As `Writer.check`.
        """

    @abstractmethod
    def find_table(self, topic: str, rows: pa.RecordBatch) -> TopicTable:
        """Return the table of a topic, from its first rows in a task. Executor.

        It may read the schema of a record's key in a registry; it does not open the table.

        Raises:
            OptionError: If the topic has no table by the options.
            SchemaError: If the rows do not name the key of the table, which they must.
        """

    @abstractmethod
    def of_topic(self, table: TopicTable, *, must_exist: bool = False) -> Self:
        """Return the writer of a topic's table. Any process; no I/O.

        Args:
            table: The table.
            must_exist: True for a table that has epochs of the query: it is not created again.

        Raises:
            OptionError: If the topic has no table by the options.
        """
