"""``${NAME}`` and ``${NAME:-default}`` in files that users write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from krishiv_spark.suggestions import suggest

__all__ = ["Variables"]

_VARIABLE = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Variables:
    """Values by name: those that were given, then those of the environment.

    Args:
        given: On the command line.
        environment: Of the process.
    """

    def __init__(self, given: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._given = given
        self._environment = environment
        self._used: set[str] = set()

    def substitute(self, text: str) -> str:
        """A text with the values in it; ``$${`` stands for ``${`` itself.

        Raises:
            ValueError: If a name has no value and no default.
        """
        return _VARIABLE.sub(self._value, text)

    def unused(self) -> Iterator[tuple[str, str]]:
        """Names that were given and that no text has, each with what may have been meant."""
        for name in sorted(self._given.keys() - self._used):
            near = suggest(name, self._used)
            hint = f"did you mean {near!r}?" if near else f"used: {_listed(self._used)}"
            yield name, hint

    def _value(self, match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name, default = match[2], match[3]
        self._used.add(name)
        found = self._given.get(name, self._environment.get(name))
        if not found and default is not None:  # an empty value too, as in a shell
            return default
        if found is None:
            raise ValueError(
                f"the variable {name} has no value: give --set {name}=..., export it, or write "
                f"${{{name}:-a default}}"
            )
        return found


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
