"""Files of Spark's state stores: which version each is of, and whether one can be loaded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from krishiv_spark.errors import OptionError

__all__ = ["STATE", "check_version", "is_later", "version_of"]

STATE = "state"
"""The folder of a checkpoint that they are in; a query without state may lack it."""

# HDFSBackedStateStoreProvider and RocksDBFileManager: a whole version, or what changed since the
# one before; with a unique id in checkpoints of version 2. ``.crc``: ChecksumCheckpointFileManager.
_FILE = re.compile(
    r"(?P<version>\d+)(_[\w-]+)?\.(?P<kind>delta|snapshot|changelog|zip)(?P<sum>\.crc)?"
)
_WHOLE = {"snapshot", "zip"}


class _Versions(NamedTuple):
    whole: set[int]
    changes: set[int]

    def has(self, version: int) -> bool:
        """Whether a version can be loaded: from a whole one, and all changes since."""
        while version > 0 and version not in self.whole:
            if version not in self.changes:
                return False
            version -= 1
        return True


def version_of(path: str) -> int | None:
    """The version that a file is of; None for one that is of no version.

    Args:
        path: Of a file, relative to the checkpoint.
    """
    folder, _, name = path.rpartition("/")
    found = _FILE.fullmatch(name) if folder.split("/")[0] == STATE else None
    return None if found is None else int(found["version"])


def is_later(path: str, version: int) -> bool:
    """Whether a file is of a state store's later version."""
    found = version_of(path)
    return found is not None and found > version


def check_version(paths: Iterable[str], version: int, location: str) -> int:
    """Refuse a version that one of the state stores cannot load.

    Args:
        paths: Of the files of a checkpoint, relative to it.
        version: Which; versions begin with 1, after the first epoch.
        location: Of the checkpoint, for the message.

    Returns:
        How many stores there are.

    Raises:
        OptionError: If one lacks the version, or changes on the way to it.
    """
    stores: dict[str, _Versions] = defaultdict(lambda: _Versions(set(), set()))
    for path in paths:
        folder, _, name = path.rpartition("/")
        found = _FILE.fullmatch(name) if folder.split("/")[0] == STATE else None
        if found is not None and not found["sum"]:
            kind = stores[folder]
            (kind.whole if found["kind"] in _WHOLE else kind.changes).add(int(found["version"]))
    missing = sorted(folder for folder, versions in stores.items() if not versions.has(version))
    if missing:
        raise OptionError(
            f"{location}/{missing[0]} cannot be loaded in version {version}, which its query had "
            f"at the end of epoch {version - 1}: Spark keeps those of the newest epochs "
            "('spark.sql.streaming.minBatchesToRetain')"
        )
    return len(stores)
