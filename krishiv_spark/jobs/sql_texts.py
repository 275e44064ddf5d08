"""Variables in texts of a job file that are SQL: a value never becomes code.

Inside quotes a value is a part of the literal, with any characters. Outside of them it has
to be an identifier, a number or an interval. The text is read as Spark's lexer reads it
(``SqlBaseLexer.g4``), with each variable as one character, before any value is in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from krishiv_spark.jobs.variables import VARIABLE, Variables

__all__ = ["Dialect", "dialect_of", "has_encoded_literals", "substitute_sql"]

_Path = Sequence[str | int]


class Dialect(Enum):
    """A language of texts in a job file.

    Attributes:
        QUERY: A query of Spark's; all of it cannot be the value of a variable.
        SPARK: A part of Spark's SQL, such as columns; all of it can.
        OTHER: The SQL of another system, whose escapes are not known.
    """

    QUERY = "query"
    SPARK = "spark"
    OTHER = "other"


_OPTIONS = {
    "rowfilter": Dialect.OTHER,
    "row-filter": Dialect.OTHER,
    "valueschema": Dialect.SPARK,
    "customschema": Dialect.SPARK,
}
"""By the last part of an option's name, in lower case."""

_OF_DATABASES = {"dbtable", "query", "preparequery", "sessioninitstatement"}
"""Options of Spark's JDBC source, and of others like it."""

_STEPS = {"steps", "sequence"}
_COLUMNS = {
    "schema": {"inputs"},
    "column": {"watermark"},
    "deduplicate": {"inputs", *_STEPS},
    "keys": {"outputs"},
    "partitionBy": {"outputs", "options", "iceberg"},
    "sort": {"outputs", "options", "iceberg"},
}
"""By key, the keys that are around it."""


def dialect_of(path: _Path) -> Dialect | None:
    """Return the language of the text at a path of a job file; None for a plain text.

    Args:
        path: Keys and numbers that lead to it.
    """
    keys = [part for part in path if isinstance(part, str)]
    key, around = keys[-1] if keys else "", keys[-2] if len(keys) > 1 else ""
    if key == "sql" and around in _STEPS:
        return Dialect.QUERY
    if around in _COLUMNS.get(key, ()):
        return Dialect.SPARK
    if "options" not in keys[:-1]:
        return None
    if around == "options" and key.lower() in _OF_DATABASES:
        return Dialect.OTHER
    return _OPTIONS.get(key.lower().rpartition(".")[2])


def substitute_sql(text: str, values: Variables, dialect: Dialect) -> str:
    """Return a text with the values of its variables in it; ``$${`` stands for ``${`` itself.

    Raises:
        ValueError: If a name has no value and no default, or a value would become code.
    """
    if dialect is not Dialect.QUERY and VARIABLE.fullmatch(text):
        return values.substitute(text)  # nothing is around the value that it could change
    return _Template(text, values, dialect).substituted()


_ENCODED = re.compile(r"\\U000[0-9A-F]{5}")


def has_encoded_literals(sql: str) -> bool:
    """Return True if a literal has a character of a value by its number, in eight digits."""
    return _ENCODED.search(sql) is not None


# --- the text

