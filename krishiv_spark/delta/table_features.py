"""Features of a table's protocol: those that this package can honour, and refusals of others.

A feature in the protocol may be unused. The library checks the features of the protocol that it
does not know at all, but writes rows to tables whose constraints, generated columns or mapped names
it ignores. So this module has its own lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from krishiv_spark.delta.column_types import read_fields
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.errors import OptionError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["check_readable", "check_writable"]

_WRITER = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
}
"""Features of writers, of which `_list_used` finds those that are used and cannot be honoured."""

_READER = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}

_NEWEST_READER, _NEWEST_WRITER = 3, 7
_LEGACY_WRITER = 5
"""Versions above it require features by number that the library does not have."""

_MAPPING = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."


def check_writable(table: DeltaTable, path: str, *, replaces: bool) -> None:
    """Refuse a table whose features this package cannot honour. Planner and committer.

    Args:
        table: The table.
        path: Its location, for messages.
        replaces: True if rows are removed.

    Raises:
        OptionError: If the table uses such a feature; the text names it.
    """
    protocol = table.protocol()
    version = protocol.min_writer_version
    if version > _NEWEST_WRITER or _LEGACY_WRITER < version < _NEWEST_WRITER:
        raise _to_error(path, f"needs writer version {version}", "upgrade this package")
    _refuse_others(path, "writers", protocol.writer_features or (), _WRITER)
    _refuse_used(path, _list_used(table))
    if replaces and table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        raise _to_error(path, "is append-only ('delta.appendOnly')", "append, or unset it")


def check_readable(table: DeltaTable, path: str) -> None:
    """Refuse a table whose features this package cannot read. Driver.

    Raises:
        OptionError: If the table uses such a feature; the text names it.
    """
    protocol = table.protocol()
    if protocol.min_reader_version > _NEWEST_READER:
        raise _to_error(
            path, f"needs reader version {protocol.min_reader_version}", "upgrade this package"
        )
    _refuse_others(path, "readers", protocol.reader_features or (), _READER)
    _refuse_used(path, _list_mapping(table.metadata().configuration))


def _refuse_others(path: str, role: str, given: Collection[str], known: Collection[str]) -> None:
    others = sorted(set(given) - set(known))
    if others:
        names = ", ".join(map(repr, others))
        raise _to_error(
            path,
            f"has the features {names}, which {role} must honour",
            "drop them (ALTER TABLE … DROP FEATURE), or use delta-spark for it",
        )


def _refuse_used(path: str, used: Iterator[tuple[str, str]]) -> None:
    found = next(used, None)
    if found is not None:
        raise _to_error(path, *found)


def _list_used(table: DeltaTable) -> Iterator[tuple[str, str]]:
    """Yield what a table uses and this package does not honour, each with advice."""
    settings = table.metadata().configuration
    yield from _list_mapping(settings)
    for key in sorted(settings):
        if key.startswith(_CONSTRAINT):
            name = key.removeprefix(_CONSTRAINT)
            yield (
                f"has the CHECK constraint {name!r}, which nothing here would check",
                f"drop it (ALTER TABLE … DROP CONSTRAINT {name}), or use delta-spark for it",
            )
    for field in read_fields(table):
        yield from _list_used_by_field(field, field["name"])


def _list_mapping(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    mode = settings.get(_MAPPING, "none")
    if mode != "none":
        yield (
            f"has column mapping ('{_MAPPING}' = {mode!r}): its files have other names of columns",
            "copy it into a table without, or use delta-spark for it",
        )


_OF_FIELDS = {
    "delta.invariants": "has an invariant that nothing here would check",
    "delta.generationExpression": "is generated, and nothing here would compute it",
    "delta.identity.start": "is an identity column that nothing here would number",
    "CURRENT_DEFAULT": "has a default value that nothing here would fill in",
    # VARCHAR(n) or CHAR(n), also within: the column itself is a string in the schema.
    "__CHAR_VARCHAR_TYPE_STRING": "has a declared length that nothing here would check",
}


def _list_used_by_field(field: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, what in _OF_FIELDS.items():
        if key in field["metadata"]:
            yield f"has the column {path!r}, which {what}", "use delta-spark for it"
    kind = field["type"]
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        for child in kind["fields"]:
            yield from _list_used_by_field(child, f"{path}.{child['name']}")


def _to_error(path: str, what: str, advice: str) -> OptionError:
    return OptionError(f"{FORMAT}: table {path} {what}: {advice}. Nothing was read or written")
