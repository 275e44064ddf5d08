"""YAML as values that know where they stand in their file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

from krishiv_spark.jobs.problems import Problems, TextMark

__all__ = ["Located", "LocatedPath", "read_yaml"]

LocatedPath = tuple[str | int, ...]
"""Keys and numbers that lead from a value to one inside it."""

_BOOLEANS = {"true": True, "false": False}
_NULLS = {"", "~", "null"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DEEPEST = 40


class _Entry(NamedTuple):
    key: TextMark
    value: Located


@dataclass(frozen=True)
class Located:
    """A value of a YAML file.

    Attributes:
        value: A text, number, boolean or None; a tuple of located values; or a mapping of them.
        mark: Where it begins.
        keys: Of a mapping, where each key stands.
    """

    value: Any
    mark: TextMark
    keys: Mapping[str, TextMark] = field(default_factory=dict)

    @property
    def entries(self) -> Mapping[str, Located]:
        """What a mapping holds; nothing for another value."""
        return self.value if isinstance(self.value, Mapping) else {}

    @property
    def items(self) -> tuple[Located, ...]:
        """What a list holds; nothing for another value."""
        return self.value if isinstance(self.value, tuple) else ()

    def plain(self) -> Any:
        """The value without its marks."""
        if isinstance(self.value, Mapping):
            return {key: inner.plain() for key, inner in self.value.items()}
        if isinstance(self.value, tuple):
            return [inner.plain() for inner in self.value]
        return self.value

    def mark_of(self, path: Iterable[str | int]) -> TextMark:
        """Where a value inside stands, or the key of it; the nearest one that there is."""
        here, mark = self, self.mark
        for part in self.real_path(path):
            inner = here._inner(part)
            if inner is not None:
                mark = here.keys[part] if isinstance(part, str) else inner.mark
                here = inner
        return mark

    def real_path(self, path: Iterable[str | int]) -> LocatedPath:
        """As much of a path as leads to something; what is no key here is passed over."""
        here, real = self, list[str | int]()
        for part in path:
            inner = here._inner(part)
            if inner is not None:
                here = inner
                real.append(part)
        return tuple(real)

    def names(self, within: Collection[str], *, inside: bool = False) -> Iterator[str]:
        """Every text behind the key ``name`` that stands somewhere within one of some keys."""
        for key, inner in self.entries.items():
            if inside and key == "name" and isinstance(inner.value, str):
                yield inner.value
            yield from inner.names(within, inside=inside or key in within)
        for item in self.items:
            yield from item.names(within, inside=inside)

    def without(self, *parts: str | int) -> Located:
        """A mapping or list without some of its keys or numbers."""
        if isinstance(self.value, tuple):
            kept = (item for number, item in enumerate(self.value) if number not in parts)
            return replace(self, value=tuple(kept))
        return replace(
            self,
            value={key: inner for key, inner in self.entries.items() if key not in parts},
            keys={key: mark for key, mark in self.keys.items() if key not in parts},
        )

    def having(self, added: Mapping[str, tuple[TextMark, Located]]) -> Located:
        """A mapping with further keys, each with where it stands."""
        return replace(
            self,
            value={**self.entries, **{key: inner for key, (_, inner) in added.items()}},
            keys={**self.keys, **{key: mark for key, (mark, _) in added.items()}},
        )

    def at(self, path: LocatedPath, change: Callable[[Located], Located]) -> Located:
        """The same, with the value at a path changed, if there is one."""
        if not path:
            return change(self)
        first = path[0]
        inner = self._inner(first)
        if inner is None:
            return self
        changed = inner.at(path[1:], change)
        if isinstance(first, str):
            return replace(self, value={**self.entries, first: changed})
        return replace(self, value=(*self.items[:first], changed, *self.items[first + 1 :]))

    def _inner(self, part: str | int) -> Located | None:
        if isinstance(part, str):
            return self.entries.get(part)
        return self.items[part] if part < len(self.items) else None


def read_yaml(text: str, problems: Problems, substitute: Callable[[str], str]) -> Located:
    """Read one document.

    Booleans are ``true`` and ``false``; what looks like a number but is not written as one is a
    text, so that options keep their spelling.

    Args:
        text: Of the file.
        problems: Told of keys that are there twice, and of what `substitute` refuses.
        substitute: Given each text that is a value; raises ValueError with what is wrong.

    Raises:
        ManifestError: If it is no YAML.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        problems.add(_mark(error.problem_mark), _said(error))
        raise problems.error() from None
    except yaml.YAMLError as error:
        problems.add(TextMark(1, 1), f"this is no YAML: {error}".partition("\n")[0])
        raise problems.error() from None
    finally:
        loader.dispose()
    if node is None:
        return Located({}, TextMark(1, 1))
    return _TreeReader(loader, problems, substitute).located(node, 0)


class _TreeReader:
    def __init__(
        self, loader: yaml.SafeLoader, problems: Problems, substitute: Callable[[str], str]
    ) -> None:
        self._loader = loader
        self._problems = problems
        self._substitute = substitute

    def located(self, node: yaml.Node, depth: int) -> Located:
        mark = _mark(node.start_mark)
        if depth > _DEEPEST:  # by an anchor, a value can hold itself
            self._problems.add(mark, f"values stand more than {_DEEPEST} levels deep")
            return Located(None, mark)
        if isinstance(node, yaml.MappingNode):
            entries = self._entries(node, depth)
            values = {key: entry.value for key, entry in entries.items()}
            return Located(values, mark, {key: entry.key for key, entry in entries.items()})
        if isinstance(node, yaml.SequenceNode):
            return Located(tuple(self.located(inner, depth + 1) for inner in node.value), mark)
        return Located(self._scalar(node, mark), mark)

    def _entries(self, node: yaml.MappingNode, depth: int) -> dict[str, _Entry]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value != "<<" and str(key.value) in seen:
                self._problems.add(_mark(key.start_mark), f"{key.value!r} is there twice")
            seen.add(str(key.value))
        self._loader.flatten_mapping(node)  # merges ``<<``; its values come first
        return {
            str(key.value): _Entry(_mark(key.start_mark), self.located(inner, depth + 1))
            for key, inner in node.value
        }

    def _scalar(self, node: yaml.Node, mark: TextMark) -> Any:
        text = str(node.value)
        try:
            changed = self._substitute(text)
        except ValueError as error:
            self._problems.add(mark, str(error))
            return text
        is_plain = getattr(node, "style", None) is None and changed == text
        return _typed(text) if is_plain else changed


def _typed(text: str) -> Any:
    if text.lower() in _NULLS:
        return None
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    return int(text) if _NUMBER.fullmatch(text) else text


def _mark(found: Any) -> TextMark:
    return TextMark(1, 1) if found is None else TextMark(found.line + 1, found.column + 1)


def _said(error: yaml.MarkedYAMLError) -> str:
    parts = [part for part in (error.context, error.problem) if part]
    return f"this is no YAML: {', '.join(parts)}"
