"""The suite for secrets: inherit `SecretConformance`, create the connector, run pytest."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import ClassVar

import pytest

from krishiv_spark.testing.processes import secret_roles
from krishiv_spark.testing.processes.interpreters import run_under_seed
from krishiv_spark.testing.processes.secret_roles import Way, failing_server
from krishiv_spark.testing.rules import Broken, Rule, Violation
from krishiv_spark.testing.subjects import FailingConnector
from krishiv_spark.testing.suites.base import Suite

__all__ = ["SecretConformance"]

_SHOWN = 300
"""Characters around a secret that a failure of the suite prints."""


class SecretConformance(Suite):
    """Every case is a promise to users of a source or sink; its docstring is what a failure prints.

    The external system of the connector fails. Then Spark shows the error, with all its causes, to
    every user who sees the query: no part of it may contain a secret of the options, nor may the
    log, messages of tasks or offsets.

    Attributes:
        ways: The ways in which the system fails; remove one that the connector cannot meet.
    """

    ways: ClassVar[tuple[Way, ...]] = ("refuses", "hangs up", "repeats")

    def connector(self, folder: Path, address: str, secret: str) -> FailingConnector:
        """Make the connector. Override it.

        Args:
            folder: An empty folder.
            address: The address of the failing external system, as ``127.0.0.1:port``.
            secret: The value of each option with a secret, or a part of it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method connector(self, folder, address, secret)"
        )

    def test_no_secret_is_shown_when_no_process_listens(self, promise: str, tmp_path: Path) -> None:
        """A system that is down is the error that users see most often."""
        self._check("refuses", promise, tmp_path)

    def test_no_secret_is_shown_when_connections_break(self, promise: str, tmp_path: Path) -> None:
        """Clients put the request, with its login, into the error about a broken connection."""
        self._check("hangs up", promise, tmp_path)

    def test_no_secret_is_shown_when_a_server_repeats_it(
        self, promise: str, tmp_path: Path
    ) -> None:
        """Error pages repeat the request, and clients put the page into their error."""
        self._check("repeats", promise, tmp_path)

    def _check(self, way: Way, promise: str, folder: Path) -> None:
        if way not in self.ways:
            pytest.skip(f"declared: the system never {way}")
        secret = f"canary{uuid.uuid4().hex[:26]}"  # it is valid base64, too
        with failing_server(way) as address:
            connector = self.connector(folder, address, secret)
            text = run_under_seed(0, secret_roles.play, connector, secret, str(folder))
        steps: list[tuple[str, str, dict[str, str]]] = json.loads(text)
        story = [f"{name}: {error or 'succeeds'}" for name, error, _ in steps]
        if not any(error for _, error, _ in steps):
            why = "no step has failed: give the connector the address that `connector` receives"
            raise Broken(Violation(Rule.SEEN, why), promise, story)
        for name, _, shown in steps:
            for place, found in shown.items():
                why = f"{name}: {place}: {_around(found, secret)}"
                hidden = [line.replace(secret, "<the secret>") for line in story]
                raise Broken(Violation(Rule.NO_SECRET_SHOWN, why), promise, hidden)


def _around(text: str, secret: str) -> str:
    """Return the part of a text that shows the secret; the beginning if it shows it encoded."""
    at = max(text.find(secret), 0)
    part = text[max(0, at - _SHOWN) : at + len(secret) + _SHOWN]
    return part.replace(secret, "<the secret>")
