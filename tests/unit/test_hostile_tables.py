"""Tables that others alter, which must choose no code, no host and no file of the user."""

import gzip
import json
import socket
import time
import uuid
from pathlib import Path

import iceberg_reading
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile_tables import CANARY, CANARY_CLASS, CODE, alter, recording_server, set_properties
from iceberg_life import TABLE, IcebergLife, catalog_of, ids, table_of
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.locations import SimpleLocationProvider

from krishiv_spark.errors import LogError, OptionError, StorageError
from krishiv_spark.iceberg.avro_files import create_decompressor
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.file_access import FileAccess, Location, TableAccess
from krishiv_spark.iceberg.file_io import create_worker_io
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import OwnFiles
from krishiv_spark.operate.inspection.query_status import inspect_table
from krishiv_spark.operate.moving.spark_positions import SparkTablePositions
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.iceberg.maintenance import expiry
from krishiv_spark.sinks.iceberg.maintenance.orphans import find_orphans, make_deleter
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.route import StagedForTable, delete_intent_files, read_intent_files
from krishiv_spark.sinks.iceberg.table_setup import prepare_table
from servers.threads import serve_in_thread

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})


def options_of(folder, **given):
    return IcebergSinkOptions.parse({"warehouse": str(folder), "table": TABLE, **given}, FORMAT)


def numbers(folder):
    return sorted(iceberg_reading.batch(folder, table=TABLE)["id"].to_pylist())


def append(folder):
    IcebergLife(folder).epoch(1, ROWS)
    assert numbers(folder) == [1, 1, 2, 2]


def upsert(folder):
    IcebergLife(folder, mode="upsert", keyColumns="id").epoch(1, ROWS)
    assert numbers(folder) == [1, 2]


def read_batch(folder):
    assert numbers(folder) == [1, 2]


def read_stream(folder):
    assert iceberg_reading.Stream(folder, table=TABLE).drain() == [[1, 2]]


def read_changes(folder):
    assert iceberg_reading.Stream(folder, table=TABLE, readChanges=True).drain() == [[1, 2]]


def vacuum(folder):
    assert find_orphans(options_of(folder), 0).files == ()


def status(folder):
    found = inspect_table({"warehouse": str(folder), "table": TABLE}, "query-1")
    assert found.held == 0


def view(folder):  # what a view does before it reads and writes by the source and the sink
    options = IcebergSinkOptions.parse({"warehouse": str(folder), "table": TABLE}, FORMAT)
    prepare_table(options, ROWS.schema).location_provider()


def move(folder):
    assert SparkTablePositions({"warehouse": str(folder), "table": TABLE})._history is not None


USES = [append, upsert, read_batch, read_stream, read_changes, vacuum, status, view, move]


@pytest.fixture
def canary(tmp_path, monkeypatch):
    file = tmp_path / "code-ran"
    monkeypatch.setenv(CANARY, str(file))
    return file


@pytest.fixture
def warehouse(tmp_path):
    folder = tmp_path / "warehouse"
    IcebergLife(folder).epoch(0, ROWS)
    return folder


# --- code


@pytest.mark.long
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_no_code_that_a_table_names_runs(warehouse, canary, caplog, use):
    set_properties(warehouse, CODE)
    use(warehouse)
    assert not canary.exists()
    (warning,) = [one for one in caplog.messages if "are ignored" in one]
    assert all(repr(key) in warning for key in CODE)


def test_a_location_cannot_be_code(warehouse, canary, monkeypatch):
    monkeypatch.chdir(warehouse)  # in which a task makes a folder of that name

    def change(metadata):
        metadata["properties"]["write.py-location-provider.impl"] = "builtins.eval"
        metadata["location"] = f"exec(open({str(canary)!r}, 'w').write('ran'))"

    alter(warehouse, change)
    IcebergLife(warehouse, copiedWarehouse="allow").stage(1, ROWS)
    assert not canary.exists()


class UsersProvider(SimpleLocationProvider):
    """A location provider that the user names."""

    def new_data_location(self, data_file_name, partition_key=None):  # noqa: ARG002
        return f"{self.data_path}/by-user/{data_file_name}"


