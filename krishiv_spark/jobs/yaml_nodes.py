"""YAML values with their positions in a file, and the mistakes found at these positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import yaml

from krishiv_spark.errors import ManifestError
from krishiv_spark.messages.terminal import show_text

__all__ = ["NodePath", "Problems", "TextMark", "YamlNode", "read_yaml"]


_MOST = 500
_LONGEST = 2_000
"""Maximum length of a message: a value may be as long as the file, and be shown often."""


@dataclass(frozen=True, order=True)
class TextMark:
    """A position in a text; line and column start at 1."""

    line: int
    column: int


@dataclass
class Problems:
    """The errors of one file.

    Attributes:
        file: Its name, as the user knows it.
        hide: A function that removes values from a text that must not be shown.
        found: The errors, each once.
    """

    file: str
    hide: Callable[[str], str] = str
    found: set[tuple[TextMark, str]] = field(default_factory=set)

    def add(self, mark: TextMark, text: str) -> None:
        """Add an error: its position, and a text that states the mistake and its correction.

        Raises:
            ManifestError: If the maximum number of errors is reached.
        """
        shown = show_text(" ".join(self.hide(text).splitlines()))
        if len(shown) > _LONGEST:
            shown = f"{shown[:_LONGEST]}... ({len(shown)} characters)"
        self.found.add((mark, shown))
        if len(self.found) >= _MOST:
            raise self.error()

    def lines(self) -> list[str]:
        """Return lines ``file:line:column: text``, in the order of the file."""
        file = show_text(self.file)
        return [f"{file}:{mark.line}:{mark.column}: {text}" for mark, text in sorted(self.found)]

    def error(self) -> ManifestError:
        """Return all mistakes as one error."""
        return ManifestError("\n".join(self.lines()))

    def raise_if_any(self) -> None:
        """Raise ManifestError if there is a mistake."""
        if self.found:
            raise self.error()


NodePath = tuple[str | int, ...]
"""The keys and indexes of the path from a value to an inner one."""

_BOOLEANS = {"true": True, "false": False}
_NULLS = {"", "~", "null"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DEEPEST = 40
_MOST_VALUES = 10_000
_LONG_TEXT = 1_000
"""Number of characters of a text that count as one more value."""

_MERGE = "tag:yaml.org,2002:merge"


class _Entry(NamedTuple):
    key: TextMark
    value: YamlNode


@dataclass(frozen=True)
class YamlNode:
    """A value of a YAML file.

    Attributes:
        value: A text, number, boolean or None; a tuple of nodes; or a mapping of them.
        mark: The position of its start.
        keys: For a mapping, the position of each key.
    """

    value: Any
    mark: TextMark
    keys: Mapping[str, TextMark] = field(default_factory=dict)

    @property
    def entries(self) -> Mapping[str, YamlNode]:
        """The entries of a mapping; empty for another value."""
        return self.value if isinstance(self.value, Mapping) else {}

    @property
    def items(self) -> tuple[YamlNode, ...]:
        """The items of a list; empty for another value."""
        return self.value if isinstance(self.value, tuple) else ()

    def plain(self) -> Any:
        """Return the value without positions."""
        if isinstance(self.value, Mapping):
            return {key: inner.plain() for key, inner in self.value.items()}
        if isinstance(self.value, tuple):
            return [inner.plain() for inner in self.value]
        return self.value

    def mark_of(self, path: Iterable[str | int]) -> TextMark:
        """Return the position of an inner value or its key, or of the nearest existing one."""
        here, mark = self, self.mark
        for part in self.existing_path(path):
            inner = here._inner(part)
            if inner is not None:
                mark = here.keys[part] if isinstance(part, str) else inner.mark
                here = inner
        return mark

    def existing_path(self, path: Iterable[str | int]) -> NodePath:
        """Return the parts of a path that exist here; others are skipped."""
        here, real = self, list[str | int]()
        for part in path:
            inner = here._inner(part)
            if inner is not None:
                here = inner
                real.append(part)
        return tuple(real)

    def names(self, within: Collection[str], *, inside: bool = False) -> Iterator[str]:
        """Yield the texts of all keys ``name`` anywhere inside the values of some keys."""
        for key, inner in self.entries.items():
            if inside and key == "name" and isinstance(inner.value, str):
                yield inner.value
            yield from inner.names(within, inside=inside or key in within)
        for item in self.items:
            yield from item.names(within, inside=inside)

    def without(self, *parts: str | int) -> YamlNode:
        """Return a mapping or list without some of its keys or indexes."""
        if isinstance(self.value, tuple):
            kept = (item for number, item in enumerate(self.value) if number not in parts)
            return replace(self, value=tuple(kept))
        return replace(
            self,
            value={key: inner for key, inner in self.entries.items() if key not in parts},
            keys={key: mark for key, mark in self.keys.items() if key not in parts},
        )

    def with_keys(self, added: Mapping[str, tuple[TextMark, YamlNode]]) -> YamlNode:
        """Return a mapping with further keys, each with its position."""
        return replace(
            self,
            value={**self.entries, **{key: inner for key, (_, inner) in added.items()}},
            keys={**self.keys, **{key: mark for key, (mark, _) in added.items()}},
        )

    def at(self, path: NodePath, change: Callable[[YamlNode], YamlNode]) -> YamlNode:
        """Return a copy with the value at a path changed, if there is one."""
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

    def _inner(self, part: str | int) -> YamlNode | None:
        if isinstance(part, str):
            return self.entries.get(part)
        return self.items[part] if part < len(self.items) else None


Substitute: TypeAlias = "Callable[[str, NodePath, Callable[[str], str | None]], str]"
"""Returns the new text for a text, its path, and a function that returns the text of a key of the
mapping around the text's own mapping, unchanged; None if it has no such text."""


