"""The names that an epoch log in a store may contain, and the targets of a table's pointers."""

import http.server
import json
import logging
import time
from contextlib import ExitStack, suppress

import obstore
import pytest
from obstore.store import MemoryStore
from sink_life import Job, Life, rows

from krishiv_spark.errors import KrishivError, LogError, StorageError
from krishiv_spark.offsets import Claim, open_log
from krishiv_spark.parquet.table_identity import Pointer
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView
from krishiv_spark.sinks.parquet.staging import StagedUploads
from krishiv_spark.sinks.parquet.store_table import StoreTable
from krishiv_spark.sinks.parquet.vacuum import find_store_orphans
from krishiv_spark.sinks.parquet.writer import ParquetWriter, choose_kind
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.uploads import Upload
from servers.threads import serve_in_thread

FOLDER = {"type": "DIRECTORY", "length": 0, "modificationTime": 0}
TOKEN = "CANARY-DELEGATION-TOKEN"


class Server:
    """An HTTP server that answers as WebHDFS does, and notes what it is asked."""

    def __init__(self, files=(), folders=()):
        asked, contents, names = [], dict(files), dict(folders)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.command, self.path))
                path, _, query = self.path.partition("?")
                self.answer(path.removeprefix("/webhdfs/v1"), query)

            do_PUT = do_DELETE = do_GET  # noqa: N815  as the base class has it

            def answer(self, path, query):
                if "op=OPEN" in query and path in contents:
                    return self.send(200, contents[path])
                if "op=LISTSTATUS" in query:
                    found = [{**FOLDER, "pathSuffix": name} for name in names.get(path, ())]
                    return self.send(200, {"FileStatuses": {"FileStatus": found}})
                if "op=OPEN" in query or "op=GETFILESTATUS" in query:
                    gone = {"exception": "FileNotFoundException", "message": "no"}
                    return self.send(404, {"RemoteException": gone})
                return self.send(200, {"boolean": True})

            def send(self, code, content):
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.asked = asked
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def authority(self):
        return f"127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server():
    with ExitStack() as running:

        def make(*given):
            made = Server(*given)
            running.enter_context(serve_in_thread(made.http))
            return made

        yield make


def upload(key="day=1/x.parquet", id="_krishiv/uploads/x.parquet.staged"):  # noqa: A002  as the model has it
    return Upload.model_construct(key=key, id=id, parts=(), size=0, nonce="", begun_ms=0)


UP = "../../user/victim/precious"


@pytest.mark.parametrize(
    "touch",
    [
        lambda table: table.remove([UP]),
        lambda table: table.remove(["a/./../../../x"]),
        lambda table: table.uploads.complete(upload(key=UP)),
        lambda table: table.uploads.complete(upload(id=UP)),
        lambda table: table.uploads.complete(upload(id="_krishiv/uploads/../../x")),
        lambda table: table.uploads.complete(upload(id="_krishiv/uploads/..")),
        lambda table: table.uploads.abort(upload(id=UP)),
        lambda table: table.uploads.state(upload(id="_krishiv/q/log/1.json")),
        lambda table: table.meta("..", "..", "victim").names(),
        lambda table: table.storage.files(table.url).identity(f"{table}/{UP}"),
    ],
    ids=range(10),
)
def test_no_request_to_hdfs_leaves_the_table(server, touch):
    node = server()
    table = StoreTable(
        StoreUrl.parse(f"webhdfs://{node.authority}/warehouse/table"), Storage.for_query({})
    )
    with pytest.raises(StorageError):
        touch(table)
    inside = "/webhdfs/v1/warehouse/table/"
    assert [path for _, path in node.asked if not path.startswith(inside)] == []
    assert not any("victim" in path for _, path in node.asked)


def test_escaped_dots_are_a_name_to_hdfs_and_to_buckets(server):
    node = server()
    url = StoreUrl.parse(f"webhdfs://{node.authority}/warehouse/table")
    StoreTable(url, Storage.for_query({})).remove(["%2e%2e/%2e%2e/victim"])
    ((_, path),) = node.asked
    assert path.startswith("/webhdfs/v1/warehouse/table/%252e%252e/%252e%252e/victim?")
    bucket = MemoryStore()
    obstore.put(bucket, "a/%2e%2e/x", b"1")
    assert [item["path"] for page in obstore.list(bucket) for item in page] == ["a/%2e%2e/x"]
    with pytest.raises(TypeError):  # obstore's word for a path that it does not take
        obstore.delete(bucket, "a/../x")


@pytest.mark.parametrize("name", ["..", "a/../b", ".", "a\0b", "..\\x"])
def test_a_name_that_leads_out_is_no_place_in_a_store(name):
    for url in ("s3://bucket/table", "abfss://c@a.dfs.core.windows.net/table", "hdfs://nn/t", "/t"):
        with pytest.raises(StorageError, match="leads to another location"):
            _ = StoreUrl.parse(url) / name


@pytest.mark.parametrize(
    "change",
    [{"key": UP}, {"key": "/x"}, {"key": "a//b"}, {"key": "a\0"}],
    ids=str,
)
def test_an_upload_of_a_log_names_a_file_of_the_table(change):
    file = {"name": "x.parquet", "folder": "", "rows": 1, "size": 1}
    named = json.loads(upload().model_dump_json()) | change
    with pytest.raises(ValueError, match="is not a path within a folder"):
        StagedUploads.model_validate({"files": [{**file, "upload": named}]})
    opaque = json.loads(upload(id="2~AbC/../=").model_dump_json())  # as S3's ids may be
    StagedUploads.model_validate({"files": [{**file, "upload": opaque}]})


# --- pointers


