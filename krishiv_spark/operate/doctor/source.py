"""The data source by which questions reach the planner and the tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from krishiv_spark.operate.doctor.brokers import check_brokers, check_reachable
from krishiv_spark.operate.doctor.findings import Findings
from krishiv_spark.operate.doctor.questions import Questions
from krishiv_spark.operate.doctor.reports import Report, report
from krishiv_spark.operate.doctor.stores import (
    check_checkpoint,
    check_shared,
    clean,
    prepare_target,
)

__all__ = ["DoctorSource"]

_HELD_S = 1.0
"""A task keeps its core for so long, or one executor would run all of them."""


class DoctorSource(DataSource):
    """Rows with a report each, as JSON: of the planner, and of each task."""

    @classmethod
    def name(cls) -> str:
        """Spark: the format."""
        return "krishiv-doctor"

    def schema(self) -> str:
        """Spark: one column."""
        return "report string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Spark: planner."""
        del schema
        return _DoctorReader(Questions.of(self.options))


@dataclass
class _Asked(InputPartition):
    planner: str | None = None


class _DoctorReader(DataSourceReader):
    def __init__(self, asked: Questions) -> None:
        self._asked = asked

    def partitions(self) -> Sequence[InputPartition]:
        if self._asked.cleans:
            clean(self._asked)
            return [_Asked("")]
        others = [_Asked() for _ in range(self._asked.tasks - 1)]
        return [_Asked(_of_driver(self._asked).model_dump_json()), *others]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        assert isinstance(partition, _Asked)
        if partition.planner:
            yield (partition.planner,)
        if not self._asked.cleans:
            yield (_of_task(self._asked).model_dump_json(),)


def _of_driver(asked: Questions) -> Report:
    begun_s, said = time.time(), Findings()
    check_checkpoint(asked, said)
    prepare_target(asked, said)
    check_brokers(asked, said)
    return report("driver", begun_s, said.found)


def _of_task(asked: Questions) -> Report:
    begun_s, said = time.time(), Findings()
    check_shared(asked, said)
    check_reachable(asked, said)
    time.sleep(max(0.0, begun_s + _HELD_S - time.time()))
    return report("task", begun_s, said.found)
