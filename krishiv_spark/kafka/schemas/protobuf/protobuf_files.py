"""Protobuf schemas of a registry as descriptors: texts of .proto files, through Google's compiler.

The compiler is that of `grpcio-tools` (extra `protobuf`): it knows every syntax and edition, and
its wheels exist for each Python that this package supports. Schemas are compiled once per process.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = [
    "compile_proto",
    "encode_index",
    "encode_indexes",
    "encode_varint",
    "find_message",
    "list_messages",
    "message_class",
    "read_descriptors",
]

_MAIN = "krishiv/registered.proto"
"""Name of the file of a schema. Its references have the names by which it imports them."""

_ERROR = re.compile(rf"^\S*{_MAIN}:(\d+):\d+: ")

_SEVEN_BITS = 0x7F
_STANDARD = "google/protobuf/"

_LONGEST_S = 60.0
"""Seconds that the compiler may take: it needs 0.1, most of them to start."""


@lru_cache(maxsize=256)
def compile_proto(schema: RegisteredSchema) -> Any:
    """Return the file descriptor of a schema. Driver, planner, executor.

    Raises:
        OptionError: If the compiler is not installed.
        SchemaError: If the text is no valid schema, or a file that it imports is missing.
    """
    _check_installed()
    main = _parse_encoded(schema.text)
    if main is None:
        return read_descriptors(_run_compiler(schema), _MAIN)
    references = {name: _parse_encoded(text) for name, text in schema.references}
    try:
        return _load_encoded(main, references)
    except (ImportError, KeyError, TypeError) as error:
        raise SchemaError(f"not a valid Protobuf schema ({error}): {main.name}") from None


def read_descriptors(encoded: bytes, name: str) -> Any:
    """Return the descriptor of a file among encoded ones, of which each follows its imports."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(encoded).file:
        pool.Add(each)
    return pool.FindFileByName(name)


def _check_installed() -> None:
    try:
        import grpc_tools  # noqa: F401
        from google import protobuf  # noqa: F401
    except ImportError as error:
        raise OptionError(
            f"Protobuf schemas need a library that is missing ({error}): "
            "pip install 'krishiv-spark[registry,protobuf]'"
        ) from None


# --- files that Confluent's client for Python has registered


def _parse_encoded(text: str) -> Any:
    """Return the descriptor of a file that is registered in Base64; None for a text.

    Confluent's client for Python registers files in this form, and registries other than
    Confluent's return them unchanged.
    """
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    return found


def _load_encoded(main: Any, references: dict[str, Any]) -> Any:
    """Return the descriptor of a file, after the files that it imports."""
    from google.protobuf import descriptor_pool

    pool, loaded = descriptor_pool.DescriptorPool(), set()

    def load(file: Any) -> None:
        for name in file.dependency:
            if name not in loaded:
                loaded.add(name)
                load(references.get(name) or _find_standard(name))
        pool.Add(file)

    load(main)
    return pool.FindFileByName(main.name)


def _find_standard(name: str) -> Any:
    """Return the descriptor of a file of Protobuf itself."""
    if not name.startswith(_STANDARD):
        raise KeyError(f"{name} is imported, and is no reference of the schema")
    from google.protobuf import descriptor_pb2

    module = importlib.import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found


# --- texts


def _run_compiler(schema: RegisteredSchema) -> bytes:
    """Return the encoded descriptors of a schema and of all that it imports."""
    with tempfile.TemporaryDirectory(prefix="krishiv-proto-") as folder:
        for name, text in (*schema.references, (_MAIN, schema.text)):
            _write(Path(folder), name, text)
        out = Path(folder, "descriptors")
        found = _start_compiler(
            f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", _MAIN
        )
        if found.returncode == 0:
            return out.read_bytes()
    raise SchemaError(
        f"not a valid Protobuf schema ({_find_error(found.stderr)}): {schema.text[:200]}"
    )


def _find_error(output: str) -> str:
    """Return the compiler's last error without its folder: the one that names a line."""
    lines = [each for each in output.splitlines() if _ERROR.search(each)]
    found = [each for each in lines if "warning: " not in each]
    return _ERROR.sub(r"line \1: ", found[-1]) if found else "it cannot be compiled"


