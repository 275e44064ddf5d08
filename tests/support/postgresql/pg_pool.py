"""PgBouncer before a server, which pools transactions over one connection."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pg_onlooker import Database
from postgres import PASSWORD, USER, dying_with_us, other_user
from tenacity import retry, stop_after_delay, wait_fixed

from krishiv_spark.kafka.dev.clusters import free_ports


@contextmanager
def open_pooled(program: str, database: Database, base: str = "postgres") -> Iterator[str]:
    """The URL of a database behind PgBouncer."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "users").write_text(f'"{USER}" "{PASSWORD}"\n')
        (folder / "config").write_text(
            f"[databases]\n{base} = host=127.0.0.1 port={database.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = plain\n"
            f"auth_file = {folder}/users\npool_mode = transaction\ndefault_pool_size = 1\n"
            "unix_socket_dir =\n"
        )
        folder.chmod(0o755)
        command = [*dying_with_us(), program, str(folder / "config")]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL, **other_user(folder))
        url = database.url.replace(str(database.port), str(port)).replace("/postgres", f"/{base}")
        try:
            _await_server(url)
            yield url
        finally:
            server.kill()
            server.wait()


@retry(stop=stop_after_delay(30), wait=wait_fixed(0.1), reraise=True)
def _await_server(url: str) -> None:
    psycopg.connect(url, password=PASSWORD, prepare_threshold=None).close()
