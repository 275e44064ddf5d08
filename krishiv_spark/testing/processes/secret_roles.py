"""A connector whose external system fails, role by role, and where its secret is shown then."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from krishiv_spark.messages.exception_chains import texts_of, walk
from krishiv_spark.messages.redaction import without_secrets
from krishiv_spark.testing.drivers.ledger import Unit
from krishiv_spark.testing.drivers.lives import Checkpoint
from krishiv_spark.testing.processes import read_roles, write_roles
from krishiv_spark.testing.subjects import FailingConnector

__all__ = ["places_of", "play"]

_ROWS = range(4)


def play(connector: FailingConnector, secret: str, folder: str) -> str:
    """Do what Spark does with a connector, each role until its first error.

    Returns:
        As JSON, for each step that failed or showed the secret: its name, the error, and by the
        place the text that shows it.
    """
    played = _Played(connector, secret, Path(folder))
    with played.listening():
        for role in (
            played.write_stream,
            played.write_batch,
            played.infer_schema,
            played.read_batch,
            played.read_stream,
        ):
            with contextlib.suppress(_FailedError):
                role()
    return json.dumps(played.found)


def places_of(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield each text in which an error may be shown, with the name of where that is."""
    with contextlib.suppress(Exception):
        yield "text", str(error)
    yield "traceback", "".join(traceback.format_exception(error))
    for text in texts_of(error):
        yield "chain", text
    for linked in walk(error):
        # Not each pickles, and then none travels.
        with contextlib.suppress(Exception):
            yield "pickle", pickle.dumps(linked).decode("latin-1")


class _FailedError(Exception):
    """A step has failed: the role ends."""


@dataclass
class _Played:
    connector: FailingConnector
    secret: str
    folder: Path
    found: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    lines: io.StringIO = field(default_factory=io.StringIO)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Gather lines of the log, warnings and whatever is printed."""
        logging.captureWarnings(capture=True)
        logging.getLogger().addHandler(logging.StreamHandler(self.lines))
        own = self.connector.source.__module__.partition(".")[0]
        for name in ("krishiv_spark", own):
            logging.getLogger(name).setLevel("DEBUG")
        with contextlib.redirect_stderr(self.lines), contextlib.redirect_stdout(self.lines):
            yield

    def write_stream(self) -> None:
        """Plan, stage, commit and abort an epoch."""
        if not self.connector.writes_streams:
            return
        checkpoint = Checkpoint(self.folder / "checkpoint")
        checkpoint.plan(Unit("epoch 0", _ROWS))
        self._write("stream", str(checkpoint.folder), checkpoint.query)

    def write_batch(self) -> None:
        """Plan, stage, commit and abort a batch job."""
        if self.connector.writes_batches:
            self._write("batch", None, None)

    def _write(self, kind: str, checkpoint: str | None, query: str | None) -> None:
        one = self.connector
        job = write_roles.Job(
            one.source, one.options, one.schema, one.row, checkpoint, query, overwrite=False
        )
        attempt = write_roles.Attempt(0, 0, 0, 0, "goes on")
        writer = self._do(f"plan of a {kind}", lambda: write_roles.plan(job), shows=False)
        try:
            staged = self._do(
                f"task of a {kind}", lambda: write_roles.write(job, writer, _ROWS, attempt)
            )
            self._do(f"commit of a {kind}", lambda: write_roles.commit(job, writer, [staged], 0))
        finally:
            self._do(f"abort of a {kind}", lambda: write_roles.abort(job, writer, [None], 0))

    def infer_schema(self) -> None:
        """Ask for the columns."""
        if self.connector.reads:
            self._do("schema", lambda: self._load.make().schema())

    def read_batch(self) -> None:
        """Plan a batch and read it."""
        if not self.connector.reads_batches:
            return
        plan = self._do(
            "plan of a batch", lambda: read_roles.batch_partitions(self._load), shows=False
        )
        for part in plan[1]:
            self._do("task of a batch", partial(read_roles.rows, self._load, plan[0], part))

    def read_stream(self) -> None:
        """Choose offsets, plan and read."""
        if not self.connector.reads_streams:
            return
        is_told = self._do("start of a stream", lambda: read_roles.open_reader(self._load))
        start = self._do("initial offset", read_roles.initial)
        end = self._do("latest offset", lambda: read_roles.choose(start, is_told))
        parts, _ = self._do("plan", lambda: read_roles.partitions(self._load, start, end))
        reader = self._do("task's reader", lambda: read_roles.task_reader(self._load), shows=False)
        for part in parts:
            self._do("task", partial(read_roles.rows, self._load, reader, part))

    @property
    def _load(self) -> read_roles.Load:
        return read_roles.Load(self.connector.source, self.connector.options, self.connector.schema)

    def _do(self, name: str, step: Callable[[], Any], *, shows: bool = True) -> Any:
        """Do a step and look where the secret is shown.

        Args:
            name: Of the step, for people.
            step: What Spark does.
            shows: Whether what it returns is shown or kept. A plan for tasks is neither.
        """
        before = self.lines.tell()
        try:
            value = step()
        except Exception as error:  # noqa: BLE001  whatever a connector raises is looked at
            self._note(name, error, [*places_of(error), self._logged(before)])
            raise _FailedError from None
        texts = [("what it returns", _text(value))] if shows else []
        self._note(name, None, [*texts, self._logged(before)])
        return value

    def _logged(self, before: int) -> tuple[str, str]:
        return "log", self.lines.getvalue()[before:]

    def _note(self, name: str, error: Exception | None, texts: list[tuple[str, str]]) -> None:
        shown = {place: text for place, text in texts if self._shows(text)}
        what = "" if error is None else f"{type(error).__name__}: {error}"
        self.found.append((name, what, shown))

    def _shows(self, text: str) -> bool:
        return without_secrets(text, [self.secret]) != text


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else repr(value)
