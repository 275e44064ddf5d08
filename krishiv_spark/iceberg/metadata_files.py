"""Metadata files of tables, read without parsing again what the one before had.

Each lists every snapshot that the table keeps, and is new with each epoch. To make PyIceberg's
models of them all was most of what a planner did: 9 ms for 170 snapshots.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.serializers import Compressor
from pyiceberg.table.metadata import TableMetadataUtil

from krishiv_spark.lru import LruCache

if TYPE_CHECKING:
    from pyiceberg.io import InputFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["MetadataFiles"]

_MOST = 8
_SNAPSHOTS, _ID = "snapshots", "snapshot-id"


class _Parsed(NamedTuple):
    text: Any
    snapshot: Snapshot


class MetadataFiles:
    """Reads metadata files; remembers the snapshots of the tables that were read last.

    Tables share their snapshots, which nobody changes: PyIceberg's models are frozen.
    """

    def __init__(self) -> None:
        self._known: LruCache[str, dict[int, _Parsed]] = LruCache(_MOST)

    def read(self, file: InputFile) -> TableMetadata:
        """What a file says; the same as PyIceberg's ``FromInputFile.table_metadata``.

        Raises:
            FileNotFoundError: If it is not there.
            ValidationError: PyIceberg's, if it is damaged.
        """
        text = _text(file)
        try:
            return self._parsed(json.loads(text))
        except Exception:  # noqa: BLE001  whatever is odd about it, PyIceberg shall judge and name it
            return TableMetadataUtil.parse_raw(text)

    def _parsed(self, found: dict[str, Any]) -> TableMetadata:
        table, texts = found["table-uuid"], found.get(_SNAPSHOTS) or []
        known = self._known.get(table) or {}
        # By all that is said of it, not by its id alone: what is there decides.
        found[_SNAPSHOTS] = [
            seen.snapshot if (seen := known.get(text[_ID])) and seen.text == text else text
            for text in texts
        ]
        metadata = TableMetadataUtil.parse_obj(found)
        pairs = zip(texts, metadata.snapshots, strict=True)
        self._known.put(table, {text[_ID]: _Parsed(text, snapshot) for text, snapshot in pairs})
        return metadata


def _text(file: InputFile) -> str:
    compressor = Compressor.get_compressor(file.location)
    with file.open() as opened, compressor.stream_decompressor(opened) as stream:
        return stream.read().decode()
