"""A server of PostgreSQL that a test kills and starts again."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from pg_onlooker import Database
from postgres import (
    _SETTINGS,
    PASSWORD,
    _await,
    _make,
    dying_with_us,
    other_user,
    require_programs,
    somebody,
)
from tenacity import retry, stop_after_delay, wait_fixed

from krishiv_spark.kafka.dev.clusters import free_ports


class KillableServer:
    """A server whose postmaster dies without a warning, as in a crash of its machine.

    Args:
        programs: Folder of PostgreSQL's programs.
        folder: A new folder, of the user that runs the server.
        settings: Settings of the server.
        primary: The server that it replicates; None for a new one.
    """

    def __init__(
        self,
        programs: Path,
        folder: Path,
        settings: Mapping[str, str],
        primary: "KillableServer | None" = None,
    ) -> None:
        (port,) = free_ports(1)
        self.database = Database(port)
        self.folder = folder
        self._programs = programs
        self._settings = {**_SETTINGS, **settings, "port": str(port)}
        if primary is None:
            _make(programs, folder)
        else:
            self._copy(primary)
        self.start()

    def _copy(self, primary: "KillableServer") -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, somebody())
        command = [str(self._programs / "pg_basebackup"), "-d", primary.database.url, "-R"]
        subprocess.run(
            [*command, "-D", str(self.folder / "data"), "-c", "fast"],
            env={"PGPASSWORD": PASSWORD},
            check=True,
            **other_user(self.folder),
        )

    def promote(self) -> None:
        """Make a standby the primary."""
        self.database.run("SELECT pg_promote()")

    @retry(stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True)
    def start(self) -> None:
        """Start it; memory of a killed one may still be in use for a moment."""
        options = [part for k, v in self._settings.items() for part in ("-c", f"{k}={v}")]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        with (self.folder / "log").open("ab") as out:
            self._process = subprocess.Popen(
                [*dying_with_us(), *command], stdout=out, stderr=out, **other_user(self.folder)
            )
        _await(str(self.database.port), self._process, self.folder / "log")

    @property
    def process_id(self) -> int:
        """The postmaster."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the postmaster and all backends at once, unless that was done."""
        if self._process.poll() is not None:
            return
        family = [self._process.pid]
        family += [each.pid for each in psutil.Process(self._process.pid).children(recursive=True)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        time.sleep(0.1)
        self.start()


@contextmanager
def open_killable(
    programs: Path, primary: KillableServer | None = None, **settings: str
) -> Iterator[KillableServer]:
    """A server that is killed at the end; with a primary, its standby."""
    root = "/tmp" if os.geteuid() == 0 else None  # what pytest makes is closed to other users
    with tempfile.TemporaryDirectory(prefix="krishiv-postgres-", dir=root) as name:
        server = KillableServer(programs, Path(name), settings, primary)
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[KillableServer]:
    with open_killable(require_programs()) as server:
        yield server


@pytest.fixture
def database(server: KillableServer) -> Database:
    """The server's database, with an empty schema `public`."""
    server.database.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server.database