def test_no_pointer_sends_a_delegation_token_to_another_host(server, caplog):
    evil = server()
    pointer = f"webhdfs://{evil.authority}/log".encode()
    node = server(
        {"/table/_krishiv/batch-x/epoch-log": pointer, "/table/_krishiv/q/epoch-log": pointer},
        {"/table/_krishiv": ["batch-x", "q"]},
    )
    options = ParquetSinkOptions.parse(
        {"path": f"webhdfs://{node.authority}/table", "storage.hdfs.token": TOKEN}, "test"
    )
    kind = choose_kind(options)
    view = TableLogView(lambda _: True, lambda _: None)
    participant = kind.participant(options, OutputMode.REPLACE, view, streaming=False)
    with caplog.at_level(logging.WARNING):
        assert [*participant.orphaned_jobs()] == []
    assert "in another store than the table" in caplog.text
    with suppress(KrishivError):
        [*find_store_orphans(kind.table, 0.0)]
    for query in ("batch-x", "q"):
        assert kind.table.log_of(query).near_state() is None
        with pytest.raises(LogError, match="in another store than the table"):
            _ = kind.table.log_of(query).log
    assert evil.asked == []
    assert TOKEN not in caplog.text


TABLES = {
    "/data/table": ["/elsewhere/log", "file:///elsewhere/log"],
    "s3://bucket/table": ["s3a://bucket/logs/q"],
    "hdfs://nn:8020/table": ["hdfs://nn:8020/logs"],
    "abfss://c@a.dfs.core.windows.net/t": ["abfss://c@a.dfs.core.windows.net/logs"],
}
LEAVING = {
    "/data/table": ["s3://bucket/log", "webhdfs://host:1/log", "nfs:x", ""],
    "s3://bucket/table": ["s3://other/log", "/local/log", "gs://bucket/log", "s3://"],
    "hdfs://nn:8020/table": ["hdfs://other:8020/l", "webhdfs://nn:8020/l", "hdfs://nn:9/l", "/l"],
    "swebhdfs://nn:9871/table": ["webhdfs://nn:9871/l"],  # would send the token in the clear
    "abfss://c@a.dfs.core.windows.net/t": [
        "abfss://d@a.dfs.core.windows.net/l",
        "abfss://c@b.dfs.core.windows.net/l",
        "abfss://c@a.dfs.evil.net/l",
    ],
}


@pytest.mark.parametrize(
    ("table", "location", "followed"),
    [
        *((table, location, True) for table in TABLES for location in TABLES[table]),
        *((table, location, False) for table in LEAVING for location in LEAVING[table]),
    ],
)
def test_a_pointer_is_followed_within_the_tables_own_store(table, location, followed):
    pointer, url = Pointer(location), StoreUrl.parse(table)
    # An empty text is the folder that the process runs in, which is on a disk as the table is.
    assert pointer.is_followed(url, "q") is (followed or location == "")
    assert pointer.is_followed(url, "q", ("s3://elsewhere/logs",)) is (followed or location == "")


def test_a_pointer_is_followed_to_where_an_option_says_that_logs_are():
    table = StoreUrl.parse("s3://bucket/table")
    for base in ("s3://logs/here", "s3a://logs/here/", "/local/logs"):
        inside = f"{base.rstrip('/')}/q"
        assert Pointer(inside).is_followed(table, "q", (base,))
        assert Pointer(inside).is_followed(table, "q", ("gs://x/y", inside))
        assert Pointer(inside, "good").is_followed(table, "q-good", (base,))
        assert not Pointer(f"{inside}2").is_followed(table, "q", (base,))
        assert not Pointer(f"{base}/other").is_followed(table, "q", (base,))
        assert not Pointer(inside).is_followed(table, "q")


# --- in a bucket


def test_vacuum_removes_no_log_that_only_a_pointer_names(s3):
    table = StoreTable(StoreUrl.parse(f"{s3}/table"), Storage())
    real = open_log(f"{s3}/logs/batch-1", "batch-1")
    real.begin(Claim(query="batch-1"))
    table.meta("batch-1").replace("epoch-log", f"{s3}/logs/batch-1".encode())
    time.sleep(0.01)
    (orphan,) = find_store_orphans(table, 0.0)
    orphan.remove()
    assert "batch-1" not in table.meta().names()
    assert open_log(f"{s3}/logs/batch-1", "batch-1").state().number == 1
    table.meta("batch-1").replace("epoch-log", f"{s3}/logs/batch-1".encode())
    (orphan,) = find_store_orphans(table, 0.0, (f"{s3}/logs",))
    orphan.remove()
    assert open_log(f"{s3}/logs/batch-1", "batch-1").state().number == 0


@pytest.mark.parametrize("text", [b"no number", b"9" * 5000, b"\xff", b"-1"])
def test_a_damaged_mark_is_an_error_that_names_it(s3, text):
    table = StoreTable(StoreUrl.parse(f"{s3}/table"), Storage())
    table.meta("q").replace("finished", text)
    with pytest.raises(LogError, match="_krishiv/q/finished is damaged"):
        table.log_of("q").is_finished(1)


@pytest.mark.long
def test_a_batch_job_in_a_bucket_may_keep_its_log_elsewhere(s3, tmp_path):
    options = {"path": f"{s3}/table", "partitionBy": "day", "epochLog": str(tmp_path / "logs")}
    Job(ParquetWriter, options).epoch(0, rows(0, 10))
    table = StoreTable(StoreUrl.parse(f"{s3}/table"), Storage())
    assert len([*table.visible()]) > 1
    assert [*(tmp_path / "logs").iterdir()] == []
    assert not any(name.startswith("batch-") for name in table.meta().names())
    Life(ParquetWriter, options, "q1", OutputMode.APPEND).epoch(0, rows(10, 10))
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["q1"]