def test_a_location_provider_is_the_users_by_an_option_of_the_sink(warehouse):
    name = f"{UsersProvider.__module__}.{UsersProvider.__name__}"
    key = "write.py-location-provider.impl"
    IcebergLife(warehouse, **{f"tableProperty.{key}": name}).epoch(1, ROWS)
    assert list(warehouse.glob("db/rows/data/by-user/*.parquet"))
    with pytest.raises(OptionError, match=f"tableProperty.{key}.*not a location provider"):
        IcebergLife(warehouse, **{f"tableProperty.{key}": "nothing.here"}).epoch(2, ROWS)


class UsersFileIO(PyArrowFileIO):
    """A FileIO that the user names."""

    opened: list[str] = []  # noqa: RUF012

    def new_input(self, location):
        self.opened.append(location)
        return super().new_input(location)


def test_a_file_io_is_the_users_by_an_option(warehouse):
    name = f"{UsersFileIO.__module__}.{UsersFileIO.__name__}"
    set_properties(warehouse, {"py-io-impl": CANARY_CLASS})
    given = {"table": TABLE, "catalog.py-io-impl": name}
    assert len(iceberg_reading.batch(warehouse, **given)) == 2
    assert UsersFileIO.opened


def rest_answers(warehouse, **hostile):
    """Return the response of a trusted REST catalog for a table that others altered."""
    table = table_of(warehouse)
    metadata = json.loads(Path(table.metadata_location).read_text())
    metadata["properties"] |= hostile.get("properties", {})
    loaded = {"metadata-location": table.metadata_location, "metadata": metadata}
    return {
        "config": {"defaults": {}, "overrides": hostile.get("overrides", {})},
        "table": {**loaded, "config": hostile.get("config", {})},
    }


@pytest.fixture
def rest(warehouse, rest_server):
    """Serve a table by REST, and return the options of a reader."""

    def serve(**hostile):
        rest_server.answers = rest_answers(warehouse, **hostile)
        return options_of(warehouse, **{"catalog.type": "rest", "catalog.uri": rest_server.uri})

    return serve


