"""Avro files of manifests, decoded within their bounds and in bounded memory. Driver.

PyIceberg's compiled decoder of Avro does not check the end of its buffer: a length in a manifest
can make it return memory of the process or crash it, and a count can make it allocate all memory
(PyIceberg 0.12.0, ``decoder_fast.pyx``). PyIceberg also decompresses a block of a manifest
whole, so that 10 KB can become gigabytes in the driver of every reader. `bound_avro_files` makes
PyIceberg read manifests and their lists by `BoundedAvroFile` instead. The conversion of a file's
schema to that of an entry stays PyIceberg's: its tree of readers is translated into functions, one
for each node, which are faster than the tree.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg import manifest
from pyiceberg.avro import reader as nodes
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, KNOWN_CODECS
from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader
from pyiceberg.avro.resolver import EnumReader, construct_reader, resolve_reader
from pyiceberg.typedef import StructProtocol
from pyiceberg.utils.lazydict import LazyDict
from typing_extensions import Self, override

from krishiv_spark.errors import KrishivError, OptionError
from krishiv_spark.iceberg._pyiceberg import ExactManifestCache
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.planning import UnreadableError

if TYPE_CHECKING:
    from pyiceberg.io import InputStream

__all__ = ["BoundedAvroFile", "bound_avro_files", "create_decompressor"]

MAX_FILE_BYTES = 256 * 2**20
"""Largest manifest that is read. Writers start another one at about 8 MB."""

# Bytes and entries that any file may have, and that a larger one may have for each byte. An entry
# has a random file name, a size and a count: no compression makes it smaller than 8 bytes.
_FREE_BYTES, _MAX_RATIO = 32 * 2**20, 64
_FREE_ENTRIES, _LEAST_BYTES_OF_ENTRY = 50_000, 4

_MOST_ITEMS = 100_000
"""Most items of a list or map in an entry: they have an item for each column or row group."""

_PIECE_BYTES = 4 * 2**20
_LONGEST_NUMBER = 10
_MOST_ZEROS = 2 * _MOST_ITEMS
_NOT_SMALL = 0x81
"""Bits that a byte has if it is a negative number, or the first of several bytes of one."""

_Decoder: Callable[[bytes], Any] = type(new_decoder(b""))
"""PyIceberg's compiled decoder, or the one in Python if that is not installed."""

D = TypeVar("D", bound=StructProtocol)
_Read = Callable[["AvroCursor"], Any]


def bound_avro_files() -> None:
    """Make PyIceberg read manifests and their lists by `BoundedAvroFile`. Driver.

    Also separate the entries that lists of different tables have for one manifest.
    """
    names = vars(manifest)  # PyIceberg looks the names up there
    if names["AvroFile"] is not BoundedAvroFile:
        names |= {"AvroFile": BoundedAvroFile, "_manifest_cache": ExactManifestCache()}


class BoundedAvroFile(AvroFile[D]):
    """A reader of Avro files that other programs may have written, in PyIceberg's place."""

    __slots__ = ("_cursor", "_read", "_records", "_room")

    @override
    def __enter__(self) -> Self:
        """Open the file.

        Raises:
            FileNotFoundError: If it is missing.
            UnreadableError: If it is damaged or too large.
        """
        with self.input_file.open() as stream, explain_avro_errors(self.input_file.location):
            self._cursor = AvroCursor(_read_whole(stream))
            size = self._cursor.size
            self._room = _FREE_BYTES + _MAX_RATIO * size
            self._records = _FREE_ENTRIES + size // _LEAST_BYTES_OF_ENTRY
            self.header = compile_reader(_header_reader())(self._cursor)
            self.schema = self.header.get_schema()
            wanted = self.read_schema or self.schema
            tree = resolve_reader(self.schema, wanted, self.read_types, self.read_enums)
            self._read = compile_reader(tree)
        return self

    @override
    def __iter__(self) -> Iterator[D]:  # type: ignore[override]  # an iterator, as there
        """Yield the records.

        Raises:
            UnreadableError: If the file is damaged, or has too much for its size.
        """
        read, cursor = self._read, self._cursor
        with explain_avro_errors(self.input_file.location):
            decompress = create_decompressor(self.header.meta.get(AVRO_CODEC_KEY))
            sync = self.header.sync
            while cursor.decoder.tell() < cursor.size:
                count, packed = cursor.read_int(), read_bytes(cursor)
                if cursor.read(SYNC_SIZE) != sync:
                    raise ValueError("a block does not end with the file's marker")
                self._records -= count
                if count < 0 or self._records < 0:
                    raise ValueError(f"a block has {count} records, too many for its bytes")
                data = decompress(packed, self._room)
                self._room -= len(data)
                block = AvroCursor(data)
                for _ in range(count):
                    yield read(block)
                if block.decoder.tell() != block.size:
                    raise ValueError("a block has other bytes than its records")


