"""Metadata files of tables, read within a limit and written, without the snapshots that are known.

Each lists every snapshot that the table keeps, and is new with each epoch. Parsing and serializing
all of them was nearly all of the cost of a late epoch: at 5 000 snapshots, 64 of 81 ms. Driver.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.metadata_lists import CACHED_TABLES, NO_ITEMS, ListScan, ListText
from krishiv_spark.iceberg.options import FORMAT, MAX_METADATA_BYTES
from krishiv_spark.runtime.caches import LruCache

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "METADATA_CODEC",
    "METADATA_SUFFIX",
    "MetadataFiles",
    "choose_suffix",
    "read_pieces",
    "read_table_uuid",
]

METADATA_SUFFIX = ".metadata.json"

METADATA_CODEC = "write.metadata.compression-codec"
"""Iceberg's table property: ``gzip`` or ``none``. PyIceberg ignores it."""

_GZIP_SUFFIX = f".gz{METADATA_SUFFIX}"
_GZIP_LEVEL = 1
"""A seventh of the bytes remains, for 5 ms in 1 000 snapshots. Level 6 leaves an eighth, for 14."""

_LISTS = {"snapshots": "snapshots", "snapshot-log": "snapshot_log"}
"""The lists that grow with each epoch: their keys, and the fields of PyIceberg's models."""

_MARK = str(uuid.uuid4())
"""Replaces a list in the text that is parsed. It is random, so that no file contains it."""

_PIECE_BYTES = 2**23
"""Nearly all metadata files are one piece, which is not copied."""
_COMPRESSED = (_GZIP_SUFFIX, f"{METADATA_SUFFIX}.gz")
"""Suffixes of metadata files that are compressed, as PyIceberg's ``Compressor`` knows them."""

_NEWEST_WRITTEN = 2
"""The newest format version that PyIceberg writes."""


class MetadataFiles:
    """A reader and writer of metadata files that knows the lists of the latest tables.

    Tables share their snapshots, which never change: PyIceberg's models are frozen.
    """

    def __init__(self) -> None:
        self._known: LruCache[str, Mapping[str, ListText]] = LruCache(CACHED_TABLES)
        # By folder and format version, which decides the text of a snapshot. Texts of other writers
        # are not in there, since they may contain more than PyIceberg's models.
        self._written: LruCache[tuple[str, int], Mapping[str, ListText]] = LruCache(CACHED_TABLES)

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

        text = b"".join(read_pieces(file, max_bytes))
        try:
            return self._parse(text, _get_folder(file.location))
        except Exception:  # noqa: BLE001  PyIceberg's own parser names the damage
            return TableMetadataUtil.parse_raw(text.decode())

    def _parse(self, text: bytes, folder: str) -> TableMetadata:
        from pyiceberg.table.metadata import TableMetadataUtil

        known, scans, end = self._known.get(folder) or {}, dict[str, ListScan](), 0
        for key in _LISTS:
            scan = ListScan.find(text, key, end, known.get(key, NO_ITEMS))
            if scan is not None:
                scans[key], end = scan, scan.end
        found = json.loads(_cut_out(text, scans))
        for key, scan in scans.items():
            # Otherwise the list is not the value of the outermost object that counts.
            if found.get(key) != _MARK + key:
                raise ValueError(f"{key} is not where it was searched")
            found[key] = scan.new
        metadata = TableMetadataUtil.parse_obj(found)
        lists = {key: scan.complete(getattr(metadata, _LISTS[key])) for key, scan in scans.items()}
        self._known.put(folder, lists)
        update = {_LISTS[key]: one.items for key, one in lists.items()}
        return metadata.model_copy(update=update)

    def write(self, metadata: TableMetadata, file: OutputFile) -> None:
        """Write a table's metadata, as PyIceberg's ``ToOutputFile.table_metadata`` does.

        Args:
            metadata: The metadata.
            file: The new file.

        Raises:
            FileExistsError: If the file exists.
            NotImplementedError: PyIceberg's, for a format version that it does not write.
        """
        from pyiceberg.serializers import ToOutputFile
        from pyiceberg.utils.config import Config

        has_null_ids = Config().get_bool("legacy-current-snapshot-id")
        if metadata.format_version > _NEWEST_WRITTEN or has_null_ids:
            ToOutputFile.table_metadata(metadata, file)
            return
        parts = self._serialize(metadata, _get_folder(file.location))
        is_compressed = file.location.endswith(_COMPRESSED)
        with file.create() as stream:
            # In parts, because a copy of the whole text would take longer than most of the rest.
            for part in _deflate(parts) if is_compressed else parts:
                stream.write(part)

    def _serialize(self, metadata: TableMetadata, folder: str) -> Sequence[bytes]:
        dump = _dump_unnumbered if metadata.format_version == 1 else _dump
        dumps: dict[str, Callable[[Any], str]] = {"snapshots": dump, "snapshot-log": _dump}
        place = (folder, metadata.format_version)
        known = self._written.get(place) or {}
        lists = {
            key: known.get(key, NO_ITEMS).replace_items(getattr(metadata, field), dumps[key])
            for key, field in _LISTS.items()
        }
        self._written.put(place, lists)
        self._known.put(folder, lists)
        rest = metadata.model_dump_json(exclude={*_LISTS.values()})
        parts = [rest[:-1].encode()]
        for key, one in lists.items():
            parts += [f',"{key}":['.encode(), one.text, b"]"]
        return [*parts, b"}"]


def choose_suffix(properties: Mapping[str, str]) -> str:
    """Return the suffix of a table's next metadata file, by which readers know its compression.

    The property decides, as in Iceberg-Java. Iceberg spec, "Naming for GZIP compressed Metadata
    JSON files".
    """
    codec = properties.get(METADATA_CODEC, "none").strip().lower()
    return _GZIP_SUFFIX if codec == "gzip" else METADATA_SUFFIX


def _deflate(parts: Iterable[bytes]) -> Iterator[bytes]:
    deflater = zlib.compressobj(_GZIP_LEVEL, wbits=31)
    for part in parts:
        yield deflater.compress(part)
    yield deflater.flush()


def _dump(model: Any) -> str:
    return str(model.model_dump_json())


def _dump_unnumbered(snapshot: Snapshot) -> str:
    """Serialize a snapshot of format version 1, which has no sequence numbers."""
    return _dump(snapshot.model_copy(update={"sequence_number": None}))


def _get_folder(location: str) -> str:
    return location.rpartition("/")[0]


def _cut_out(text: bytes, scans: Mapping[str, ListScan]) -> str:
    """Return the text with a mark in the place of each list."""
    parts, end = list[bytes](), 0
    for key, scan in sorted(scans.items(), key=lambda pair: pair[1].start):
        parts += [text[end : scan.start], f'"{_MARK}{key}"'.encode()]
        end = scan.end
    return b"".join([*parts, text[end:]]).decode()


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
