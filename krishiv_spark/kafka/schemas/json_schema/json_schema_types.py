"""JSON Schemas of a registry as columns. Driver, executor.

A schema defines names, types and required fields; other keywords, such as `minimum` and `pattern`,
are not checked. A type that no column can have is refused by the path of its field.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.errors import SchemaError

__all__ = ["parse_json_schema", "parse_written_schema", "read_title"]

_SIMPLE = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "null": pa.null(),
}
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}

_CHOICES = ("allOf", "anyOf", "oneOf")
_OF_COLUMNS = ("properties", "patternProperties", "additionalProperties", "items")
"""Words that describe columns, unless their value is true or false."""
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-05", "draft-06", "draft-07")
"""Dialects in which the words beside a reference have no meaning."""

_Path: TypeAlias = "tuple[str, ...]"


def parse_json_schema(text: str, references: Sequence[tuple[str, str]] = ()) -> pa.Field:
    """Parse a schema; return the type of its values, and whether they may be null.

    Args:
        text: The schema.
        references: The name and text of each schema that it refers to.

    Raises:
        SchemaError: If a text is no valid JSON, or if a type cannot be a column's: a type that
            contains itself, a union of several types, an object whose fields are not declared, or
            are declared beside a reference to another object. It names the field.
    """
    return parse_written_schema(text, references)[0]


def parse_written_schema(
    text: str, references: Sequence[tuple[str, str]] = ()
) -> tuple[pa.Field, Collection[tuple[str, ...]]]:
    """Return the same, and the paths of fields that each record must have, with null for none.

    A path has "[]" for the elements of an array, and "{}" for the values of a map.

    Raises:
        SchemaError: As `parse_json_schema`.
    """
    documents = {name: _load(each) for name, each in references}
    root = _load(text)
    parser = _SchemaParser({**documents, "": root})
    kind, nullable = parser.parse(root, "", (), ())
    return pa.field("value", kind, nullable=nullable), parser.required_nulls


def read_title(text: str) -> str:
    """Return the title of a schema; empty without one.

    Raises:
        SchemaError: If the text is no valid JSON.
    """
    root = _load(text)
    return str(root.get("title", "")) if isinstance(root, dict) else ""


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaError(f"not a valid JSON Schema ({error}): {text[:200]}") from None


class _SchemaParser:
    """A parser of schemas that refer to each other.

    Args:
        documents: The schemas by name; the main one's is empty.
    """

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self.required_nulls: set[_Path] = set()
        """Fields that each record must have, with null for none."""

    def parse(
        self, schema: Any, document: str, path: _Path, seen: _Path
    ) -> tuple[pa.DataType, bool]:
        """Return the type of a schema, and True if values may be null.

        Args:
            schema: The schema.
            document: Name of the document that it is in.
            path: Names of fields that lead to it.
            seen: The references that contain it.
        """
        if not isinstance(schema, dict):
            raise self._refused(path, "any value is allowed")
        if "$ref" in schema:
            beside = self._check_beside("$ref", schema, document, path)
            return self._follow(beside, document, path, seen)
        for word in _CHOICES:
            if word in schema:
                beside = self._check_beside(word, schema, document, path)
                return self._choose(word, beside, document, path, seen)
        kinds = schema.get("type", _guess(schema))
        kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
        others = [each for each in kinds if each != "null"] or kinds
        if set(others) == {"integer", "number"}:
            others = ["number"]
        if len(others) != 1:
            reason = f"it has several types ({', '.join(map(str, kinds))})"
            raise self._refused(path, reason if kinds else "any value is allowed")
        return self._parse_one(others[0], schema, document, path, seen), "null" in kinds

    def _parse_one(
        self, kind: str, schema: Mapping[str, Any], document: str, path: _Path, seen: _Path
    ) -> pa.DataType:
        if kind == "string":
            if schema.get("contentEncoding") == "base64":
                return pa.binary()
            return _FORMATS.get(schema.get("format", ""), pa.string())
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if kind == "array":
            items = schema.get("items")
            if not isinstance(items, dict):
                raise self._refused(path, "its elements have no single type ('items')")
            item, nullable = self.parse(items, document, (*path, "[]"), seen)
            return pa.list_(pa.field("element", item, nullable=nullable))
        if kind != "object":
            raise self._refused(path, f"{kind!r} is no type of JSON")
        return self._parse_object(schema, document, path, seen)

    def _parse_object(
        self, schema: Mapping[str, Any], document: str, path: _Path, seen: _Path
    ) -> pa.DataType:
        fields, more = schema.get("properties") or {}, schema.get("additionalProperties")
        if not fields and isinstance(more, dict):
            item, nullable = self.parse(more, document, (*path, "{}"), seen)
            return pa.map_(pa.string(), pa.field("value", item, nullable=nullable))
        if not fields:
            raise self._refused(path, "it has no 'properties', and any fields are allowed")
        required, found = schema.get("required") or (), []
        for name, each in fields.items():
            kind, nullable = self.parse(each, document, (*path, name), seen)
            found.append(pa.field(name, kind, nullable=nullable or name not in required))
            if nullable and name in required:
                self.required_nulls.add((*path, name))
        return pa.struct(found)

    def _check_beside(
        self, word: str, schema: Mapping[str, Any], document: str, path: _Path
    ) -> Mapping[str, Any]:
        """Refuse words that describe columns beside a word that refers to other schemas.

        Returns:
            The schema, or only its reference if the words beside it have no meaning.

        Raises:
            SchemaError: If there is one.
        """
        main = self._documents.get(document)
        dialect = str(main.get("$schema", "")) if isinstance(main, dict) else ""
        if word == "$ref" and any(each in dialect for each in _OLD_DRAFTS):
            return {"$ref": schema["$ref"]}
        for other in (*_OF_COLUMNS, *_CHOICES):
            given = schema.get(other)
            if other != word and given is not None and not isinstance(given, bool):
                raise self._refused(path, f"it has {other!r} beside {word!r}")
        return schema

    def _choose(
        self, word: str, schema: Mapping[str, Any], document: str, path: _Path, seen: _Path
    ) -> tuple[pa.DataType, bool]:
        """Return the only schema of a list that is not null."""
        schemas = schema[word]
        others = [each for each in schemas if each != {"type": "null"}]
        if len(others) != 1:
            raise self._refused(path, f"{word!r} has several schemas")
        kind, nullable = self.parse(_require(schema, others[0]), document, path, seen)
        return kind, nullable or len(others) < len(schemas)

    def _follow(
        self, schema: Mapping[str, Any], document: str, path: _Path, seen: _Path
    ) -> tuple[pa.DataType, bool]:
        reference = schema["$ref"]
        name, _, pointer = reference.partition("#")
        target = f"{name or document}#{pointer.rstrip('/')}"
        if target in seen or (target == "#" and document == ""):
            raise self._refused(path, f"it contains itself by the reference {reference!r}")
        found = self._documents.get(name or document)
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            raise self._refused(path, f"the reference {reference!r} leads to no schema")
        return self.parse(_require(schema, found), name or document, path, (*seen, target))

    def _refused(self, path: _Path, reason: str) -> SchemaError:
        where = f"the field {'.'.join(path)}" if path else "the value"
        return SchemaError(
            f"{where} of the JSON Schema cannot be a column: {reason}. Read the value as bytes, or "
            "set 'valueFormat' = 'json' with the fields to read"
        )


def _require(outer: Mapping[str, Any], inner: Any) -> Any:
    """Return a schema with the required fields of the one that refers to it."""
    if not outer.get("required") or not isinstance(inner, dict):
        return inner
    return {**inner, "required": [*(inner.get("required") or ()), *outer["required"]]}


def _guess(schema: Mapping[str, Any]) -> str | None:
    """Return the type of a schema that names none: that of its properties or its values."""
    if "properties" in schema:
        return "object"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return "string" if values and all(isinstance(each, str) for each in values) else None
