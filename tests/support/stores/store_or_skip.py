"""Stores for tests, which are skipped, by name, where the server of one cannot be had."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from servers.programs import ToolMissingError
from servers.stores import OPENED, Store


@contextmanager
def open_when_possible(kind: str, folder: Path) -> Iterator[Store]:
    """A store by its kind."""
    with ExitStack() as stack:
        try:
            store = stack.enter_context(OPENED[kind](folder))
        except ToolMissingError as missing:
            pytest.skip(str(missing))
        yield store