@lru_cache(maxsize=1)
def _header_reader() -> nodes.Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def _read_whole(stream: InputStream) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := stream.read(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def explain_avro_errors(location: str) -> Iterator[None]:
    """Convert errors of a manifest's content.

    Raises:
        UnreadableError: With the location of the manifest.
    """
    try:
        yield
    except (KrishivError, OSError):
        raise
    except Exception as error:
        reason = "it ends too early" if isinstance(error, (EOFError, IndexError)) else str(error)
        raise UnreadableError(
            f"{FORMAT}: the manifest or list of manifests {location} cannot be read: "
            f"{type(error).__name__}: {reason[:500]}. If it is damaged, have the "
            "table's owner restore it, or roll the table back to a snapshot that does not need it"
        ) from error


# --- blocks

_ZSTD_PIECE_BYTES = 2**20

MAX_BLOCK_BYTES = 256 * 2**20
"""Largest block after decompression. Writers keep whole manifests at about 8 MB."""


def create_decompressor(codec: str | None) -> Callable[[bytes, int], bytes]:
    """Return a function that decompresses a block of an Avro file, up to a number of bytes.

    The function raises OptionError if the block has more bytes, or more than `MAX_BLOCK_BYTES`, and
    ValueError or an error of the codec if it is damaged.

    Args:
        codec: Name in the header of the file; None for the spec's default, no compression.

    Raises:
        ValueError: If the codec is not known.
    """
    inflate = _INFLATERS.get(codec or "null")
    if inflate is None:
        raise ValueError(f"its codec {codec!r} is not known")

    def decompress(data: bytes, max_bytes: int) -> bytes:
        most = min(max_bytes, MAX_BLOCK_BYTES)
        found = inflate(data, most + 1)
        if found is None or len(found) > most:
            raise OptionError(
                f"{FORMAT}: a block of one of the table's manifests has more than {most} bytes: no "
                "known writer makes such manifests. It was not read: have the table's owner "
                "rewrite its manifests"
            )
        return found

    return decompress


def _keep(data: bytes, _: int) -> bytes:
    return data


def _inflate(data: bytes, max_bytes: int) -> bytes:
    return _finish_block(zlib.decompressobj(-15), data, max_bytes)  # no header (RFC 1951)


def _bunzip(data: bytes, max_bytes: int) -> bytes:
    return _finish_block(bz2.BZ2Decompressor(), data, max_bytes)


def _finish_block(inflater: Any, data: bytes, max_bytes: int) -> bytes:
    found: bytes = inflater.decompress(data, max_bytes)
    if not inflater.eof and len(found) < max_bytes:
        raise ValueError("a block of an Avro file ends in the middle")
    return found


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    from zstandard import ZstdDecompressor

    found = bytearray()
    with ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        # In pieces, since the reader allocates as much memory as it may return.
        while piece := reader.read(min(_ZSTD_PIECE_BYTES, max_bytes - len(found))):
            found += piece
    return bytes(found)


def _unsnap(data: bytes, max_bytes: int) -> bytes | None:
    """Return the bytes; None if the block announces more, since the codec would allocate them."""
    announced = 0
    for position, byte in enumerate(data[:5]):
        announced |= (byte & 0x7F) << 7 * position
        if byte < 0x80:  # the last byte of the number  # noqa: PLR2004
            break
    codec: Any = KNOWN_CODECS["snappy"]
    return None if announced >= max_bytes else codec.decompress(data)


_INFLATERS: dict[str, Callable[[bytes, int], bytes | None]] = {
    "null": _keep,
    "bzip2": _bunzip,
    "deflate": _inflate,
    "snappy": _unsnap,
    "zstandard": _unzstd,
}


# --- decoding


class AvroCursor:
    """A position in bytes that are decoded; no function reads memory beyond their end.

    PyIceberg's decoder gets zeros after the bytes. A number that is cut off ends at the first zero,
    so that only lengths and counts must be checked before the decoder uses them. A record that took
    zeros for its values is detected after it.

    Attributes:
        data: The bytes.
        size: Number of bytes.
        decoder: PyIceberg's decoder of them.
        read_int: The decoder's method, without a look-up for each number.
    """

    __slots__ = ("_stream", "data", "decoder", "read_int", "size")

    read_int: Callable[[], int]

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        padding = min(self.size, _MOST_ZEROS)
        self.decoder = _Decoder(data + bytes(padding + _LONGEST_NUMBER))
        self.read_int = self.decoder.read_int
        self._stream: StreamingBinaryDecoder | None = None

    def read(self, size: int) -> bytes:
        """Return some bytes.

        Raises:
            EOFError: If there are fewer.
        """
        if not 0 <= size <= self.size - self.decoder.tell():
            raise EOFError
        found: bytes = self.decoder.read(size)
        return found

    def read_ints(self, count: int) -> Sequence[int]:
        """Return some numbers.

        Raises:
            EOFError: If there are fewer bytes.
        """
        if count > self.size - self.decoder.tell():
            raise EOFError
        found: Sequence[int] = self.decoder.read_ints(count)
        return found

    def read_by(self, reader: nodes.Reader) -> Any:
        """Return a value by one of PyIceberg's readers, with its decoder that checks the end."""
        if self._stream is None:
            self._stream = StreamingBinaryDecoder(self.data)
        start = self.decoder.tell()
        self._stream.skip(start - self._stream.tell())
        value = reader.read(self._stream)
        self.decoder.skip(self._stream.tell() - start)
        return value

    def check(self) -> None:
        """Refuse values that were decoded from beyond the end.

        Raises:
            EOFError: If the position is beyond the end.
        """
        if self.decoder.tell() > self.size:
            raise EOFError


def read_bytes(cursor: AvroCursor) -> bytes:
    """Return bytes that follow their length."""
    return cursor.read(cursor.read_int())


def _read_text(cursor: AvroCursor) -> str:
    return cursor.read(cursor.read_int()).decode()


def _read_counts(cursor: AvroCursor) -> Iterator[int]:
    """Yield the number of items of each block of a list or map."""
    total = 0
    while count := _read_count(cursor, total):
        total += count
        yield count


def _read_count(cursor: AvroCursor, before: int) -> int:
    """Return the number of items of the next block of a list or map; 0 at its end."""
    count = cursor.read_int()
    if count < 0:
        count = -count
        cursor.read_int()  # the bytes of the block
    if before + count > _MOST_ITEMS:
        raise ValueError(f"a list or map has more than {_MOST_ITEMS} items")
    return count


def _read_int_list(cursor: AvroCursor) -> list[int]:
    found: list[int] = []
    for count in _read_counts(cursor):
        found.extend(cursor.read_ints(count))
    return found


def _read_int_map(cursor: AvroCursor) -> Mapping[int, int]:
    count = total = _read_count(cursor, 0)
    if not count:
        return nodes.EMPTY_DICT
    parts = [cursor.read_ints(2 * count)]
    while count := _read_count(cursor, total):
        parts.append(cursor.read_ints(2 * count))
        total += count
    return LazyDict(parts)


def _read_bytes_map(cursor: AvroCursor) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    data, decoder = cursor.data, cursor.decoder
    while count := _read_count(cursor, len(found)):
        start = pos = decoder.tell()
        for _ in range(count):
            key, size = data[pos], data[pos + 1]
            # Nearly always, key and size have one byte each and are not negative.
            if not (key | size) & _NOT_SMALL:
                first = pos + 2
                pos = first + (size >> 1)
                found[key >> 1] = data[first:pos]
            else:
                decoder.skip(pos - start)
                key = cursor.read_int()
                found[key] = read_bytes(cursor)
                start = pos = decoder.tell()
        decoder.skip(pos - start)
        cursor.check()
    return found


# --- PyIceberg's readers as functions


def compile_reader(reader: nodes.Reader) -> _Read:
    """Return a function that reads an `AvroCursor` as a reader of PyIceberg does."""
    for kind, compile_kind in _COMPILERS.items():
        if isinstance(reader, kind):
            return compile_kind(reader)
    return lambda cursor: cursor.read_by(reader)


def _read_int(cursor: AvroCursor) -> int:
    return cursor.read_int()


def _compile_option(reader: nodes.OptionReader) -> _Read:
    inner = compile_reader(reader.option)
    return lambda cursor: inner(cursor) if cursor.read_int() > 0 else None


def _compile_struct(reader: nodes.StructReader) -> _Read:
    # Options and numbers are read here: calling a function takes as long as reading them.
    fields: list[tuple[int | None, bool, _Read | None]] = []
    for position, field in reader.field_readers:
        is_option = isinstance(field, nodes.OptionReader)
        read_field = compile_reader(
            field.option if isinstance(field, nodes.OptionReader) else field
        )
        fields.append((position, is_option, None if read_field is _read_int else read_field))
    size = 1 + max((position for position, *_ in fields if position is not None), default=-1)
    create = reader.create_struct

    def read(cursor: AvroCursor) -> Any:
        values: list[Any] = [None] * size
        read_int = cursor.read_int
        for position, is_option, read_field in fields:
            if is_option and read_int() <= 0:
                continue
            value = read_int() if read_field is None else read_field(cursor)
            if position is not None:
                values[position] = value
        return create(*values)

    return read


def _compile_enum(reader: EnumReader) -> _Read:
    inner, enum = compile_reader(reader.reader), reader.enum
    members = {member.value: member for member in enum}  # type: ignore[attr-defined]  # a class

    def read(cursor: AvroCursor) -> Any:
        value = inner(cursor)
        member = members.get(value)
        return enum(value) if member is None else member

    return read


def _compile_list(reader: nodes.ListReader) -> _Read:
    if isinstance(reader.element, nodes.IntegerReader):
        return _read_int_list
    element = compile_reader(reader.element)

    def read(cursor: AvroCursor) -> list[Any]:
        return [element(cursor) for count in _read_counts(cursor) for _ in range(count)]

    return read


def _compile_map(reader: nodes.MapReader) -> _Read:
    if isinstance(reader.key, nodes.IntegerReader):
        if isinstance(reader.value, nodes.IntegerReader):
            return _read_int_map
        if isinstance(reader.value, nodes.BinaryReader):
            return _read_bytes_map
    key, value = compile_reader(reader.key), compile_reader(reader.value)

    def read(cursor: AvroCursor) -> dict[Any, Any]:
        return {key(cursor): value(cursor) for count in _read_counts(cursor) for _ in range(count)}

    return read


_COMPILERS: dict[type[nodes.Reader], Callable[[Any], _Read]] = {
    nodes.IntegerReader: lambda _: _read_int,
    nodes.StringReader: lambda _: _read_text,
    nodes.BinaryReader: lambda _: read_bytes,
    nodes.OptionReader: _compile_option,
    nodes.StructReader: _compile_struct,
    nodes.ListReader: _compile_list,
    nodes.MapReader: _compile_map,
    EnumReader: _compile_enum,
}