def _start_compiler(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the compiler in a process, since it writes its errors and warnings to a file only."""
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    path = os.pathsep.join(each for each in sys.path if each)
    try:
        return subprocess.run(  # noqa: S603  the arguments are this module's own
            command,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise SchemaError(
            f"the Protobuf schema was not compiled within {_LONGEST_S:.0f} s"
        ) from None


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file by the name of its import, which the registry has chosen."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SchemaError(f"the Protobuf schema refers to {name!r}, which is no name of a file")
    file = folder.joinpath(*path.parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


# --- messages of a file


def list_messages(file: Any) -> list[Any]:
    """Return the descriptors of all messages of a file, the outer ones before those within."""
    return list(_iter_messages(_outermost(file)))


def _outermost(file: Any) -> Any:
    """Return the messages of a file that are in no other, in the order of the text."""
    return file.message_types_by_name.values()


def _iter_messages(messages: Any) -> Iterator[Any]:
    for each in messages:
        if not each.GetOptions().map_entry:
            yield each
            yield from _iter_messages(each.nested_types)


def find_message(file: Any, name: str | None) -> Any:
    """Return the descriptor of a message by its name, with the package or without; or the first.

    Raises:
        SchemaError: If the file has no message, or none of this name.
    """
    messages = list_messages(file)
    if not messages:
        raise SchemaError("the Protobuf schema has no message")
    if name is None:
        return messages[0]
    found = [each for each in messages if name in {each.full_name, _local_name(each)}]
    if not found:
        names = [each.full_name for each in messages]
        hint = did_you_mean(name, names, f"there are {', '.join(names)}")
        raise SchemaError(f"the Protobuf schema has no message {name!r}; {hint}")
    return found[0]


def _local_name(message: Any) -> str:
    package = message.file.package
    return str(message.full_name.removeprefix(f"{package}." if package else ""))


def encode_indexes(message: Any) -> tuple[bytes, ...]:
    """Return the forms of the header by which serializers name a message of its file.

    They write the number of the message, and before it those of the messages that contain it.
    Clients in Java do not count the messages that a map implies, and those in other languages do.

    Raises:
        SchemaError: If clients name two messages in the same way.
    """
    forms = {_find_path(message, counts_maps=counts) for counts in (False, True)}
    for other in list_messages(message.file):
        paths = {_find_path(other, counts_maps=counts) for counts in (False, True)}
        if other.full_name != message.full_name and paths & forms:
            raise SchemaError(
                f"serializers write {message.full_name} and {other.full_name} with the same "
                "number, since some of them count maps: write one of them with another schema"
            )
    headers = [_zigzag(len(path)) + b"".join(map(_zigzag, path)) for path in sorted(forms)]
    return (b"\0", *headers) if (0,) in forms else tuple(headers)


def encode_index(message: Any) -> bytes:
    """Return the header by which the serializer in Java names a message of its file.

    Raises:
        SchemaError: As `encode_indexes`.
    """
    encode_indexes(message)  # refuses what readers could take for another message
    path = _find_path(message, counts_maps=False)
    return b"\0" if path == (0,) else _zigzag(len(path)) + b"".join(map(_zigzag, path))


def _find_path(message: Any, *, counts_maps: bool) -> tuple[int, ...]:
    path: list[int] = []
    while message.containing_type is not None:
        outer = message.containing_type
        path.insert(0, _index(message, outer.nested_types, counts_maps=counts_maps))
        message = outer
    first = _index(message, _outermost(message.file), counts_maps=counts_maps)
    return (first, *path)


def _index(message: Any, among: Any, *, counts_maps: bool) -> int:
    names = [each.full_name for each in among if counts_maps or not each.GetOptions().map_entry]
    return names.index(message.full_name)


def _zigzag(number: int) -> bytes:
    """Return a number of 0 or more as Avro and Confluent's serializers write it."""
    return encode_varint(number << 1)


def encode_varint(number: int) -> bytes:
    """Return a number of 0 or more as a varint."""
    out = bytearray()
    while number > _SEVEN_BITS:
        out.append(number & _SEVEN_BITS | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message_class(message: Any) -> Any:
    """Return Google's class of a message."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(message)