@pytest.fixture
def rest_server():
    import http.server

    class Rest(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            kind = "config" if self.path.split("?")[0].endswith("/config") else "table"
            out = json.dumps(server.answers[kind]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rest)
    server.uri = f"http://127.0.0.1:{server.server_port}"
    with serve_in_thread(server):
        yield server


@pytest.mark.parametrize("where", ["properties", "config", "overrides"])
def test_a_rest_catalog_names_no_code_and_passes_none_on(rest, canary, where):
    table = open_table(rest(**{where: CODE}))
    assert table.scan().to_arrow()["id"].to_pylist() == [1, 2]
    create_worker_io(table)
    table.location_provider()
    assert not canary.exists()


def test_a_rest_catalog_chooses_no_login_class(rest, canary):
    login = {"type": "custom", "impl": CANARY_CLASS, "custom": {}}
    assert open_table(rest(overrides={"auth": login})).current_snapshot() is not None
    assert not canary.exists()


def test_what_a_rest_catalog_hands_out_with_a_table_reaches_tasks(rest):
    vended = {"s3.access-key-id": "vended", "s3.secret-access-key": "s", "s3.region": "eu-west-1"}
    io = create_worker_io(open_table(rest(config=vended)))
    assert vended.items() <= io.properties.items()
    assert "uri" not in io.properties


def test_the_hosts_of_the_users_options_win_over_those_of_a_catalog(rest, rest_server):
    options = rest(config={"s3.endpoint": "http://theirs", "s3.access-key-id": "vended"})
    assert open_table(options).io.properties["s3.endpoint"] == "http://theirs"
    for mine in ({"catalog.s3.endpoint": "http://mine"}, {"storage.s3.endpoint": "http://mine"}):
        given = {"table": TABLE, "catalog.type": "rest", "catalog.uri": rest_server.uri, **mine}
        table = open_table(IcebergSinkOptions.parse(given, FORMAT))
        assert table.io.properties.get("s3.endpoint") in {None, "http://mine"}
        assert table.io.properties["s3.access-key-id"] == "vended"


# --- hosts


def with_manifest_list(folder, location, **properties):
    def change(metadata):
        metadata["snapshots"][-1]["manifest-list"] = location
        metadata["properties"] |= properties

    alter(folder, change)


S3 = {"access-key-id": "AKIAMINE", "secret-access-key": "hunter2", "session-token": "session-token"}
GCS = {"oauth2.token": "bearer-token", "oauth2.token-expires-at": "4000000000000"}
ADLS = {"account-name": "acct", "sas-token": "sp=r&sig=signature"}
STORES = {
    "s3": ("s3://box/x.avro", lambda host: {"s3.endpoint": f"http://{host}"}, S3),
    "s3.proxy-uri": (
        "s3://box/x.avro",
        lambda host: {"s3.proxy-uri": f"http://{host}"},
        {**S3, "endpoint": "http://127.0.0.1:9"},
    ),
    "gcs": ("gs://box/x.avro", lambda host: {"gcs.service.host": f"http://{host}"}, GCS),
    "adls": (
        "abfss://c@acct.dfs.core.windows.net/x.avro",
        lambda host: {
            "adls.blob-storage-authority": host,
            "adls.dfs-storage-authority": host,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-scheme": "http",
        },
        ADLS,
    ),
}


def ask(table):
    """Read the list of manifests, and write a file beside it, as a planner and a task do."""
    location = table.current_snapshot().manifest_list
    for io in (table.io, create_worker_io(table)):
        with pytest.raises((OSError, StorageError), match=r".+"):
            io.new_input(location).open().read()


@pytest.mark.parametrize("name", [name for name in STORES if name != "s3.proxy-uri"])
def test_a_table_redirects_no_request(warehouse, name):
    location, redirect, login = STORES[name]
    prefix = name.split(".")[0]
    with recording_server() as (evil, stolen), recording_server() as (good, seen):
        with_manifest_list(warehouse, location, **redirect(evil))
        mine = {**{f"{prefix}.{key}": text for key, text in login.items()}, **redirect(good)}
        mine |= {"s3.region": "us-east-1"} if prefix == "s3" else {}
        table = open_table(
            options_of(warehouse, **{f"catalog.{key}": text for key, text in mine.items()})
        )
        ask(table)
        assert seen
        assert not stolen


def test_a_table_chooses_no_proxy(warehouse):
    with recording_server() as (evil, stolen), recording_server() as (good, seen):
        with_manifest_list(warehouse, "s3://box/x.avro", **{"s3.proxy-uri": f"http://{evil}"})
        mine = {"endpoint": f"http://{good}", "region": "us-east-1", "accessKeyId": "mine"}
        mine |= {"secretAccessKey": "hunter2", "sessionToken": "session-token"}
        given = {f"storage.s3.{key}": text for key, text in mine.items()}
        ask(open_table(options_of(warehouse, **given)))
        assert seen
        assert not stolen


@pytest.mark.parametrize(
    "location", ["hdfs://127.0.0.1:{}/x.avro", "abfss://c@127.0.0.1:{}/x.avro"]
)
def test_a_host_that_only_the_table_names_is_not_asked(warehouse, location):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        with_manifest_list(warehouse, location.format(server.getsockname()[1]))
        table = open_table(options_of(warehouse))
        for io in (table.io, create_worker_io(table)):
            with pytest.raises(OptionError, match="'dataFilesWithin' = 'any'"):
                io.new_input(table.current_snapshot().manifest_list).open()
        with pytest.raises(TimeoutError):
            server.accept()


# --- locations of new files


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path"])
def test_new_files_go_outside_of_the_warehouse_only_by_an_option(warehouse, tmp_path, key):
    elsewhere = tmp_path / "elsewhere"
    set_properties(warehouse, {key: str(elsewhere)})
    with pytest.raises(OptionError, match=f"{key}.*'dataFilesWithin' = 'any'"):
        IcebergLife(warehouse).epoch(1, ROWS)
    assert not elsewhere.exists()
    assert ids(warehouse) == [1, 2]
    IcebergLife(warehouse, dataFilesWithin="any").epoch(1, ROWS)
    assert list(elsewhere.iterdir())
    assert ids(warehouse) == [1, 1, 2, 2]


def test_new_files_may_go_elsewhere_in_the_warehouse(warehouse):
    elsewhere = warehouse / "elsewhere"
    set_properties(warehouse, {"write.data.path": str(elsewhere)})
    with pytest.raises(OptionError, match=r"write\.data\.path"):
        IcebergLife(warehouse, dataFilesWithin="table").epoch(1, ROWS)
    IcebergLife(warehouse).epoch(1, ROWS)
    assert list(elsewhere.glob("*.parquet"))


# --- files that are read


def with_file_elsewhere(warehouse, folder):
    folder.mkdir()
    file = folder / "private.parquet"
    pq.write_table(ROWS, file)
    table_of(warehouse).add_files([str(file)])


def test_data_files_elsewhere_are_read_unless_an_option_forbids_it(warehouse, tmp_path):
    with_file_elsewhere(warehouse, tmp_path / "private")
    read = iceberg_reading.batch
    assert len(read(warehouse, table=TABLE)) == 4
    assert len(read(warehouse, table=TABLE, dataFilesWithin="any")) == 4
    for within in ("table", "warehouse"):
        with pytest.raises(OptionError, match=r"private\.parquet.*was not opened"):
            read(warehouse, table=TABLE, dataFilesWithin=within)
        stream = iceberg_reading.Stream(warehouse, table=TABLE, dataFilesWithin=within)
        with pytest.raises(OptionError, match="was not opened"):
            stream.drain()


def test_data_files_in_the_warehouse_are_read(warehouse):
    with_file_elsewhere(warehouse, warehouse / "other")
    read = iceberg_reading.batch
    assert len(read(warehouse, table=TABLE, dataFilesWithin="warehouse")) == 4
    with pytest.raises(OptionError, match="was not opened"):
        read(warehouse, table=TABLE, dataFilesWithin="table")


ACCESS = TableAccess("s3a://box/t", (Location.parse("s3://box/t/metadata/1.metadata.json"),))


@pytest.mark.parametrize(
    ("access", "location", "is_accepted"),
    [
        (ACCESS, "s3n://other/x.parquet", True),  # the host is the user's
        (ACCESS, "gs://other/x.parquet", True),
        (ACCESS, "/etc/passwd", False),  # of the machine that reads
        (ACCESS, "file:///etc/passwd", False),
        (ACCESS, "hdfs://host:1/x", False),
        (ACCESS, "abfss://c@other.dfs.core.windows.net/x", False),
        (ACCESS, "http://169.254.169.254/x", False),
        (ACCESS, "FILE:///etc/passwd", False),
        (ACCESS, " file:///etc/passwd", False),
        (ACCESS, "fi\tle:///etc/passwd", False),
        (ACCESS, "file:etc/passwd", False),
        (ACCESS, "file://host/etc/passwd", False),
        (ACCESS, "abfss://c@a.dfs.core.windows.net@evil/x", False),
        (ACCESS, "hdfs://user@nn/x", False),
        (ACCESS, "hdfs://[::1]/x", False),
        (ACCESS, "hdfs:///x", True),  # the host is the user's
        (ACCESS, "s3://arn:aws:s3:eu-west-1:1:accesspoint/p/x", True),
        (TableAccess("/t", (Location.parse("/t/metadata/1"),)), "/other/x", True),
        (TableAccess("/t", (Location.parse("file:///t/metadata/1"),)), "/other/x", True),
        (
            TableAccess("hdfs://nn/t", (Location.parse("hdfs://nn/t/metadata/1"),)),
            "hdfs://NN/other/x",
            True,
        ),
        (
            TableAccess("x", (Location.parse("abfss://c@a.dfs.core.windows.net/t"),)),
            "wasbs://d@A.blob.core.windows.net/x",
            True,
        ),
    ],
)
def test_files_on_hosts_that_the_user_or_the_catalog_named(access, location, is_accepted):
    if is_accepted:
        access.check(location)
    else:
        with pytest.raises(OptionError, match="was not opened"):
            access.check(location)


@pytest.mark.parametrize("bucket", ["evil:1\\x", "a@b", "a b", "%5c", "", "ü", "[::1]", "[x"])
def test_what_cannot_be_a_bucket_reaches_no_client(bucket):
    """Clients put such a name before the host of an endpoint; obstore panics."""
    with pytest.raises(OptionError, match=r"names no bucket|is not a valid location"):
        ACCESS.check(f"s3://{bucket}/x")


@pytest.mark.parametrize(
    ("location", "folder", "is_below"),
    [
        ("/w/t/data/x", "/w/t", True),
        ("file:/w/t/data/x", "/w/t/", True),
        ("/w/t/../other/x", "/w/t", False),
        ("/w/t/./data/x", "/w/t", True),
        ("/w/tother/x", "/w/t", False),
        ("/w/t", "/w/t", False),
        ("s3://b/w//t/x", "s3a://b/w//t", True),
        ("s3://b/w/t/../x", "s3://b/w/t", False),
        ("s3://other/w/t/x", "s3://b/w/t", False),
        ("hdfs://nn/w/t/x", "hdfs://nn:8020/w/t", True),
        ("hdfs://nn:9000/w/t/x", "hdfs://nn:8020/w/t", False),
        ("abfss://c@a.dfs.core.windows.net/w/x", "wasb://c@a.blob.core.windows.net/w", True),
        ("abfss://d@a.dfs.core.windows.net/w/x", "abfss://c@a.dfs.core.windows.net/w", False),
        ("gs://b/w/x?/../y", "gs://b/w", False),  # PyArrow's path ends at the question mark
        ("gs://b/w/x#y", "gs://b/w", False),
        ("gs://b/w/x", "gs://b/w?", False),
        ("s3://b/w/x\\..\\y", "s3://b/w", False),
        ("s3://b/w/.\t./y", "s3://b/w", False),  # removed from URLs
        ("/w/t/data/a b?c#d%20é", "/w/t", True),
        ("s3://b/w t/data/a b%20é", "s3a://b/w t", True),
        ("/w/t/data/x\0y", "/w/t", False),
        (
            "s3://arn:aws:s3:eu-west-1:1:accesspoint/p/x",
            "s3://arn:aws:s3:eu-west-1:1:accesspoint/p",
            True,
        ),
    ],
)
def test_locations_below_a_folder(location, folder, is_below):
    assert Location.parse(location).is_below(Location.parse(folder)) is is_below


# --- files that are deleted


DELETES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "1",
}


