"""Where files are looked for, and what is known of a file that was listed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from krishiv_spark.parquet.layout import PATH_OPTION
from krishiv_spark.paths import local_path
from krishiv_spark.sources.parquet.globs import has_magic

__all__ = ["ITSELF", "FoundFile", "Place"]

ITSELF = "."
"""The relative path of the file that `Place.root` names itself."""


class FoundFile(NamedTuple):
    """A file as it was listed.

    Attributes:
        path: Where, relative to `Place.root`, with "/" between folders.
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC.
    """

    path: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class Place:
    """Where files are looked for. Made from the option's text alone, without I/O.

    Attributes:
        root: Absolute path that the paths of files are relative to: the folder, the file itself,
            or the folder above the first wildcard.
        pattern: The wildcards, relative to `root`; None for a plain folder or file.
    """

    root: str
    pattern: str | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """Read the option `path`.

        Raises:
            OptionError: If it is a URL of another file system.
        """
        parts = local_path(text, PATH_OPTION).parts
        plain = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
        pattern = "/".join(parts[plain:])
        return cls(str(Path(*parts[:plain])), pattern or None)

    def absolute(self, path: str) -> str:
        """The full path of a file of this place."""
        return self.root if path == ITSELF else os.path.join(self.root, path)
