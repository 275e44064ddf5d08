"""Tables of Iceberg that another party altered: code, hosts and files that are not theirs."""

import http.server
import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from servers.threads import serve_in_thread

CANARY = "KRISHIV_TEST_CANARY"
"""Environment variable with the file that `Canary` writes: its presence shows that code ran."""


class Canary:
    """A class that PyIceberg calls if a setting names it."""

    def __init__(self, *_: object, **__: object) -> None:
        Path(os.environ[CANARY]).touch()


CANARY_CLASS = f"{Canary.__module__}.{Canary.__name__}"
CODE = {
    "write.py-location-provider.impl": CANARY_CLASS,
    "py-io-impl": CANARY_CLASS,
    "s3.retry-strategy-impl": CANARY_CLASS,
}
"""Table properties that name code."""


def alter(folder: Path, change: Callable[[dict], None], table: str = "rows") -> Path:
    """Write a new metadata file and make the catalog name it, as any client of the catalog may.

    Returns:
        The new metadata file.
    """
    with closing(sqlite3.connect(folder / "catalog.db")) as database, database:
        where = "where table_name = ?"
        query = f"select metadata_location from iceberg_tables {where}"
        (old,) = database.execute(query, (table,)).fetchone()
        metadata = json.loads(Path(old.removeprefix("file://")).read_text())
        replaced = {"metadata-file": old, "timestamp-ms": metadata["last-updated-ms"]}
        metadata["metadata-log"] = [*metadata["metadata-log"], replaced]
        change(metadata)
        number = int(Path(old).name[:5]) + 1
        new = Path(old).parent / f"{number:05d}-{uuid.uuid4()}.metadata.json"
        new.write_text(json.dumps(metadata))
        database.execute(
            f"update iceberg_tables set metadata_location = ? {where}", (str(new), table)
        )
    return new


def set_properties(folder: Path, properties: dict[str, str], table: str = "rows") -> None:
    """Alter the properties of a table."""
    alter(folder, lambda metadata: metadata["properties"].update(properties), table)


@contextmanager
def recording_server() -> Iterator[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    """Run a server that responds 404; yield its address, and the requests that it gets."""
    seen: list[tuple[str, str, dict[str, str]]] = []

    class Recorder(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, self.path, dict(self.headers.items())))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  as http.server calls them

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    with serve_in_thread(server):
        yield f"127.0.0.1:{server.server_port}", seen
