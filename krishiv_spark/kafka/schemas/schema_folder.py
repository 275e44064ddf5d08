"""A folder of schemas instead of a registry: for records of AWS Glue. Driver, executor.

AWS Glue's registry has another interface, which needs AWS. Its records name a schema version
by a UUID, so a file for each version is enough to read them. The folder is the same on the driver
and on the executors, and a file may be added while a query runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from krishiv_spark.errors import SchemaError

__all__ = ["SchemaFolder", "is_folder"]

_NAME = re.compile(
    r"(?P<subject>.+)\.(?P<version>[1-9]\d*)\.(?P<guid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}"
    r"-[0-9a-fA-F]{12})\.(?P<form>avsc|json)"
)
"""The name of a file: subject, version, UUID and form, as `orders-value.3.<UUID>.avsc`."""
_FORMS = {"avsc": "AVRO", "json": "JSON"}
_OTHER_BITS = 97
"""Bits of a UUID that the number of a schema leaves out: it has 31, as those of registries."""
_NOT_FOUND = 404


@dataclass(frozen=True)
class _File:
    """A schema in the folder, with the attributes that Confluent's client gives to schemas."""

    subject: str
    version: int
    guid: str
    schema_type: str
    schema_str: str
    references: Sequence[Any] = ()

    @property
    def schema_id(self) -> int:
        return int(self.guid.replace("-", ""), 16) >> _OTHER_BITS

    @property
    def schema(self) -> _File:
        return self


def is_folder(url: str) -> bool:
    """Return True if the address of a registry is that of a folder."""
    return url.lower().startswith("file:")


class SchemaFolder:
    """A folder with the methods of Confluent's client that `SchemaRegistry` calls.

    Args:
        url: Its address, ``file:///path``.
    """

    def __init__(self, url: str) -> None:
        self._path = Path(unquote(urlsplit(url).path))

    def get_version(self, subject: str, version: int | str) -> _File:
        """Return a version of a subject; "latest" is the greatest one.

        Raises:
            SchemaRegistryError: With the status 404 if there is none.
            OSError: If the folder cannot be read.
        """
        found = {each.version: each for each in self._read() if each.subject == subject}
        number = max(found, default=0) if version == "latest" else int(version)
        if number not in found:
            raise _not_found()
        return found[number]

    def get_schema(self, schema_id: int) -> _File:
        """Return the schema of a number, as `_File.schema_id`.

        Raises:
            FileNotFoundError: If no file has it; a caller waits for it.
            OSError: If the folder cannot be read.
        """
        return self._find(lambda each: each.schema_id == schema_id, f"the number {schema_id}")

    def get_schema_by_guid(self, guid: str) -> _File:
        """Return the schema version of a UUID; errors are those of `get_schema`."""
        return self._find(lambda each: each.guid == guid, f"the UUID {guid}")

    def _find(self, is_wanted: Callable[[_File], bool], what: str) -> _File:
        found = next(filter(is_wanted, self._read()), None)
        if found is None:
            raise FileNotFoundError(
                f"no file of the folder has {what}: add it as SUBJECT.VERSION.UUID.avsc or .json"
            )
        return found

    def _read(self) -> Iterator[_File]:
        """Yield the schemas.

        Raises:
            SchemaError: If two files have the same number, or the same subject and version.
        """
        known: dict[object, str] = {}
        for path in sorted(self._path.iterdir()):
            parts = _NAME.fullmatch(path.name)
            if parts is None:
                continue
            found = _File(
                parts["subject"],
                int(parts["version"]),
                parts["guid"].lower(),
                _FORMS[parts["form"]],
                path.read_text("utf-8"),
            )
            for key in (found.schema_id, (found.subject, found.version)):
                if key in known:
                    raise SchemaError(
                        f"{path.parent} has two files for one schema version ({known[key]}, "
                        f"{path.name}): delete one of them"
                    )
                known[key] = path.name
            yield found


def _not_found() -> Exception:
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    return SchemaRegistryError(_NOT_FOUND, _NOT_FOUND, "not in the folder")
