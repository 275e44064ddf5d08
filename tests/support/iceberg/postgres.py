"""A PostgreSQL server with a folder and a port of its own on loopback, from the machine's package.

PostgreSQL refuses to run as root: then another user of the machine runs it.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from krishiv_spark.kafka.dev.clusters import free_ports

USER, PASSWORD = "krishiv", "hunter2-very-secret"
_ANYBODY = ("postgres", "nobody")
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "fsync": "off",  # no test takes away the power
}


def require_programs() -> Path:
    """Return the folder with ``initdb`` and ``postgres``; skip the test on a machine without them.

    Debian keeps a folder for each version.
    """
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    in_path = shutil.which("initdb")
    found = [*known, *([Path(in_path).resolve().parent] if in_path else [])]
    for each in reversed(found):
        if (each / "postgres").exists():
            return each
    pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")


@contextmanager
def open_postgres(binaries: Path, **settings: str) -> Iterator[str]:
    """The URI of its database ``postgres``, for SQLAlchemy; settings are those of the server."""
    (port,) = free_ports(1)
    as_root = os.geteuid() == 0
    # What pytest makes is closed to other users.
    with tempfile.TemporaryDirectory(
        prefix="krishiv-postgres-", dir="/tmp" if as_root else None
    ) as name:
        folder = Path(name)
        _make(binaries, folder)
        with _running(binaries, folder, {**_SETTINGS, **settings, "port": str(port)}):
            yield f"postgresql+psycopg2://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"


def _make(binaries: Path, folder: Path) -> None:
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if os.geteuid() == 0:
        for path in (folder, secret):
            shutil.chown(path, somebody())
    data = ("-D", str(folder / "data"), "-U", USER, "--encoding", "UTF8", "--no-locale")
    how = ("-A", "scram-sha-256", "--pwfile", str(secret), "--no-sync")
    command = [str(binaries / "initdb"), *data, *how]
    made = subprocess.run(
        command, capture_output=True, text=True, check=False, **other_user(folder)
    )
    assert made.returncode == 0, made.stdout + made.stderr


@contextmanager
def _running(binaries: Path, folder: Path, settings: Mapping[str, str]) -> Iterator[None]:
    log = folder / "log"
    command = [str(binaries / "postgres"), "-D", str(folder / "data")]
    command += [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*dying_with_us(), *command], stdout=out, stderr=out, **other_user(folder)
        )
    try:
        _await(settings["port"], server, log)
        yield
    finally:
        server.kill()
        server.wait()


def dying_with_us() -> list[str]:
    """The words before a command whose process is killed when this one ends."""
    tool = shutil.which("setpriv")  # of util-linux
    return [tool, "--pdeathsig", "KILL"] if tool else []


def other_user(folder: Path) -> dict[str, object]:
    """The arguments of a process in a folder of its own, by another user if this one is root."""
    given: dict[str, object] = {"cwd": folder, "stdin": subprocess.DEVNULL}
    if os.geteuid() == 0:
        group = pwd.getpwnam(somebody()).pw_gid
        given |= {"user": somebody(), "group": group, "extra_groups": []}
    return given


def somebody() -> str:
    """A user that is not root."""
    known = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in _ANYBODY if name in known)


@retry(
    retry=retry_if_exception_type(psycopg2.OperationalError),
    stop=stop_after_delay(30),
    wait=wait_fixed(0.1),
    reraise=True,
)
def _await(port: str, server: subprocess.Popen, log: Path) -> None:
    assert server.poll() is None, log.read_text()
    psycopg2.connect(
        host="127.0.0.1", port=port, user=USER, password=PASSWORD, dbname="postgres"
    ).close()
