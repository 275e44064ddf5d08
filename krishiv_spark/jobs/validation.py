"""Validation of a file against its model, with the position of each mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from krishiv_spark.errors import ManifestError
from krishiv_spark.jobs.models import NOT_USED
from krishiv_spark.jobs.variables import Variables, dialect_of, substitute_sql
from krishiv_spark.jobs.yaml_nodes import NodePath, Problems, TextMark, YamlNode, read_yaml
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.messages.terminal import show_text
from krishiv_spark.options.references import read_small

__all__ = ["find_unused_keys", "read_nodes", "validate_model"]


_WORDS = {
    "missing": "is missing",
    "string_type": "must be a text",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "list_type": "must be a list",
    "dict_type": "must be a mapping, of 'key: value'",
    "model_type": "must be a mapping, of 'key: value'",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
}
"""Texts for the kinds of errors of pydantic."""

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_nodes(file: Path, problems: Problems, variables: Variables) -> YamlNode:
    """Return the values of a file, with their positions.

    Raises:
        ManifestError: If it cannot be read, or is not a YAML mapping.
    """
    try:
        text = read_small(file)
    except (OSError, ValueError) as error:
        raise ManifestError(show_text(f"{problems.file}: cannot be read: {error}")) from None
    variables.read_from(text)

    def substitute(value: str, path: NodePath, find: Callable[[str], str | None]) -> str:
        function = find("python") if path[-2:-1] == ("arguments",) else None
        dialect = dialect_of(path, function and variables.substitute(function))
        if dialect is None:
            return variables.substitute(value)
        return substitute_sql(value, variables, dialect)

    tree = read_yaml(text, problems, substitute)
    if not tree.entries:
        problems.add(tree.mark, "there is no mapping, of 'key: value', in this file")
        raise problems.error()
    return tree


def validate_model(
    model: type[ModelT], tree: YamlNode, problems: Problems
) -> tuple[ModelT | None, YamlNode]:
    """Return the model of a file, with the part of the file from which it was created.

    Each mistake is reported, and its part is removed, so that the remaining parts can be checked
    too.

    Returns:
        The model, or None if no model can be created; and the tree without the removed parts.
    """
    with_errors: set[TextMark] = set()
    told = False
    while True:
        try:
            return model.model_validate(tree.plain()), tree
        except ValidationError as error:
            mistakes = error.errors(include_url=False, include_context=True)
        for mistake in mistakes:
            mark, text = _explain(model, tree, mistake)
            # A removed part may be required by the part around it.
            if not told or (mistake["type"] == "value_error" and mark not in with_errors):
                problems.add(mark, text)
        told = True
        blamed = [tree.existing_path(_blamed_path(mistake)) for mistake in mistakes]
        with_errors |= {tree.mark_of(path[:-1]) for path in blamed}
        pruned = _without(tree, set(blamed))
        if pruned is None:
            return None, tree
        tree = pruned


def _blamed_path(mistake: Any) -> NodePath:
    path: NodePath = tuple(mistake["loc"])
    return path[:-1] if mistake["type"] == "missing" else path


def _without(tree: YamlNode, paths: set[NodePath]) -> YamlNode | None:
    """Return a tree without some of its values; None if nothing would remain."""
    if () in paths:
        return None
    # Start at the end, since removing an item shifts those after it.
    for path in sorted(paths, key=_order, reverse=True):
        tree = tree.at(path[:-1], methodcaller("without", path[-1]))
    return tree


def _order(path: NodePath) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (0, part) for part in path]


def _explain(model: type[BaseModel], tree: YamlNode, mistake: Any) -> tuple[TextMark, str]:
    path: NodePath = tuple(mistake["loc"])
    # Pydantic's paths contain tags of unions, and the own name of a field with an alias.
    name = str(path[-1]) if path else "the file"
    kind, context = str(mistake["type"]), mistake.get("ctx") or {}
    if kind == "extra_forbidden":
        known = _keys(_model_at(model, path[:-1]))
        text = f"unknown key {name!r}; {did_you_mean(name, known, f'known: {_listing(known)}')}"
    elif kind == "literal_error":
        expected = str(context.get("expected", ""))
        given = str(mistake.get("input"))
        text = f"{name!r} = {given!r}: give {expected}"
    elif kind == "model_type" and (shape := _shape_of(_model_at(model, path))):
        text = f"{name!r} must be a mapping, such as {shape}"
    elif kind == "string_pattern_mismatch":
        text = f"{name!r} = {str(mistake.get('input'))!r} {_shape(str(context.get('pattern')))}"
    else:
        said = str(mistake["msg"]).removeprefix("Value error, ")
        of_part = isinstance(mistake.get("input"), dict) and kind == "value_error"
        text = f"{name!r} {_WORDS[kind]}" if kind in _WORDS else f"{name!r}: {said}"
        text = said if of_part else text
    return tree.mark_of(path), text


_MOST_KEYS = 4
"""Maximum number of keys in a message: more would hide the mistake."""


def _shape_of(model: type[BaseModel] | None) -> str:
    """Return the keys that a part of a file needs; all of its keys if it needs none."""
    if model is None:
        return ""
    fields = [(field.alias or name, field) for name, field in model.model_fields.items()]
    keys = [key for key, field in fields if field.is_required()] or [key for key, _ in fields]
    shown = ", ".join(f"{key}: …" for key in keys[:_MOST_KEYS])
    return f"{{{shown}}}" if keys else ""


def _shape(pattern: str) -> str:
    if ":" in pattern and "flare" not in pattern:
        return "must be 'module:function'"
    if "flare" in pattern:
        return "is not a supported stack: use 'flare:6.0'"
    return "is not a valid name: start with a letter, followed by letters, digits and '_'"


def _listing(names: list[str]) -> str:
    return ", ".join(sorted(names))


def _keys(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], path: NodePath) -> type[BaseModel] | None:
    """Return the model of the part of a file at a path."""
    found: Any = model
    for part in path:
        if isinstance(part, int) or (hidden := _field(found, part)) is None:
            continue
        found = hidden
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _field(model: type[BaseModel], key: str) -> Any:
    for name, field in model.model_fields.items():
        if key == (field.alias or name):
            return next(_models_in(field.annotation), None)
    # A tag of a union is in the path, but is not a field. The title of a model is its tag.
    return None


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) in {list, dict, Union, UnionType} or get_args(kind):
        for part in get_args(kind):
            yield from _models_in(part)


def find_unused_keys(model: BaseModel, path: NodePath = ()) -> Iterator[NodePath]:
    """Yield the keys of a file that only another platform uses."""
    for name in model.model_fields_set:
        field = type(model).model_fields[name]
        here = (*path, field.alias or name)
        value = getattr(model, name)
        if NOT_USED in field.metadata:
            yield here
        for number, part in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(part, BaseModel):
                yield from find_unused_keys(
                    part, (*here, number) if isinstance(value, list) else here
                )
