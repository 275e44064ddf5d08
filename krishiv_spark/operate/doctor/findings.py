"""The settings of an examination, and the findings and reports of the machines."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Literal

import pyspark
from pydantic import BaseModel

from krishiv_spark.errors import KrishivError
from krishiv_spark.options.references import resolve_options
from krishiv_spark.storage import Storage, StoreUrl

__all__ = [
    "OPTIONAL",
    "SYNCHRONISE",
    "Finding",
    "FindingList",
    "Level",
    "Questions",
    "Report",
    "Role",
    "reason",
    "report",
]


SYNCHRONISE = "synchronise the clocks (NTP): stores refuse signatures of another time"
"""Advice for a wrong clock."""

Level = Literal["ok", "note", "WRONG"]


class Finding(BaseModel, frozen=True):
    """One line of the result.

    Attributes:
        level: "ok"; "note" for a setting that may be intended; "WRONG" if a query would fail.
        text: The object of the check and its state.
        advice: The next step for the user; empty if there is none.
    """

    level: Level
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.text}{self.advice and '; ' + self.advice}"


class FindingList:
    """A list of findings.

    Attributes:
        found: The findings so far.
    """

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def ok(self, text: str) -> None:
        """Add a positive finding."""
        self.found.append(Finding(level="ok", text=text))

    def note(self, text: str, advice: str) -> None:
        """Add a finding about a setting that may be intended."""
        self.found.append(Finding(level="note", text=text, advice=advice))

    def wrong(self, text: str, advice: str) -> None:
        """Add a finding about a setting with which a query would fail."""
        self.found.append(Finding(level="WRONG", text=text, advice=advice))

    @contextmanager
    def looking_at(self, what: str, advice: str) -> Iterator[Callable[[str], None]]:
        """Run a check, and turn an error into a finding.

        Args:
            what: The object of the check.
            advice: Advice if the check fails.

        Yields:
            A function that takes the text of a positive finding. Without a call there is none.
        """
        said: list[str] = []
        try:
            yield said.append
        except (KrishivError, OSError) as error:
            self.wrong(f"{what}: {reason(error)}", advice)
        else:
            for text in said:
                self.ok(f"{what}: {text}")


def reason(error: Exception) -> str:
    """Return the first line of an error. Errors of this package contain no secrets."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0].rstrip("; ")


_OWN = ("checkpoint", "target", "topic", "probe")


@dataclass(frozen=True)
class Questions:
    """The settings of an examination.

    Attributes:
        probe: A unique name for the temporary folders.
        checkpoint: The future location of the query's checkpoint.
        target: The folder or store URL that its tasks will write to, if they write files.
        topic: The topic that its tasks will write to, if any.
        options: Options ``storage.…`` and ``kafka.…`` of the query. They may contain secrets, so
            they are never shown.
        tasks: Number of tasks.
        cleans: True to remove the temporary folders, and do nothing else.
    """

    probe: str
    checkpoint: str | None = None
    target: str | None = None
    topic: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    tasks: int = 1
    cleans: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Questions:
        """Parse the options of the data source, whose names are in lower case; driver.

        Raises:
            OptionError: If the reference in an option cannot be resolved.
        """
        given = {key.lower(): text for key, text in resolve_options(options).items()}
        own = {key: given.pop(key) for key in _OWN if key in given}
        tasks, cleans = int(given.pop("tasks")), given.pop("cleans") == "true"
        return cls(**own, options=given, tasks=tasks, cleans=cleans)

    def as_options(self, *, cleans: bool) -> dict[str, str]:
        """Return the options of the data source."""
        own = {key: getattr(self, key) for key in _OWN if getattr(self, key) is not None}
        return {**self.options, **own, "tasks": str(self.tasks), "cleans": str(cleans).lower()}

    @property
    def storage(self) -> Storage:
        """The settings of the stores."""
        return Storage.for_query(self.options)

    @property
    def kafka(self) -> dict[str, str]:
        """The options of the Kafka sink; empty if no brokers are named."""
        given = {key: text for key, text in self.options.items() if key.startswith("kafka.")}
        if "kafka.bootstrap.servers" not in given:
            return {}
        return given if self.topic is None else {**given, "topic": self.topic}

    def folder(self, location: str) -> StoreUrl:
        """Return the temporary folder of the examination, which readers of tables ignore."""
        return StoreUrl.parse(location) / f"_krishiv-doctor-{self.probe}"


Role = Literal["client", "driver", "task"]

_NEEDED = (
    *("krishiv-spark", "pyarrow", "pandas", "pydantic", "obstore"),
    *("kafka-python", "pyiceberg"),
)
OPTIONAL = ("numba", "crc32c", "boto3")
"""Packages that a cluster need not have; if a machine has one, all must have it."""

_LEAST_FREE = 2**30
"""Minimum of free space, in bytes."""


class Report(BaseModel, frozen=True):
    """The report of one process.

    Attributes:
        role: The role of the process in Spark.
        host: The name of the machine.
        executor: Id of the process that has started Spark's workers. With the host, it identifies
            an executor.
        begun_s: Start time by the clock of its machine, seconds since 1970.
        ended_s: Time when the report was written.
        python: Version of Python.
        prefix: Path of the environment.
        versions: Versions of installed packages by name.
        full: Folders for temporary files with less than 1 GiB of free space.
        found: The findings.
    """

    role: Role
    host: str
    executor: int
    begun_s: float
    ended_s: float
    python: str
    prefix: str
    versions: dict[str, str]
    full: list[str]
    found: list[Finding] = []

    def __str__(self) -> str:
        return f"{'executor' if self.role == 'task' else self.role} on {self.host}"


def report(role: Role, begun_s: float, found: list[Finding]) -> Report:
    """Return the report of this process."""
    return Report(
        role=role,
        host=platform.node(),
        executor=os.getppid(),
        begun_s=begun_s,
        ended_s=time.time(),
        python=platform.python_version(),
        prefix=sys.prefix,
        versions=_versions(),
        full=[folder for folder in _local_folders() if _free(folder) < _LEAST_FREE],
        found=found,
    )


def _versions() -> dict[str, str]:
    # The imported one, which may differ from the installed one.
    found = {"pyspark": pyspark.__version__}
    for name in (*_NEEDED, *OPTIONAL):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _local_folders() -> list[str]:
    """Return Spark's local folders from the environment of workers, or the temporary folder."""
    named = os.environ.get("SPARK_LOCAL_DIRS", "")
    return [each for each in named.split(",") if each] or [tempfile.gettempdir()]


def _free(folder: str) -> int:
    """Return the free bytes; the minimum if Spark has deleted the folder with its session."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return _LEAST_FREE