def with_old_metadata(folder, *files):
    def change(metadata):
        metadata["properties"] |= DELETES
        entries = [
            {"metadata-file": str(file), "timestamp-ms": metadata["last-updated-ms"] - 1}
            for file in files
        ]
        metadata["metadata-log"] = [*entries, *metadata["metadata-log"]]

    alter(folder, change)


def test_a_commit_deletes_no_file_that_the_metadata_log_names_elsewhere(warehouse, tmp_path):
    precious = tmp_path / "precious.db"
    precious.write_text("years of work")
    own = uuid_of(warehouse)
    elsewhere = tmp_path / f"00001-{own}.metadata.json"
    inside = warehouse / "db/rows/metadata" / f"00001-{own}.metadata.json"
    for file in (elsewhere, inside):
        file.write_text("{}")
    sneaky = warehouse / "db/rows/metadata/../../.." / "precious.metadata.json"
    sneaky.write_text(json.dumps({"table-uuid": own}))
    with_old_metadata(warehouse, precious, elsewhere, inside, sneaky)
    IcebergLife(warehouse).epoch(1, ROWS)
    assert precious.exists()
    assert elsewhere.exists()
    assert sneaky.exists()
    assert not inside.exists()


def uuid_of(folder):
    return str(table_of(folder).metadata.table_uuid)


