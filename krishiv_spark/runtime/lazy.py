"""Attributes of packages and classes that are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["find", "find_format", "later", "route_names"]


class _Later:
    """An attribute of a class that is imported when it is read."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, instance: object, owner: type) -> object:
        return getattr(import_module(self._module), self._name)


def later(module: str, name: str) -> Any:
    """Return an attribute for a class whose value is imported from a module on first use.

    So the class can be unpickled in a process that uses only its other attributes.
    """
    return _Later(module, name)


def find(package: str, homes: Mapping[str, str], name: str) -> object:
    """Return a package's attribute by its name; for its ``__getattr__`` (PEP 562).

    Lazily: a worker that needs one format must not pay for the others, and modules of a package
    import one another while that is being imported.

    Args:
        package: Its full name.
        homes: The full name of the module that defines each of its names.
        name: The requested name.

    Raises:
        AttributeError: If the package has no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)


def find_format(name: str) -> Any:
    """Return the class of a format by its name, as `krishiv_spark.formats.find_format` does.

    A fan-out finds its routes by it, and a chain its parts: both are below the formats, and may not
    import them.
    """
    return import_module("krishiv_spark.formats").find_format(name)


def route_names() -> list[str]:
    """Return the names of the formats that can be a route of a fan-out; see `find_format`."""
    names: list[str] = import_module("krishiv_spark.formats").route_names()
    return names
