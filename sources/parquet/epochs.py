"""The epochs of this project's sink in a place, from listing to listing. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from krishiv_spark.errors import StorageError
from krishiv_spark.sources.parquet.judging import Judge, Judged, Listed, Lost
from krishiv_spark.sources.parquet.places import Place
from krishiv_spark.sources.parquet.tables import SinkTable, Tables
from krishiv_spark.sources.parquet.units import origin

__all__ = ["Epochs"]


class Epochs:
    """What is known of our tables.

    Args:
        place: Where files are looked for.
        recursive: See `scan`.
        waits: See `Judge`.
    """

    def __init__(self, place: Place, *, recursive: bool, waits: bool) -> None:
        self._waits = waits
        self._place = place
        self._recursive = recursive
        self._tables = Tables(place)
        self._before: dict[str, SinkTable] = {}
        self._compared: dict[tuple[str, str], int] = {}

    def look(self) -> None:
        """Look at the tables. Before files are listed: what is visible now is in that listing."""
        self._before = self._tables.look()

    def note(self, paths: Iterable[str]) -> bool:
        """Note the tables of files that were listed; whether one was not looked at before."""
        return self._tables.add(path for path in paths if origin(path) is not None)

    def visible(self) -> dict[str, int]:
        """The newest wholly visible epoch of each query that offsets remember by a key."""
        return {
            key: query.visible
            for table in self._before.values()
            for tag, query in table.queries.items()
            if (key := table.key(tag)) is not None and query.visible is not None
        }

    def is_read(self, path: str, read: Mapping[str, int]) -> bool:
        """Whether a file is of an epoch that was read; `read` is `ParquetOffset.epochs`."""
        source = origin(path)
        if source is None:
            return False
        prefix = self._tables.prefix(self._tables.root_of(path))
        return prefix is not None and source.epoch <= read.get(f"{prefix}{source.tag}", -1)

    def was_single(self, path: str) -> bool:
        """Whether version 1 took a file of our sink by itself.

        It knew the logs in the folder of the place only.
        """
        source = origin(path)
        table = self._before.get(self._tables.root_of(path))
        if source is None or table is None or table.prefix != "":
            return True
        query = table.queries.get(source.tag)
        return query is None or query.visible is None

    def judge(self, listed: Listed) -> Judged:
        """Decide about files that were listed after `look`."""
        judge = Judge(
            self._place,
            self._tables,
            self._before,
            recursive=self._recursive,
            waits=self._waits,
        )
        return judge.decide(listed, self._compared)

    def check_present(self, lost: Iterable[Lost]) -> None:
        """Refuse to take a folder that is away, such as a mount, for one that has lost files.

        The log that names the missing files is in the folder as well: if it is missing now, the
        listing says nothing about files.

        Raises:
            StorageError: If a table of missing files has no log any more.
        """
        roots = {loss.root for loss in lost}
        if away := sorted(roots - self._tables.look().keys() if roots else ()):
            raise StorageError(
                f"krishiv-parquet: the folder {away[0]} disappeared while files were listed, so "
                "none of its files counts as lost: mount or restore it, and restart the query"
            )

    def forget(self) -> None:
        """Forget which epochs were compared with their intents: the position has changed."""
        self._compared = {}
