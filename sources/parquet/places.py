"""Where files are looked for, and what is known of a file that was listed."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import AfterValidator

from krishiv_spark.durable import exists
from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.layout import PATH_OPTION, SINK_LOG
from krishiv_spark.sources.parquet.globs import has_magic
from krishiv_spark.storage import ENVIRONMENT, Files, Storage, StoreUrl
from krishiv_spark.storage.paths import check_name_within, local_path, url_scheme

__all__ = ["ITSELF", "FoundFile", "Place", "store_url"]

ITSELF = "."
"""The relative path of the file that `Place.root` names itself."""


def check_found(path: str) -> str:
    """Return the relative path of a file, if it lies below the place or is the place itself.

    Raises:
        ValueError: As `check_name_within`.
    """
    return path if path == ITSELF else check_name_within(path)


FoundPath: TypeAlias = Annotated[str, AfterValidator(check_found)]


class FoundFile(NamedTuple):
    """A file as it was listed.

    Attributes:
        path: Where, relative to `Place.root`, with "/" between folders.
        size: Bytes.
        modified_ns: Time of its last modification, nanoseconds since 1970 UTC.
    """

    path: FoundPath
    size: int
    modified_ns: int


def store_url(text: str, option: str) -> StoreUrl:
    """Read an option that says where something is.

    Args:
        text: What the user wrote.
        option: See `local_path`.

    Raises:
        OptionError: If it is a URL of a store that is not known, or names another machine.
    """
    if url_scheme(text) in {None, "file"}:
        return StoreUrl("disk", "file", "", str(local_path(text, option)))
    try:
        return StoreUrl.parse(text)
    except OptionError as error:
        raise OptionError(f"{option} {error}") from error


@dataclass(frozen=True)
class Place:
    """Where files are looked for. Made from the option's text alone, without I/O.

    Attributes:
        root: Absolute path or URL that the paths of files are relative to: the folder, the file
            itself, or the folder above the first wildcard.
        pattern: The wildcards, relative to `root`; None for a plain folder or file.
        storage: How its store is reached.
    """

    root: str
    pattern: str | None = None
    storage: Storage = ENVIRONMENT

    @classmethod
    def of(cls, text: str, storage: Storage = ENVIRONMENT) -> Place:
        """Read the option `path`.

        Args:
            text: What the user wrote.
            storage: How its store is reached.

        Raises:
            OptionError: As `store_url`.
        """
        url = store_url(text, PATH_OPTION)
        parts = Path(url.path).parts
        plain = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
        root = replace(url, path=str(Path(*parts[:plain])) if plain else "")
        place = cls(str(root), "/".join(parts[plain:]) or None, storage)
        _ = place.files  # what is wrong with its options is said at once
        return place

    @cached_property
    def files(self) -> Files:
        """Those of the store that it is in."""
        return self.storage.files(self.root)

    def present_folder(self) -> str | None:
        """The root, if it is on a disk and there: a machine without it does not share it."""
        return None if self.files.is_remote or not exists(self.root) else self.root

    def has_sink_log(self) -> bool:
        """Whether Spark's own file sink has its log here, which says which files count.

        Beside those lie the files of tasks that failed. Spark's source goes by that log too, but
        where it is given wildcards (``FileStreamSource.sourceHasMetadata``).
        """
        if self.pattern is not None:
            return False
        with suppress(NotADirectoryError):  # the path is that of one file
            return bool(self.storage.folder(StoreUrl.parse(self.root) / SINK_LOG).names())
        return False

    def absolute(self, path: str) -> str:
        """The full path of a file of this place."""
        return self.root if path == ITSELF else os.path.join(self.root, path)
