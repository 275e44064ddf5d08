"""Arrow's functions.

pyarrow.compute makes them while it is imported, so that checkers do not find them there; and that
takes longer than the rest of a format, of which most processes use none.
"""

from __future__ import annotations

from typing import Any

__all__ = ["pc"]


class _Functions:
    """``pyarrow.compute``, imported by the first function that is asked for."""

    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        function = getattr(pyarrow.compute, name)
        setattr(self, name, function)  # found without a call from now on
        return function


pc: Any = _Functions()
