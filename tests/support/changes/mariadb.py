"""A MariaDB server with a folder and a port of its own on loopback, from the machine's package.

Debian's packages mariadb-server-core and mariadb-client-core start no server by themselves.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import await_that
from postgres import dying_with_us, other_user, somebody

from krishiv_spark.kafka.dev.clusters import free_ports

USER, PASSWORD, DATABASE = "krishiv", "hunter2-very-secret", "shop"
_PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb")
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "server-id": "1",
    "log-bin": "log",
    "binlog-format": "ROW",
    "innodb-buffer-pool-size": "32M",
    "innodb-flush-log-at-trx-commit": "0",  # no test takes away the power
    "character-set-server": "utf8mb4",
    "default-time-zone": "+00:00",
}
_MAKE = f"""
CREATE DATABASE {DATABASE};
CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'%';
"""


@dataclass(frozen=True)
class MariaDB:
    """A running server.

    Attributes:
        folder: Its folder.
        port: Its port on loopback.
    """

    folder: Path
    port: int

    @property
    def uri(self) -> str:
        """The database, with user and password."""
        return f"mariadb://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{DATABASE}"

    def execute(self, text: str, database: str = DATABASE) -> list[str]:
        """Execute statements by MariaDB's client, and return the lines that it prints."""
        command = [
            _find("mariadb"),
            "--no-defaults",
            f"--socket={self.folder}/socket",
            "--user=root",
        ]
        command += ["--batch", "--raw", "--skip-column-names", "--default-character-set=utf8mb4"]
        run = subprocess.run(
            [*command, database], input=text.encode(), capture_output=True, check=False
        )
        assert run.returncode == 0, run.stderr.decode()[-2000:]
        return run.stdout.decode().splitlines()

    def select(self, columns: list[str], table: str) -> list[list[str | None]]:
        """Return the rows of a table, each value as MariaDB's text of it."""
        texts = ", ".join(f"CAST({column} AS CHAR)" for column in columns)
        return [
            json.loads(line) for line in self.execute(f"SELECT JSON_ARRAY({texts}) FROM {table}")
        ]


def has_mariadb() -> bool:
    """Return True if the programs of the server and the client are installed."""
    return all(map(_find, _PROGRAMS))


@contextmanager
def open_mariadb() -> Iterator[MariaDB]:
    """Run a server with an empty database."""
    (port,) = free_ports(1)
    as_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(
        prefix="krishiv-mariadb-", dir="/tmp" if as_root else None
    ) as name:
        folder = Path(name)
        if as_root:
            shutil.chown(folder, somebody())
        _make(folder)
        with _running(folder, port) as server:
            yield server


def _make(folder: Path) -> None:
    command = [_find("mariadb-install-db"), "--no-defaults", f"--datadir={folder}/data"]
    # The user of the server may not write where those of the tests do.
    command += [f"--tmpdir={folder}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    made = subprocess.run(
        command, capture_output=True, text=True, check=False, **other_user(folder)
    )
    assert made.returncode == 0, made.stdout + made.stderr


@contextmanager
def _running(folder: Path, port: int) -> Iterator[MariaDB]:
    own = {"datadir": f"{folder}/data", "tmpdir": f"{folder}", "socket": f"{folder}/socket"}
    known = {**_SETTINGS, **own, "port": port}
    command = [_find("mariadbd"), "--no-defaults", *(f"--{key}={known[key]}" for key in known)]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*dying_with_us(), *command], stdout=out, stderr=out, **other_user(folder)
        )
    server = MariaDB(folder, port)
    try:
        await_that(lambda: _answers(server) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        server.execute(_MAKE, "mysql")
        yield server
    finally:
        process.kill()
        process.wait()


def _answers(server: MariaDB) -> bool:
    try:
        server.execute("SELECT 1", "mysql")
    except AssertionError:  # it starts
        return False
    return True


def _find(program: str) -> Any:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