@pytest.mark.parametrize("suffix", [".metadata.json", ".gz.metadata.json"])
def test_metadata_of_other_programs_goes_if_it_is_the_tables(warehouse, suffix):
    folder = warehouse / "db/rows/metadata"
    texts = {
        "own": {"location": "x" * 9000, "table-uuid": uuid_of(warehouse)},
        "other": {"table-uuid": str(uuid.uuid4())},
        "none": {},
    }
    files = {name: folder / f"00001-{uuid.uuid4()}{suffix}" for name in texts}
    for name, file in files.items():
        text = json.dumps(texts[name]).encode()
        file.write_bytes(gzip.compress(text) if ".gz" in suffix else text)
    with_old_metadata(warehouse, *files.values())
    IcebergLife(warehouse).epoch(1, ROWS)
    assert not files["own"].exists()
    assert files["other"].exists()
    assert files["none"].exists()


def test_expiry_deletes_only_files_in_the_tables_own_folders(tmp_path, monkeypatch):
    """An expired snapshot names another table's file, whose name has the same twelve digits."""
    monkeypatch.setattr(expiry, "_READING_MS", -60_000)
    monkeypatch.setattr(expiry, "_LUMP", 1)
    warehouse = tmp_path / "warehouse"
    few = {
        "tableProperty.krishiv.history.expire.max-snapshots-to-keep": "1",
        "tableProperty.history.expire.min-snapshots-to-keep": "1",
        "mode": "upsert",
        "keyColumns": "id",
    }
    life = IcebergLife(warehouse, **few)
    life.epoch(0, ROWS)
    (data,) = warehouse.glob("db/rows/data/*.parquet")
    victim = warehouse / "db/victim/data"
    victim.mkdir(parents=True)
    set_properties(warehouse, {"write.data.path": str(victim)})
    life.epoch(1, ROWS)  # now the table's file is in a folder that may be another table's
    (other,) = victim.glob("*.parquet")
    for epoch in (2, 3, 4):
        life.epoch(epoch, ROWS)
    assert len(table_of(warehouse).snapshots()) == 1
    assert not data.exists()
    assert other.exists()
    allowed = IcebergLife(warehouse, **few, dataFilesWithin="any")
    before = set(victim.glob("*.parquet"))
    for epoch in (5, 6, 7):
        allowed.epoch(epoch, ROWS)
    assert len(before - set(victim.glob("*.parquet"))) >= 1


