"""Names that a package offers without having imported where they are defined (PEP 562)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

__all__ = ["find"]


def find(package: str, homes: Mapping[str, str], name: str) -> object:
    """What a package offers under a name; for its ``__getattr__``.

    Lazily: a worker that needs one format must not pay for the others, and modules of a package
    import one another while that is being imported.

    Args:
        package: Its full name.
        homes: By each name that it offers, the full name of the module that defines it.
        name: The one that is asked for.

    Raises:
        AttributeError: If the package offers no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
