"""Functions by their names, and another one put in the place of each."""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ClassMethodDescriptorType
from typing import Any, ClassVar, TypeAlias

from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.testing.processes.outside import Outside

__all__ = ["Importers", "NamedFunction"]

_Wrap: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class NamedFunction:
    """A function that an `Outside` names.

    Attributes:
        name: ``"module:attribute.path"``.
        owner: The module or class that has it.
        attribute: Its name there.
        found: What stands there: of a class the descriptor, which says how it is bound.
    """

    name: str
    owner: Any
    attribute: str
    found: Any

    @classmethod
    def of(cls, name: str) -> NamedFunction:
        """Look it up.

        Raises:
            ValueError: If there is none of this name; the nearest is named.
            TypeError: If it is no function.
        """
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        owner: Any = import_module(module)
        for step in owners:
            owner = cls._part(name, owner, step)
        if not callable(found := cls._part(name, owner, attribute)):
            kind = type(found).__name__
            raise TypeError(f"outside names {name!r}, which is no function but of type {kind}")
        look_up = inspect.getattr_static if isinstance(owner, type) else getattr
        return cls(name, owner, attribute, look_up(owner, attribute))

    @staticmethod
    def _part(name: str, owner: Any, attribute: str) -> Any:
        if not hasattr(owner, attribute):
            hint = did_you_mean(attribute, dir(owner), "nothing in it has a name like that")
            known = getattr(owner, "__name__", owner)
            raise ValueError(f"outside names {name!r}, but {known} has no {attribute!r}: {hint}")
        return getattr(owner, attribute)

    def wrap(self, wrap: _Wrap) -> Any:
        """Put a function that is made of it in its place, for the rest of this process' life."""
        made = self._bound_alike(wrap)
        try:
            setattr(self.owner, self.attribute, made)
        except TypeError:
            self._put_into_c_type(made)
        return made

    def _bound_alike(self, wrap: _Wrap) -> Any:
        """A function for a function, a static or class method for one of its kind."""
        found = self.found
        if isinstance(found, staticmethod):
            return staticmethod(wrap(found.__func__))
        if isinstance(found, classmethod):
            return classmethod(wrap(found.__func__))
        if isinstance(found, ClassMethodDescriptorType):
            return classmethod(wrap(lambda kind, *a, **k: found.__get__(None, kind)(*a, **k)))
        return wrap(found)

    def _put_into_c_type(self, made: Any) -> None:
        # A type that is written in C refuses new attributes, but looks them up in a dict that is
        # found behind its read-only view. This process only plays a part, and ends soon.
        gc.get_referents(self.owner.__dict__)[0][self.attribute] = made
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(self.owner))


class Importers:
    """Who has imported a function that is named by its name, and so would not see its stand-in.

    Looked up before a process is forked: to look at every module in it would cost more than the
    fork, since whatever is touched there is copied.

    Attributes:
        found: By the name of a function, the namespaces that hold it, and under which name.
    """

    _known: ClassVar[dict[tuple[str, ...], Importers]] = {}

    def __init__(self, outside: Outside) -> None:
        self.found: dict[str, list[tuple[dict[str, Any], str]]] = {name: [] for name in outside}
        self._seen: set[str] = set()

    @classmethod
    def of(cls, outside: Outside) -> Importers:
        """Those among the modules of this process.

        Raises:
            ValueError, TypeError: If a name means no function.
        """
        known = cls._known.setdefault(tuple(outside), cls(outside))
        known.look()
        return known

    @classmethod
    def inherited(cls, outside: Outside) -> Importers:
        """Those that were known when this process was forked."""
        return cls._known[tuple(outside)]

    def look(self) -> None:
        """Look at the modules that are new since the last time."""
        new = sys.modules.keys() - self._seen
        if not new:
            return
        self._seen |= new
        named = [NamedFunction.of(name) for name in self.found]
        # By identity: to compare with whatever a module holds may raise, or run anybody's code.
        functions = {id(function.found): function.name for function in named}
        for module in new:
            family = module.partition(".")[0]
            # Authors import `connect` from this module too.
            if module == "sqlite3.dbapi2" or family not in sys.stdlib_module_names:
                self._look_at(getattr(sys.modules[module], "__dict__", {}), functions)

    def _look_at(self, names: dict[str, Any], functions: Mapping[int, str]) -> None:
        for theirs, value in [*names.items()]:
            if value is not None and id(value) in functions:
                self.found[functions[id(value)]].append((names, theirs))