def read_yaml(text: str, problems: Problems, substitute: Substitute) -> YamlNode:
    """Read one document.

    Booleans are ``true`` and ``false``. A value that resembles a number without being written as
    one is a text, so that options keep their spelling. Time and memory are bounded for every text:
    an alias counts as all values that it stands for.

    Args:
        text: The content of the file.
        problems: Receives duplicate keys, and the errors of `substitute`.
        substitute: Called with each text; returns the new text, or raises ValueError.

    Raises:
        ManifestError: If it is not YAML, or has too many values.
    """
    try:
        node, loader = _compose(text)
        if node is None:
            return YamlNode({}, TextMark(1, 1))
        return _TreeReader(loader, problems, substitute).read_node(node, ())
    except _TooMuchError as error:
        problems.add(_mark(error.problem_mark), str(error.problem))
    except yaml.MarkedYAMLError as error:
        problems.add(_mark(error.problem_mark), _reason(error))
    except yaml.reader.ReaderError as error:
        line_start = text.rfind("\n", 0, error.position) + 1
        mark = TextMark(text.count("\n", 0, line_start) + 1, error.position - line_start + 1)
        problems.add(mark, f"this is no YAML: it contains the character U+{error.character:04X}")
    raise problems.error()


def _compose(text: str) -> tuple[yaml.Node | None, _Loader]:
    loader = _Loader(text)
    try:
        return loader.get_single_node(), loader
    except (ValueError, OverflowError) as error:
        # PyYAML computes with the values that it reads, such as a character with the number
        # 0x110000.
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=loader.get_mark()) from None
    finally:
        loader.dispose()


class _TooMuchError(yaml.MarkedYAMLError):
    """The values of a document are too many, too long or nested too deeply."""


