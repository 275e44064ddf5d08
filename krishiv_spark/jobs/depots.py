"""Addresses in job files, ``dataos://depot:collection/dataset?acl=rw``, and their depots."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, PlainValidator

from krishiv_spark.formats import find_format
from krishiv_spark.jobs.models import JobModel, NotUsed
from krishiv_spark.jobs.validation import read_nodes, validate_model
from krishiv_spark.jobs.variables import Variables
from krishiv_spark.jobs.yaml_nodes import Problems
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.options.references import Referenced, read_small

__all__ = ["Address", "Depot", "Depots", "read_depots", "resolve_format_name"]

_ADDRESS = re.compile(
    r"dataos://(?P<depot>[\w-]+)(?::(?P<collection>[\w.-]*))?(?:/(?P<dataset>[^?]*))?(?:\?(?P<rest>.*))?"
)
_NO_COLLECTION = {"", "none", "default"}


class Address(NamedTuple):
    """The address of a dataset in a published job file.

    Attributes:
        depot: The name of the depot.
        collection: The collection; empty if there is none.
        dataset: The dataset, which may contain '/'; empty if there is none.
        query: The part after '?', with access rights of another platform.
    """

    depot: str
    collection: str
    dataset: str
    query: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address.

        Raises:
            ValueError: If the text is not an address.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} is not an address: write 'dataos://depot:collection/dataset', or "
                "remove 'dataset' and set 'format' and 'options'"
            )
        found = match["collection"] or ""
        collection = "" if found.lower() in _NO_COLLECTION else found
        dataset = (match["dataset"] or "").strip("/")
        return cls(match["depot"], collection, dataset, match["rest"] or "")


class _Secret(JobModel):
    env: str | None = None
    file: Path | None = None
    secret: bool | None = None

    def text(self) -> Referenced:
        if self.env is not None:
            found = os.environ.get(self.env)
            if found is None:
                raise ValueError(f"the environment has no variable {self.env}")
            return Referenced(found, f"${{env:{self.env}}}", self.secret)
        if self.file is None:
            raise ValueError("give 'env' with the name of a variable, or 'file' with a path")
        try:
            text = read_small(self.file).strip()
        except UnicodeDecodeError:
            raise ValueError(f"{self.file} cannot be read: it is not text") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"{self.file} cannot be read: {reason}") from None
        return Referenced(text, f"${{file:{self.file.absolute()}}}", self.secret)


def _resolve(given: object) -> str:
    if isinstance(given, Mapping):
        return _Secret.model_validate(given).text()
    return str(given).lower() if isinstance(given, bool) else str(given)


_Option = Annotated[str, PlainValidator(_resolve)]


class Depot(JobModel):
    """A depot: the format and location of its datasets."""

    format: str | None = Field(
        default=None, description="Format of its datasets, as `krishiv-iceberg`."
    )
    folder: str | None = Field(
        default=None,
        description="Path or URL of the folder for checkpoints and for formats that store files.",
    )
    place: str | None = Field(
        default=None,
        description="Pattern of the table, topic or path, with `{collection}` and `{dataset}`.",
    )
    options: dict[str, _Option] = Field(
        default={},
        repr=False,
        description="Options of the format. A value may be `{env: NAME}` or `{file: path}`; "
        "`secret: true` or `false` in it decides whether messages hide it.",
    )
    description: str | None = Field(
        default=None, description="Description for readers of the file."
    )
    tags: NotUsed = Field(default=None, description="Accepted, but not used.")


class _DepotFile(JobModel):
    depots: dict[str, Depot]


@dataclass(frozen=True)
class Depots:
    """The depots that a job file can use.

    Attributes:
        by_name: The depots by name.
        file: The file that defines them; None if there is none.
    """

    by_name: Mapping[str, Depot] = field(default_factory=dict)
    file: Path | None = None

    def of(self, address: Address) -> Depot:
        """Return the depot of an address.

        Raises:
            ValueError: If there is no such depot.
        """
        found = self.by_name.get(address.depot)
        if found is not None:
            return found
        if self.file is None:
            raise ValueError(
                f"the depot {address.depot!r} is unknown: there is no depots.yaml beside the job, "
                "and --depots names none"
            )
        known = ", ".join(sorted(self.by_name)) or "none"
        hint = did_you_mean(address.depot, self.by_name, f"known: {known}")
        raise ValueError(f"{self.file.name} has no depot {address.depot!r}; {hint}")

    def secrets(self) -> frozenset[str]:
        """Return the values of options that may be secret, which messages must not contain.

        If a value is written with `secret`, that decides. Otherwise, all values of a format of
        another package count as secret, since its options are unknown.
        """
        return frozenset(
            str(text)
            for depot in self.by_name.values()
            for key, text in depot.options.items()
            if isinstance(text, Referenced) and text and _is_hidden(depot, key, text)
        )


def _is_hidden(depot: Depot, key: str, text: Referenced) -> bool:
    if text.is_secret is not None:
        return text.is_secret
    name = "" if depot.format is None else resolve_format_name(depot.format)
    kind = find_format(name)
    if kind is None:
        return True
    roles = (role for role in (kind.reader_type, kind.writer_type) if role is not None)
    # A URL may contain credentials.
    return "@" in text or any(role.options_type.secret_keys({key: text}) for role in roles)


_OURS = {"iceberg": "krishiv-iceberg", "kafka": "krishiv-kafka", "kafkajson": "krishiv-kafka"}
"""Short names of formats in published files that are this package's; other names are Spark's."""


def resolve_format_name(given: str) -> str:
    """Return the name of a format for Spark, by its name in a file."""
    name = given.strip()
    lowered = name.lower()
    if lowered in _OURS:
        return _OURS[lowered]
    return lowered if lowered.startswith("krishiv-") else name


def read_depots(file: Path | None, variables: Variables) -> Depots:
    """Return the depots of a file.

    Args:
        file: The file of the user; None if there is none.
        variables: The values for ``${NAME}`` in the file.

    Raises:
        ManifestError: If the file contains mistakes; the error lists all of them.
    """
    if file is None:
        return Depots()
    problems = Problems(str(file), variables.hide)
    found, _ = validate_model(_DepotFile, read_nodes(file, problems, variables), problems)
    problems.raise_if_any()
    return Depots({} if found is None else found.depots, file)