_WORD = re.compile(r"\w+")
_CODE = re.compile(r"[^$'\"`\-/\w]+")
_IN_LITERAL = re.compile(r"[^$'\"`\\]+")
_LINE_COMMENT = re.compile(r"--(?:\\\n|[^\r\n])*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_QUOTES = {"'", '"', "`"}
_RAW = {"r", "R"}

_UNIT = r"(?:year|month|week|day|hour|minute|second|millisecond|microsecond)s?"
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?:bd|[bslfd])?"
_PLAIN = re.compile(
    rf"(?:{_NUMBER}|\w+(?:\.\w+)*|(?:interval\s+)?{_NUMBER}\s+{_UNIT}(?:\s+{_NUMBER}\s+{_UNIT})*)",
    re.IGNORECASE,
)
"""The forms that a value may have outside of quotes."""

_UNSAFE = re.compile(r"[^\w .,:;/()+*=<>@#%&?!|~^\[\]-]")
"""Characters of a value that are not put into a literal of Spark's as they are."""


_BEGUN_NUMBER = re.compile(r"\\(?:[01][0-7]?|u[0-9A-Fa-f]{0,3}|U[0-9A-Fa-f]{0,7})(?=\$)")
"""An escape with a number that lacks digits; those of a value must not become its own."""


@dataclass
class _Template:
    """A text that is read from its beginning to its end."""

    text: str
    values: Variables
    dialect: Dialect
    at: int = 0
    parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Behind the last bracket there is no variable, and each beginning would look for its end.
        self._last = self.text.rfind("}")
        self._escapes = "\\" if "\\" in self.text else ""
        self._is_begun = False  # the number of an escape, see `_BEGUN_NUMBER`

    def substituted(self) -> str:
        """Return the text with its values."""
        while self.at < len(self.text):
            self._read_code()
        return "".join(self.parts)

    def _read_code(self) -> None:
        text, at = self.text, self.at
        if self._read_variable(self._put_code):
            return
        if (comment := _LINE_COMMENT.match(text, at)) is not None:
            self._put_comment(comment.end())
        elif text.startswith("/*", at) and not text.startswith("/*+", at):
            self._put_comment(self._end_of_comment())
        elif text[at] in _QUOTES:
            self._read_literal(text[at])
        elif (code := _CODE.match(text, at)) is not None:
            self._put(code[0], code.end())
        elif (word := _WORD.match(text, at)) is not None:
            quote = text[word.end() : word.end() + 1]
            if self.dialect is not Dialect.OTHER and word[0] in _RAW and quote in {"'", '"'}:
                self._read_raw(quote)
            else:
                self._put(word[0], word.end())
        else:
            self._put(text[at], at + 1)

    def _put(self, part: str, end: int) -> None:
        self.parts.append(part)
        self.at = end

    def _read_variable(self, put: Callable[[str, str, bool], None]) -> bool:
        """Put a variable, or ``$${``, if one is here.

        Args:
            put: Given the name, its value, and whether that is a default in the file itself.
        """
        found = self._variable_at(self.at)
        if found is None:
            return False
        self.at = found.end()
        if found[1]:
            self.parts.append(found[1])
        else:
            value, is_default = self.values.value_of(found)
            if self.dialect is Dialect.OTHER and re.search(r"[\\\r\n]", value + self._escapes):
                raise ValueError(
                    f"the value of ${{{found[2]}}} or the text around it has a backslash or a line "
                    "break, and it is not known what they mean in this text: leave them out, or "
                    "select the rows by a step with 'sql' and 'args'"
                )
            put(found[2], value, is_default)
        return True

    def _variable_at(self, at: int) -> re.Match[str] | None:
        is_possible = at < self._last or self.text.startswith("$${", at)
        return VARIABLE.match(self.text, at) if is_possible else None

    def _put_code(self, name: str, value: str, is_default: bool) -> None:
        if not is_default and _PLAIN.fullmatch(value) is None:
            raise ValueError(_refusal(name, self.dialect))
        # Or `-` and `-1` would begin a comment, and `r` change the literal after it.
        before = next((part[-1] for part in reversed(self.parts) if part), "")
        if value[:1] in {"+", "-"} and before == value[0]:
            self.parts.append(" ")
        self.parts.append(value)
        if (word := _WORD.match(self.text, self.at)) is not None:
            self._put(word[0], word.end())  # of the same word: no sign of a literal after it
        if self.text[self.at : self.at + 1] in _QUOTES:
            self.parts.append(" ")

    # --- comments

    def _end_of_comment(self) -> int:
        """Return the end of a comment in brackets, which may contain others."""
        depth, end = 0, self.at
        for edge in _COMMENT_EDGE.finditer(self.text, self.at):
            depth += 1 if edge[0] == "/*" else -1
            end = edge.end()
            if depth == 0:
                return end
        return len(self.text)

    def _put_comment(self, end: int) -> None:
        """Put a comment without values, which could end it; they are used all the same."""
        comment = self.text[self.at : end]
        self.values.substitute(comment)
        self._put(comment.replace("$", ""), end)

    # --- literals

    def _read_literal(self, quote: str) -> None:
        self._put(quote, self.at + 1)
        put = self._put_name if quote == "`" else self._put_part
        text = self.text
        while self.at < len(text):
            if self._read_variable(lambda name, value, _: put(name, value, quote)):
                continue
            at = self.at
            if text.startswith(quote * 2, at):
                self._put(quote * 2, at + 2)
            elif text[at] == quote:
                self._put(quote, at + 1)
                return
            elif (plain := _IN_LITERAL.match(text, at)) is not None:
                self._put(plain[0], plain.end())
            elif quote != "`" and text[at] == "\\":
                self._read_escape()
                continue
            else:
                self._put(text[at], at + 1)
            self._is_begun = False

    def _read_escape(self) -> None:
        """Put a backslash and its character, or the digits of a number up to a variable."""
        text, at = self.text, self.at
        begun = _BEGUN_NUMBER.match(text, at)
        after = self._variable_at(at + 1)
        self._is_begun = begun is not None
        if begun is not None:
            self._put(begun[0], begun.end())
        elif after is None:
            self._put(text[at : at + 2], at + 2)
        else:  # it is no escape of the value's first letter, and `$${` is one after it too
            self._put("\\" if after[1] else _encoded("\\"), at + 1)

    def _read_raw(self, quote: str) -> None:
        """Put a literal without escapes, as one with escapes if it has a variable."""
        begin = self.at
        text, kept = self.text, len(self.parts)
        self._put(quote, self.at + 2)
        has_variable = False
        while self.at < len(text) and text[self.at] != quote:
            if self._read_variable(lambda name, value, _: self._put_part(name, value, quote)):
                has_variable = True
            else:
                self._put(_encoded(text[self.at]), self.at + 1)
        self._put(text[self.at : self.at + 1], self.at + 1)
        if not has_variable:
            del self.parts[kept:]
            self.parts.append(text[begin : self.at])

    def _put_part(self, name: str, value: str, quote: str) -> None:
        if self.dialect is not Dialect.OTHER:
            part = _encoded(value)
            if self._is_begun and value:
                part = _by_number(value[0]) + _encoded(value[1:])
                self._is_begun = False
        else:
            part = value.replace(quote, quote * 2)
        self.values.note_form(name, part)
        self.parts.append(part)

    def _put_name(self, name: str, value: str, quote: str) -> None:
        if "${" in value:
            raise ValueError(f"the value of ${{{name}}} has '${{', which no name of a column has")
        part = value.replace(quote, quote * 2)
        self.values.note_form(name, part)
        self.parts.append(part)


def _encoded(text: str) -> str:
    """Return a text as a part of a literal, in quotes of any kind."""
    return _UNSAFE.sub(lambda found: _by_number(found[0]), text)


def _by_number(character: str) -> str:
    return f"\\U{ord(character):08X}"


def _refusal(name: str, dialect: Dialect) -> str:
    text = (
        f"the value of ${{{name}}} would become SQL: outside quotes it must be an identifier, a "
        "number or an interval"
    )
    if dialect is not Dialect.QUERY:
        return f"{text}, or all of this text"
    return (
        f"{text}. To pass any other value, write :{name.lower()} in the query, and beside 'sql' "
        f"'args: {{{name.lower()}: ${{{name}}}}}'"
    )
