"""Variables ``${NAME}`` and ``${NAME:-default}`` in the texts of job files, including SQL.

A value never becomes code. Inside quotes it is a part of the literal, and may contain any
characters. Outside of quotes it must be an identifier, a number or an interval. An SQL text is
split as by Spark's lexer (``SqlBaseLexer.g4``), with each variable as one character, before values
are inserted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import quote

from krishiv_spark.messages.suggestions import suggest

__all__ = [
    "VARIABLE",
    "Dialect",
    "Variables",
    "dialect_of",
    "has_encoded_literals",
    "substitute_sql",
]


VARIABLE = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""``$${``, whose first group is ``${``; or a variable, with its name and default."""

_QUOTED = re.compile(r"(did you mean )?('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\\.")
"""Quoted parts, and escaped characters outside of quotes, so that an unpaired quote is not tried
from each escape."""

_MOST_CHARACTERS = 16 * 2**20
"""Limit of all values that are inserted into a file, since an alias repeats a text."""

_SHORTEST_HIDDEN = 4
"""Shorter values are hidden only if they are quoted alone: they occur in too many words."""

_NEVER_HIDDEN = {"", "true", "false", "null"}


class Variables:
    """Values by name, from the command line, then from the environment.

    Messages contain the name of a variable instead of its value, see `hide`. The author of a job
    file may not be the owner of the environment, as in a check of an external contribution.

    Args:
        given: The values on the command line.
        environment: The environment of the process.
    """

    def __init__(self, given: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._given = given
        self._environment = environment
        self._used: dict[str, str] = {}
        self._forms: dict[str, set[str]] = {}
        self._size = 0
        self._written = ""
        self._hidden: re.Pattern[str] | None = None

    def read_from(self, text: str) -> None:
        """Add the text of a file in which `substitute` will insert values."""
        self._written += text

    def substitute(self, text: str) -> str:
        """Return a text with the values inserted; ``$${`` is replaced by ``${``.

        Raises:
            ValueError: If a name has no value and no default, or the values are too long.
        """
        # There is no variable after the last bracket. Without this split, each ``${`` there would
        # search for its end.
        front, bracket, rest = text.rpartition("}")
        return VARIABLE.sub(self._text_of, front + bracket) + rest.replace("$${", "${")

    def find_unused(self) -> Iterator[tuple[str, str]]:
        """Yield the given names that no text uses, each with a suggestion."""
        for name in sorted(self._given.keys() - self._used.keys()):
            near = suggest(name, self._used)
            hint = f"did you mean {near!r}?" if near else f"used: {_join_names(self._used)}"
            yield name, hint

    def hide(self, text: str) -> str:
        """Return a text with ``${NAME}`` instead of each value that was used.

        A quoted part of a value is hidden too, unless the file itself contains it.
        """
        if not any(map(_is_hidden, self._used.values())):
            return text
        if self._hidden is None:
            forms = set().union(*map(self._forms_of, self._used))
            longest_first = sorted(forms, key=len, reverse=True)
            pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
            self._hidden = re.compile(pattern, re.IGNORECASE)
        shown = self._hidden.sub(lambda found: self._name_of(found[0]), text)
        return _QUOTED.sub(self._without_part, shown)

    def _without_part(self, found: re.Match[str]) -> str:
        part = (found[2] or "")[1:-1]
        if found[1] or not part or part in self._written:
            return found[0]
        for name, value in self._used.items():
            is_part = len(part) >= _SHORTEST_HIDDEN and part.lower() in value.lower()
            if _is_hidden(value) and (part == value or is_part):
                return f"{found[2][0]}${{{name}}}{found[2][0]}"
        return found[0]

    def _name_of(self, form: str) -> str:
        forms = ((name, self._forms_of(name)) for name in self._used)
        lowered = form.lower()
        named = (name for name, found in forms if any(one.lower() == lowered for one in found))
        return f"${{{next(named)}}}"

    def _text_of(self, match: re.Match[str]) -> str:
        return match[1] or self.value_of(match)[0]

    def value_of(self, match: re.Match[str]) -> tuple[str, bool]:
        """Return the value of a variable, and whether it is the default in the file.

        Args:
            match: A match of `VARIABLE`, other than ``$${``.

        Raises:
            ValueError: If the name has no value and no default, or the values are too long.
        """
        name, default = match[2], match[3]
        found = self._given.get(name, self._environment.get(name))
        self._note(name, found or "")
        if not found and default is not None:  # an empty value too, as in a shell
            return default, True
        if found is None:
            raise ValueError(
                f"the variable {name} has no value: give --set {name}=..., export it, or write "
                f"${{{name}:-a default}}"
            )
        return found, False

    def note_form(self, name: str, form: str) -> None:
        """Record a spelling that the value of a variable has in a text, so that `hide` finds it."""
        if form != self._used.get(name):
            self._forms.setdefault(name, set()).add(form)
            self._hidden = None

    def _forms_of(self, name: str) -> set[str]:
        spellings = {self._used[name], *self._forms.get(name, ())}
        return {form for one in spellings for form in _forms(one)}

    def _note(self, name: str, value: str) -> None:
        self._size += len(value)
        if self._size > _MOST_CHARACTERS:
            raise ValueError(
                f"the values of variables make more than {_MOST_CHARACTERS} characters in this file"
            )
        if name not in self._used:
            self._used[name] = value
            self._hidden = None


def _is_hidden(value: str) -> bool:
    return value.lower() not in _NEVER_HIDDEN


def _forms(value: str) -> set[str]:
    """Return the spellings in which a value may occur in a message, whole or line by line."""
    forms = {
        value,
        value.strip(),
        " ".join(value.split()),
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe="", errors="surrogatepass"),
        *map(str.strip, value.splitlines()),
    }
    long = (form for form in forms if len(form) >= _SHORTEST_HIDDEN)
    return {form for form in long if _is_hidden(form)}