def linked(warehouse, tmp_path):
    """Link a folder of the table to the data of another one, with the same id."""
    victim = tmp_path / "victim"
    victim.mkdir()
    id_in_names = table_of(warehouse).metadata.table_uuid.hex[:12]
    file = victim / f"00000-0-x-0-0-t{id_in_names}-0.parquet"
    pq.write_table(ROWS, file)
    return victim, file


def test_nothing_behind_a_link_is_the_tables(warehouse, tmp_path):
    victim, file = linked(warehouse, tmp_path)
    link = warehouse / "db/rows/data/linked"
    link.symlink_to(victim)
    table = open_table(options_of(warehouse))
    own = OwnFiles.from_metadata(table.metadata, table.io)
    assert str(link.parent / file.name) in own
    assert str(link / file.name) not in own
    own.delete([str(link / file.name)])
    assert file.exists()
    table_of(warehouse).add_files([str(link / file.name)])
    assert numbers(warehouse) == [1, 1, 2, 2]  # as everywhere, without the option
    for within in ("table", "warehouse"):
        with pytest.raises(OptionError, match="was not opened"):
            iceberg_reading.batch(warehouse, table=TABLE, dataFilesWithin=within)


def test_a_link_for_a_data_file_is_not_read_if_it_leads_out(warehouse, tmp_path):
    _, file = linked(warehouse, tmp_path)
    link = warehouse / "db/rows/data" / "one.parquet"
    link.symlink_to(file)
    table_of(warehouse).add_files([str(link)])
    with pytest.raises(OptionError, match="was not opened"):
        iceberg_reading.batch(warehouse, table=TABLE, dataFilesWithin="table")


def test_vacuum_lists_no_folder_that_a_link_has_replaced(warehouse, tmp_path):
    victim, _ = linked(warehouse, tmp_path)
    data = warehouse / "db/rows/data"
    data.rename(data.with_name("moved"))
    data.symlink_to(victim)
    with pytest.raises(OptionError, match="outside the table's location"):
        find_orphans(options_of(warehouse), -60)


def test_vacuum_where_data_are_in_the_tables_location_itself(warehouse):
    set_properties(warehouse, {"write.data.path": table_of(warehouse).location()})
    IcebergLife(warehouse).epoch(1, ROWS)
    own = f"00000-0-x-0-0-t{table_of(warehouse).metadata.table_uuid.hex[:12]}-0.parquet"
    (warehouse / "db/rows" / own).write_text("an orphan")
    found = find_orphans(options_of(warehouse), -60)
    assert [Path(file.path).name for file in found.files] == [own]


