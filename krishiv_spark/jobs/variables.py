"""``${NAME}`` and ``${NAME:-default}`` in files that users write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from krishiv_spark.messages.suggestions import suggest

__all__ = ["VARIABLE", "Variables"]

VARIABLE = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""``$${``, whose first group is ``${``; or a variable, with its name and default."""

_QUOTED = re.compile(r"(did you mean )?('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\\.")
"""Also escaped characters outside of quotes: one that begins nothing is not tried from each."""

_MOST_CHARACTERS = 16 * 2**20
"""Of all values that are put into the texts of a file: an alias repeats a text."""

_SHORTEST_HIDDEN = 4
"""Shorter values are hidden only where they are quoted alone: they occur in too many words."""

_NEVER_HIDDEN = {"", "true", "false", "null"}


class Variables:
    """Values by name: those that were given, then those of the environment.

    Messages show the name of a variable instead of its value, see `hide`: whoever writes a job file
    may not be whoever has the environment, as in a check of a stranger's change.

    Args:
        given: On the command line.
        environment: Of the process.
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
        """Take the text of a file whose values will be given to `substitute`."""
        self._written += text

    def substitute(self, text: str) -> str:
        """A text with the values in it; ``$${`` stands for ``${`` itself.

        Raises:
            ValueError: If a name has no value and no default, or the values are too long.
        """
        # Behind the last bracket there is no variable, and each beginning would look for its end.
        front, bracket, rest = text.rpartition("}")
        return VARIABLE.sub(self._text_of, front + bracket) + rest.replace("$${", "${")

    def unused(self) -> Iterator[tuple[str, str]]:
        """Names that were given and that no text has, each with what may have been meant."""
        for name in sorted(self._given.keys() - self._used.keys()):
            near = suggest(name, self._used)
            hint = f"did you mean {near!r}?" if near else f"used: {_listed(self._used)}"
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
            match: Of `VARIABLE`; it is not ``$${``.

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
        """Take a spelling that the value of a variable has in a text, which `hide` knows then."""
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


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(sorted(names)) or "none"