class _Budget:
    """A counter of the values of one document."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def spend(self, part: Any, depth: int = 0) -> None:
        """Count one value; a long text counts as several.

        Args:
            part: The node, or the event from which it is composed.
            depth: Number of values that contain it.

        Raises:
            _TooMuchError: If there are too many values, or this one is nested too deeply.
        """
        self._left -= 1
        text = getattr(part, "value", None)
        if isinstance(text, str):
            self._left -= len(text) // _LONG_TEXT
        if self._left < 0:
            problem = f"there are more than {_MOST_VALUES} values here, with each alias in full"
            raise _TooMuchError(problem=problem, problem_mark=part.start_mark)
        if depth > _DEEPEST:
            problem = f"values are nested more than {_DEEPEST} levels deep"
            raise _TooMuchError(problem=problem, problem_mark=part.start_mark)


class _Loader(yaml.SafeLoader):
    """A loader that composes a bounded number of nodes, nested to a bounded depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._budget = _Budget()
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._budget.spend(self.peek_event(), self._depth)  # type: ignore[no-untyped-call]  # PyYAML
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _TreeReader:
    def __init__(
        self,
        loader: yaml.SafeLoader,
        problems: Problems,
        substitute: Substitute,
    ) -> None:
        self._loader = loader
        self._problems = problems
        self._substitute = substitute
        self._budget = _Budget()
        self._around: list[Mapping[str, tuple[Any, yaml.Node]]] = []

    def read_node(self, node: yaml.Node, path: NodePath) -> YamlNode:
        """Return the value of a node, with its inner values.

        Args:
            node: The node.
            path: The keys and indexes of its path.
        """
        self._budget.spend(node, len(path))  # with an anchor, a value can contain itself
        mark = _mark(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            entries = self._entries(node, path)
            values = {key: entry.value for key, entry in entries.items()}
            return YamlNode(values, mark, {key: entry.key for key, entry in entries.items()})
        if isinstance(node, yaml.SequenceNode):
            items = (self.read_node(item, (*path, n)) for n, item in enumerate(node.value))
            return YamlNode(tuple(items), mark)
        return YamlNode(self._scalar(node, mark, path), mark)

    def _entries(self, node: yaml.MappingNode, path: NodePath) -> dict[str, _Entry]:
        pairs = self._pairs(node, len(path))
        self._around.append(pairs)
        entries = {
            key: _Entry(_mark(at), self.read_node(inner, (*path, key)))
            for key, (at, inner) in pairs.items()
        }
        self._around.pop()
        return entries

    def _find_around(self, key: str) -> str | None:
        _, node = self._around[-2].get(key, (None, None)) if len(self._around) > 1 else (None, None)
        return str(node.value) if isinstance(node, yaml.ScalarNode) else None

    def _pairs(self, node: yaml.MappingNode, depth: int) -> dict[str, tuple[Any, yaml.Node]]:
        """Return the keys of a mapping, each with its mark and node; merged keys (``<<``) first.

        A mapping's own key takes precedence over a merged one, and an earlier mapping of a merged
        list over a later one. PyYAML's ``flatten_mapping`` keeps every copy of a merged key, so
        that a file of a few lines could create lists of any length.
        """
        own: dict[str, tuple[Any, yaml.Node]] = {}
        merges: list[yaml.Node] = []
        for key, inner in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(_mark(key.start_mark), "a key must be a text")
            elif key.tag == _MERGE:
                merges.append(inner)
            else:
                if key.value in own:
                    self._problems.add(_mark(key.start_mark), f"{key.value!r} occurs twice")
                own[key.value] = (key.start_mark, inner)
        merged: dict[str, tuple[Any, yaml.Node]] = {}
        for mapping in (each for inner in reversed(merges) for each in self._mappings(inner)):
            self._budget.spend(mapping, depth)
            for name, pair in self._pairs(mapping, depth + 1).items():
                self._budget.spend(mapping)
                merged.setdefault(name, pair)
        return {**merged, **own}

    def _mappings(self, merged: yaml.Node) -> Iterator[yaml.MappingNode]:
        for each in merged.value if isinstance(merged, yaml.SequenceNode) else [merged]:
            if isinstance(each, yaml.MappingNode):
                yield each
            else:
                text = "'<<' merges a mapping, or a list of mappings"
                self._problems.add(_mark(each.start_mark), text)

    def _scalar(self, node: yaml.Node, mark: TextMark, path: NodePath) -> Any:
        text = str(node.value)
        try:
            changed = self._substitute(text, path, self._find_around)
        except ValueError as error:
            self._problems.add(mark, str(error))
            return text
        is_plain = getattr(node, "style", None) is None and changed == text
        return _parse_scalar(text) if is_plain else changed


def _parse_scalar(text: str) -> Any:
    if text.lower() in _NULLS:
        return None
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    return int(text) if _NUMBER.fullmatch(text) else text


def _mark(found: Any) -> TextMark:
    return TextMark(1, 1) if found is None else TextMark(found.line + 1, found.column + 1)


def _reason(error: yaml.MarkedYAMLError) -> str:
    parts = [part for part in (error.context, error.problem) if part]
    text = f"this is no YAML: {', '.join(parts)}"
    if error.problem != _COLON:
        return text
    return f"{text}; put a text that contains ': ' in quotes, such as 'a STRUCT<id: STRING>'"


_COLON = "mapping values are not allowed here"
"""PyYAML's message if a plain text continues after a colon."""