def _join_names(names: Mapping[str, str]) -> str:
    return ", ".join(sorted(names)) or "none"


_Path = Sequence[str | int]


class Dialect(Enum):
    """The language of a text in a job file.

    Attributes:
        QUERY: A query for Spark. A variable cannot be the whole text.
        SPARK: A part of Spark's SQL, such as columns. A variable can be the whole text.
        OTHER: The SQL of another system, whose escapes are unknown.
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
"""The language of an option, by the last part of its name in lower case."""

_OF_DATABASES = {"dbtable", "query", "preparequery", "sessioninitstatement"}
"""Options of Spark's JDBC source, and of similar sources."""

_STEPS = {"steps", "sequence"}
_COLUMNS = {
    "schema": {"inputs"},
    "column": {"watermark"},
    "deduplicate": {"inputs", *_STEPS},
    "keys": {"outputs"},
    "partitionBy": {"outputs", "options", "iceberg"},
    "sort": {"outputs", "options", "iceberg"},
}
"""By key, the keys that may contain it."""


_RULES = {"krishiv_spark:with_rules", "krishiv_spark.sinks.fanout.letter_rules:with_rules"}
"""The functions of steps whose arguments are conditions in SQL."""


def dialect_of(path: _Path, function: str | None = None) -> Dialect | None:
    """Return the language of the text at a path of a job file; None for a plain text.

    Args:
        path: The keys and indexes of the path.
        function: For an argument of a step, the function that the step calls.
    """
    keys = [part for part in path if isinstance(part, str)]
    key, around = keys[-1] if keys else "", keys[-2] if len(keys) > 1 else ""
    if around == "arguments" and function in _RULES:
        return Dialect.SPARK
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
    """Return an SQL text with the values inserted; ``$${`` is replaced by ``${``.

    Raises:
        ValueError: If a name has no value and no default, or a value would become code.
    """
    if dialect is not Dialect.QUERY and VARIABLE.fullmatch(text):
        return values.substitute(text)  # there is no other code that the value could change
    return _Template(text, values, dialect).substitute()


