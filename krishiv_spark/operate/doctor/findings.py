"""Questions to a cluster, and the findings and reports of its machines."""

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
from krishiv_spark.options.references import resolved_options
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
"""What to do about a clock."""

Level = Literal["ok", "note", "WRONG"]


class Finding(BaseModel, frozen=True):
    """One line.

    Attributes:
        level: "ok"; "note" of what may be wanted so; "WRONG" of what will fail.
        text: What was looked at, and what it is like.
        advice: What to do; empty if there is nothing.
    """

    level: Level
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.text}{self.advice and '; ' + self.advice}"


class FindingList:
    """Gathers them.

    Attributes:
        found: So far.
    """

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def ok(self, text: str) -> None:
        """Add a finding that all is well."""
        self.found.append(Finding(level="ok", text=text))

    def note(self, text: str, advice: str) -> None:
        """Add a finding that may be intended."""
        self.found.append(Finding(level="note", text=text, advice=advice))

    def wrong(self, text: str, advice: str) -> None:
        """Add a finding of something that will fail."""
        self.found.append(Finding(level="WRONG", text=text, advice=advice))

    @contextmanager
    def looking_at(self, what: str, advice: str) -> Iterator[Callable[[str], None]]:
        """Look at something; an error is a finding.

        Args:
            what: For the line.
            advice: What to do if it fails.

        Yields:
            To be called with what is to be said if all is well; without it nothing is.
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
    """Return the first line of an error; those of this package contain no secrets."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0].rstrip("; ")


_OWN = ("checkpoint", "target", "topic", "probe")


@dataclass(frozen=True)
class Questions:
    """The settings of an examination.

    Attributes:
        probe: A name that nobody else has: of the folders that are made and go again.
        checkpoint: Where a query's checkpoint will be.
        target: Where its tasks will write files, if that is a folder or a store.
        topic: To which they will write records.
        options: ``storage.…`` and ``kafka.…`` of the query; never shown, for there are secrets.
        tasks: How many.
        cleans: Whether the folders are to go; then nothing else is done.
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
        """Parse the options of the data source, with names in lower case; driver.

        Raises:
            OptionError: If what one of them names cannot be looked up.
        """
        given = {key.lower(): text for key, text in resolved_options(options).items()}
        own = {key: given.pop(key) for key in _OWN if key in given}
        tasks, cleans = int(given.pop("tasks")), given.pop("cleans") == "true"
        return cls(**own, options=given, tasks=tasks, cleans=cleans)

    def as_options(self, *, cleans: bool) -> dict[str, str]:
        """Return the options of the data source."""
        own = {key: getattr(self, key) for key in _OWN if getattr(self, key) is not None}
        return {**self.options, **own, "tasks": str(self.tasks), "cleans": str(cleans).lower()}

    @property
    def storage(self) -> Storage:
        """Return the storage by which stores are reached."""
        return Storage.given(self.options)

    @property
    def kafka(self) -> dict[str, str]:
        """Options of the Kafka sink; empty if no brokers are named."""
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
"""Packages that a cluster may do without, but then everywhere."""

_LEAST_FREE = 2**30
"""Bytes."""


class Report(BaseModel, frozen=True):
    """Of one process.

    Attributes:
        role: What it is to Spark.
        host: The machine's name.
        executor: Number of the process that Spark's workers descend from: with the host, an
            executor's name.
        begun_s: When it began, by its machine's clock, seconds since 1970.
        ended_s: When it wrote this.
        python: Its version.
        prefix: Where its environment is.
        versions: Of packages, by name; those that are missing are left out.
        full: Folders for temporary files with less than 1 GiB left.
        found: What it has found out.
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
    found = {"pyspark": pyspark.__version__}  # Spark's own, whatever is installed beside it
    for name in (*_NEEDED, *OPTIONAL):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _local_folders() -> list[str]:
    """Return Spark's local folders, which workers get by environment, or the temporary folder."""
    named = os.environ.get("SPARK_LOCAL_DIRS", "")
    return [each for each in named.split(",") if each] or [tempfile.gettempdir()]


def _free(folder: str) -> int:
    """Return free bytes; 0 if Spark has deleted the folder with its session."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return _LEAST_FREE
