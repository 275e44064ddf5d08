"""The conformance kit: it proves a connector by playing Spark's part while faults are injected.

    class TestMySink(SinkConformance):
        def sink(self, folder):
            return SinkUnderTest(source=MySource, options={...}, oracle=lambda: ...)

Needs ``pip install "krishiv-spark[testing]"``, and a system that can fork (Linux, macOS).
"""

from krishiv_spark.testing.drivers.queries import back_up_folder
from krishiv_spark.testing.drivers.sink_driver import EpochDriver
from krishiv_spark.testing.drivers.source_driver import SourceDriver
from krishiv_spark.testing.processes.outside import FILES, OUTSIDE, SOCKETS, SQLITE, Look, Outside
from krishiv_spark.testing.real_spark.driver import SparkDriver
from krishiv_spark.testing.rows import Row
from krishiv_spark.testing.rules import Broken, Rule
from krishiv_spark.testing.steps import (
    Abort,
    Add,
    BackUp,
    Begin,
    Commit,
    Crash,
    Expire,
    Fault,
    Faults,
    Kill,
    OtherQuery,
    Overwrite,
    PutBack,
    Reorder,
    Resume,
    RollBack,
    Sequence,
    SetClock,
    Sleep,
    Stage,
    Stop,
    Straggler,
    Switch,
    TakeOver,
    Trigger,
)
from krishiv_spark.testing.subjects import (
    ROW_SCHEMA,
    FailingConnector,
    SinkUnderTest,
    SourceUnderTest,
)
from krishiv_spark.testing.suites.offsets import OffsetConformance
from krishiv_spark.testing.suites.secrets import SecretConformance
from krishiv_spark.testing.suites.sinks import SinkConformance
from krishiv_spark.testing.suites.sources import SourceConformance

__all__ = [
    "FILES",
    "OUTSIDE",
    "ROW_SCHEMA",
    "SOCKETS",
    "SQLITE",
    "Abort",
    "Add",
    "BackUp",
    "Begin",
    "Broken",
    "Commit",
    "Crash",
    "EpochDriver",
    "Expire",
    "FailingConnector",
    "Fault",
    "Faults",
    "Kill",
    "Look",
    "OffsetConformance",
    "OtherQuery",
    "Outside",
    "Overwrite",
    "PutBack",
    "Reorder",
    "Resume",
    "RollBack",
    "Row",
    "Rule",
    "SecretConformance",
    "Sequence",
    "SetClock",
    "SinkConformance",
    "SinkUnderTest",
    "Sleep",
    "SourceConformance",
    "SourceDriver",
    "SourceUnderTest",
    "SparkDriver",
    "Stage",
    "Stop",
    "Straggler",
    "Switch",
    "TakeOver",
    "Trigger",
    "back_up_folder",
]
