"""The manifests that the attempts of one commit have written. Driver.

All attempts of a commit have one snapshot id, which the entries of their manifests contain, and
entries of new files inherit their sequence number. So an attempt after a lost race lists the
manifests of an earlier one, and writes only the list, and those that the other commit has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile

__all__ = ["WrittenManifests"]


class WrittenManifests:
    """The manifests of one commit, by what they contain.

    Attributes:
        snapshot_id: Id of the commit's snapshot, from the first attempt on.
    """

    def __init__(self) -> None:
        self.snapshot_id: int | None = None
        self._manifests: dict[Hashable, ManifestFile] = {}

    def get(self, content: Hashable, write: Callable[[], ManifestFile]) -> ManifestFile:
        """Return the manifest of a content, which is written for the first attempt that needs it.

        Args:
            content: Identifies the entries, their order, and the schema of the table.
            write: Writes the manifest.
        """
        found = self._manifests.get(content)
        if found is None:
            found = self._manifests[content] = write()
        return found
