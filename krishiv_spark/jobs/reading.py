"""From the text of a file to a model, with each mistake at its place."""

from __future__ import annotations

from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from krishiv_spark.errors import ManifestError
from krishiv_spark.jobs.located import Located, LocatedPath, read_yaml
from krishiv_spark.jobs.problems import Problems, TextMark
from krishiv_spark.jobs.sql_texts import dialect_of, substitute_sql
from krishiv_spark.jobs.values import NOT_USED
from krishiv_spark.jobs.variables import Variables
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.messages.terminal import show_text
from krishiv_spark.options.references import read_small

__all__ = ["not_used", "read_tree", "validated"]

_WORDS = {
    "missing": "is missing",
    "string_type": "has to be a text",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "list_type": "has to be a list",
    "dict_type": "has to be a mapping, of 'key: value'",
    "model_type": "has to be a mapping, of 'key: value'",
    "bool_parsing": "has to be true or false",
    "bool_type": "has to be true or false",
    "int_parsing": "has to be a whole number",
    "int_type": "has to be a whole number",
}
"""By pydantic's kind of a mistake."""

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_tree(file: Path, problems: Problems, variables: Variables) -> Located:
    """The values of a file, with their places.

    Raises:
        ManifestError: If it cannot be read, or is no YAML of a mapping.
    """
    try:
        text = read_small(file)
    except (OSError, ValueError) as error:
        raise ManifestError(show_text(f"{problems.file}: cannot be read: {error}")) from None
    variables.read_from(text)

    def substitute(value: str, path: LocatedPath) -> str:
        dialect = dialect_of(path)
        if dialect is None:
            return variables.substitute(value)
        return substitute_sql(value, variables, dialect)

    tree = read_yaml(text, problems, substitute)
    if not tree.entries:
        problems.add(tree.mark, "there is no mapping, of 'key: value', in this file")
        raise problems.error()
    return tree


def validated(
    model: type[ModelT], tree: Located, problems: Problems
) -> tuple[ModelT | None, Located]:
    """The model of a file, with the part of the file that it is made of.

    What is wrong is told, and left out, so that the rest can be looked at too.

    Returns:
        None if nothing can be made of it; and the tree, without what was left out.
    """
    maimed: set[TextMark] = set()
    told = False
    while True:
        try:
            return model.model_validate(tree.plain()), tree
        except ValidationError as error:
            mistakes = error.errors(include_url=False, include_context=True)
        for mistake in mistakes:
            mark, text = _explained(model, tree, mistake)
            # What is left out may be missed by the part around it.
            if not told or (mistake["type"] == "value_error" and mark not in maimed):
                problems.add(mark, text)
        told = True
        blamed = [tree.real_path(_blamed(mistake)) for mistake in mistakes]
        maimed |= {tree.mark_of(path[:-1]) for path in blamed}
        pruned = _without(tree, set(blamed))
        if pruned is None:
            return None, tree
        tree = pruned


def _blamed(mistake: Any) -> LocatedPath:
    path: LocatedPath = tuple(mistake["loc"])
    return path[:-1] if mistake["type"] == "missing" else path


def _without(tree: Located, paths: set[LocatedPath]) -> Located | None:
    """A tree without some of its values; None if the whole of it would go."""
    if () in paths:
        return None
    # From the end, since a list closes up behind what goes.
    for path in sorted(paths, key=_order, reverse=True):
        tree = tree.at(path[:-1], methodcaller("without", path[-1]))
    return tree


def _order(path: LocatedPath) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (0, part) for part in path]


def _explained(model: type[BaseModel], tree: Located, mistake: Any) -> tuple[TextMark, str]:
    path: LocatedPath = tuple(mistake["loc"])
    # Pydantic has tags of unions in its paths, and its own name of a field with an alias.
    name = str(path[-1]) if path else "the file"
    kind, context = str(mistake["type"]), mistake.get("ctx") or {}
    if kind == "extra_forbidden":
        known = _keys(_model_at(model, path[:-1]))
        text = f"unknown key {name!r}; {did_you_mean(name, known, f'known: {_listing(known)}')}"
    elif kind == "literal_error":
        expected = str(context.get("expected", ""))
        given = str(mistake.get("input"))
        text = f"{name!r} = {given!r}: give {expected}"
    elif kind == "string_pattern_mismatch":
        text = f"{name!r} = {str(mistake.get('input'))!r} {_shape(str(context.get('pattern')))}"
    else:
        said = str(mistake["msg"]).removeprefix("Value error, ")
        of_part = isinstance(mistake.get("input"), dict) and kind == "value_error"
        text = f"{name!r} {_WORDS[kind]}" if kind in _WORDS else f"{name!r}: {said}"
        text = said if of_part else text
    return tree.mark_of(path), text


def _shape(pattern: str) -> str:
    if ":" in pattern and "flare" not in pattern:
        return "has to be 'module:function'"
    if "flare" in pattern:
        return "is no stack that runs here: 'flare:6.0' does"
    return "is no name: begin with a letter; letters, digits and '_' may follow"


def _listing(names: list[str]) -> str:
    return ", ".join(sorted(names))


def _keys(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], path: LocatedPath) -> type[BaseModel] | None:
    """The model of the part of a file that a path leads to."""
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
    # The tag of a union: which of its models, its title says.
    return None


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) in {list, dict, Union, UnionType} or get_args(kind):
        for part in get_args(kind):
            yield from _models_in(part)


def not_used(model: BaseModel, path: LocatedPath = ()) -> Iterator[LocatedPath]:
    """Keys of a file that say something to another platform only."""
    for name in model.model_fields_set:
        field = type(model).model_fields[name]
        here = (*path, field.alias or name)
        value = getattr(model, name)
        if NOT_USED in field.metadata:
            yield here
        for number, part in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(part, BaseModel):
                yield from not_used(part, (*here, number) if isinstance(value, list) else here)