def test_vacuum_does_not_follow_links(warehouse, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    name = f"00000-0-x-0-0-t{table_of(warehouse).metadata.table_uuid.hex[:12]}-0.parquet"
    (victim / name).write_text("precious")
    folder = warehouse / "db/rows/data"
    (folder / "linked").symlink_to(victim)
    (folder / name).write_text("an orphan")
    found = find_orphans(options_of(warehouse), -60, foreign_names=True)
    assert [Path(file.path).name for file in found.files] == [name]
    assert Path(found.files[0].path).parent == folder
    make_deleter(options_of(warehouse))(found.files[0])
    assert (victim / name).read_text() == "precious"


# --- intents


@pytest.mark.parametrize("field", ["manifest", "changes"])
def test_an_intent_names_no_file_of_others(warehouse, tmp_path, field):
    precious = tmp_path / "precious.db"
    precious.write_text("years of work")
    table = open_table(options_of(warehouse))
    value = str(precious) if field == "manifest" else (str(precious),)
    forged = StagedForTable(table=uuid_of(warehouse), spec_id=0, after=0, **{field: value})
    with pytest.raises(LogError, match=r"precious\.db.*Nothing was read or deleted"):
        read_intent_files(table, forged)
    delete_intent_files(table, [forged])
    assert precious.exists()
    participant = route(warehouse).participant(None)
    with pytest.raises(LogError, match=r"precious\.db"):
        participant.finish(Epoch("query-2", 0), [forged])
    participant.discard([forged])
    assert precious.exists()


def route(folder):
    from krishiv_spark.sinks.base import OutputMode
    from krishiv_spark.sinks.iceberg.route import IcebergRoute

    given = {"warehouse": str(folder), "table": TABLE}
    options = IcebergSinkOptions.parse(given, FORMAT)
    return IcebergRoute(options, ROWS.schema, OutputMode.APPEND, streaming=True)


# --- metadata that contradicts itself


@pytest.mark.long
@pytest.mark.parametrize("name", ["refs", "current-snapshot-id"])
def test_a_main_branch_that_is_not_at_the_current_snapshot_is_refused(warehouse, name):
    """Commits would fail with an error of PyIceberg that names neither table nor reason."""
    IcebergLife(warehouse, checkpointLocation=f"{warehouse}/c").epoch(0, ROWS)

    def change(metadata):
        if name == "refs":
            metadata["refs"]["main"]["snapshot-id"] = 2**63
        else:
            metadata[name] = None

    alter(warehouse, change)
    life = IcebergLife(warehouse, checkpointLocation=f"{warehouse}/c", query="query-2")
    with pytest.raises(OptionError, match="its branch main is at snapshot"):
        life.plan(ROWS)


# --- sizes


@pytest.mark.long
def test_metadata_that_is_too_large_is_not_read(warehouse):
    import resource

    location = alter(warehouse, lambda _: None)
    text = location.read_bytes()
    bomb = location.with_name(location.name.replace(".metadata", ".gz.metadata"))
    with gzip.open(bomb, "wb") as file:
        file.write(text[:-1])
        for _ in range(300):
            file.write(b" " * 2**20)
        file.write(text[-1:])
    with catalog_of(warehouse).engine.begin() as connection:
        connection.exec_driver_sql("update iceberg_tables set metadata_location = ?", (str(bomb),))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    with pytest.raises(OptionError, match=r"more than 268435456 bytes \('maxMetadataBytes'\)"):
        open_table(options_of(warehouse))
    assert time.monotonic() - begun < 60
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 600 * 2**10
    with pytest.raises(OptionError, match="more than 1000 bytes"):
        open_table(options_of(warehouse, maxMetadataBytes="1000"))


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "bzip2", "snappy", "null"])
def test_a_block_of_a_manifest_that_is_too_large_is_not_read(codec):
    if codec == "snappy":  # PyIceberg's extra, whose package the tests have
        pytest.importorskip("snappy")
    known, decompress = KNOWN_CODECS[codec], create_decompressor(codec)

    def pack(text):
        return text if known is None else known.compress(text)[0]

    for size in (0, 1, 9_999, 10_000):
        text = (b"krishiv" * size)[:size]
        assert decompress(pack(text), 10_000) == text
    if codec in {"deflate", "bzip2"}:
        with pytest.raises(ValueError, match="ends in the middle"):
            decompress(pack(text)[:-8], 10_000)
    with pytest.raises(OptionError, match="more than 10000 bytes"):
        decompress(pack(bytes(10_001)), 10_000)


@pytest.mark.parametrize("given", [{}, {"dataFilesWithin": "table"}])
def test_access_follows_the_options(warehouse, given):
    found = FileAccess.from_options(options_of(warehouse, **given))
    assert found.warehouse == str(warehouse)
    assert found.within == given.get("dataFilesWithin")


def test_an_unknown_extent_is_refused(warehouse):
    with pytest.raises(OptionError, match="dataFilesWithin"):
        options_of(warehouse, dataFilesWithin="everywhere")