_ENCODED = re.compile(r"\\U000[0-9A-F]{5}")


def has_encoded_literals(sql: str) -> bool:
    """Return True if a literal contains an eight-digit escape, as values are encoded."""
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
"""Characters of a value that are escaped in a literal of Spark."""


_BEGUN_NUMBER = re.compile(r"\\(?:[01][0-7]?|u[0-9A-Fa-f]{0,3}|U[0-9A-Fa-f]{0,7})(?=\$)")
"""A numeric escape that lacks digits. The first digits of a value must not complete it."""


@dataclass
class _Template:
    """The state of a substitution, which reads a text from start to end."""

    text: str
    values: Variables
    dialect: Dialect
    at: int = 0
    parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # There is no variable after the last bracket. Otherwise each ``${`` there would search for
        # its end.
        self._last = self.text.rfind("}")
        self._escapes = "\\" if "\\" in self.text else ""
        self._is_begun = False  # the number of an escape, see `_BEGUN_NUMBER`

    def substitute(self) -> str:
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
        """Insert the value of a variable, or handle ``$${``, if one is at the current position.

        Args:
            put: Called with the name, its value, and whether that is the default in the file.
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
        # Otherwise `-` and `-1` would start a comment, and `r` would change the literal after it.
        before = next((part[-1] for part in reversed(self.parts) if part), "")
        if value[:1] in {"+", "-"} and before == value[0]:
            self.parts.append(" ")
        self.parts.append(value)
        if (word := _WORD.match(self.text, self.at)) is not None:
            # It belongs to the same word, so it is no prefix of a literal.
            self._put(word[0], word.end())
        if self.text[self.at : self.at + 1] in _QUOTES:
            self.parts.append(" ")

    # --- comments

    def _end_of_comment(self) -> int:
        """Return the end of a bracketed comment, which may contain others."""
        depth, end = 0, self.at
        for edge in _COMMENT_EDGE.finditer(self.text, self.at):
            depth += 1 if edge[0] == "/*" else -1
            end = edge.end()
            if depth == 0:
                return end
        return len(self.text)

    def _put_comment(self, end: int) -> None:
        """Copy a comment without values, which could end it. They count as used nevertheless."""
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
        """Copy a backslash and its character, or the digits of an escape up to a variable."""
        text, at = self.text, self.at
        begun = _BEGUN_NUMBER.match(text, at)
        after = self._variable_at(at + 1)
        self._is_begun = begun is not None
        if begun is not None:
            self._put(begun[0], begun.end())
        elif after is None:
            self._put(text[at : at + 2], at + 2)
        else:  # the backslash must not escape the value's first letter
            self._put("\\" if after[1] else _encode("\\"), at + 1)

    def _read_raw(self, quote: str) -> None:
        """Copy a raw literal; rewrite it as one with escapes if it contains a variable."""
        begin = self.at
        text, kept = self.text, len(self.parts)
        self._put(quote, self.at + 2)
        has_variable = False
        while self.at < len(text) and text[self.at] != quote:
            if self._read_variable(lambda name, value, _: self._put_part(name, value, quote)):
                has_variable = True
            else:
                self._put(_encode(text[self.at]), self.at + 1)
        self._put(text[self.at : self.at + 1], self.at + 1)
        if not has_variable:
            del self.parts[kept:]
            self.parts.append(text[begin : self.at])

    def _put_part(self, name: str, value: str, quote: str) -> None:
        if self.dialect is not Dialect.OTHER:
            part = _encode(value)
            if self._is_begun and value:
                part = _by_number(value[0]) + _encode(value[1:])
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


def _encode(text: str) -> str:
    """Return a text as a part of a literal, for quotes of any kind."""
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
