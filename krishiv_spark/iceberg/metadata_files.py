"""Metadata files of tables, read within a limit and without parsing known snapshots again. Driver.

Each lists every snapshot that the table keeps, and is new with each epoch. Creating PyIceberg's
models of all of them was most of the work of a planner: 9 ms for 170 snapshots.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT, MAX_METADATA_BYTES
from krishiv_spark.runtime.caches import LruCache

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputFile, InputStream
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "METADATA_SUFFIX",
    "MetadataFiles",
    "read_pieces",
    "read_table_uuid",
]

METADATA_SUFFIX = ".metadata.json"

_CACHED_TABLES = 8
_SNAPSHOTS, _ID = "snapshots", "snapshot-id"

_PIECE_BYTES = 2**20
_COMPRESSED = (".gz.metadata.json", ".metadata.json.gz")
"""Suffixes of metadata files that are compressed, as PyIceberg's ``Compressor`` knows them."""


class _Parsed(NamedTuple):
    text: Any
    snapshot: Snapshot


class MetadataFiles:
    """A reader of metadata files that caches the snapshots of the latest tables.

    Tables share their snapshots, which never change: PyIceberg's models are frozen.
    """

    def __init__(self) -> None:
        self._cache: LruCache[str, dict[int, _Parsed]] = LruCache(_CACHED_TABLES)

    def read(self, file: InputFile, max_bytes: int = MAX_METADATA_BYTES) -> TableMetadata:
        """Return a table's metadata, as PyIceberg's ``FromInputFile.table_metadata`` does.

        Args:
            file: The metadata file.
            max_bytes: The largest size that is read, after decompression.

        Raises:
            FileNotFoundError: If the file is missing.
            OptionError: If it is larger than `max_bytes`.
            ValidationError: PyIceberg's, if it is damaged.
        """
        from pyiceberg.table.metadata import TableMetadataUtil

        text = b"".join(read_pieces(file, max_bytes)).decode()
        try:
            return self._parse(json.loads(text))
        except Exception:  # noqa: BLE001  PyIceberg's own parser names the damage
            return TableMetadataUtil.parse_raw(text)

    def _parse(self, found: dict[str, Any]) -> TableMetadata:
        from pyiceberg.table.metadata import TableMetadataUtil

        table, texts = found["table-uuid"], found.get(_SNAPSHOTS) or []
        known = self._cache.get(table) or {}
        # A cached snapshot counts only if its whole text is the same, not its id alone.
        found[_SNAPSHOTS] = [
            seen.snapshot if (seen := known.get(text[_ID])) and seen.text == text else text
            for text in texts
        ]
        metadata = TableMetadataUtil.parse_obj(found)
        pairs = zip(texts, metadata.snapshots, strict=True)
        self._cache.put(table, {text[_ID]: _Parsed(text, snapshot) for text, snapshot in pairs})
        return metadata


def read_pieces(file: InputFile, max_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed pieces of a metadata file.

    Raises:
        FileNotFoundError: If the file is missing.
        OptionError: If it has more than `max_bytes` after decompression; few more are in memory.
        EOFError: If it is compressed, and cut off.
    """
    size = 0
    with file.open() as stream:
        for piece in _inflate(stream) if file.location.endswith(_COMPRESSED) else _read_raw(stream):
            size += len(piece)
            if size > max_bytes:
                raise OptionError(
                    f"{FORMAT}: the table's metadata file {file.location} has more than "
                    f"{max_bytes} bytes ('maxMetadataBytes'). Nothing was read: expire snapshots "
                    "and metadata of the table, or raise the option if the table is to be trusted"
                )
            yield piece


def _read_raw(stream: InputStream) -> Iterator[bytes]:
    while piece := stream.read(_PIECE_BYTES):
        yield piece


def _inflate(stream: InputStream) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    pending = b""
    while pending or (pending := stream.read(_PIECE_BYTES)):
        if inflater.eof:  # the next member of the file (RFC 1952)
            inflater = zlib.decompressobj(wbits=31)
        yield inflater.decompress(pending, _PIECE_BYTES)
        pending = inflater.unconsumed_tail or inflater.unused_data
    if not inflater.eof:
        raise EOFError("a compressed metadata file ends in the middle")


# Writers put the UUID near the start, and the history, which grows, after it.
_HEAD_BYTES = 4096


_MAX_HEAD_BYTES = 64 * 2**20


_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')


def read_table_uuid(io: FileIO, path: str) -> str | None:
    """Return the table's UUID in a metadata file; None if the file is missing or contains none.

    Reads 4 KiB, or up to 64 MiB if the UUID is not in these.
    """
    with contextlib.suppress(FileNotFoundError), io.new_input(path).open() as stream:
        head = stream.read(_HEAD_BYTES)
        found = _UUID.search(_inflate_head(head))
        if found is None:
            found = _UUID.search(_inflate_head(head + stream.read(_MAX_HEAD_BYTES)))
        return None if found is None else found[1].decode(errors="replace")
    return None


def _inflate_head(text: bytes) -> bytes:
    if not text.startswith(b"\x1f\x8b"):
        return text
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(wbits=31).decompress(text, _MAX_HEAD_BYTES)
    return b""
