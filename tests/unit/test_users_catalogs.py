"""Catalogs as their users configure them: guarded against tables, and otherwise unchanged."""

import functools
import os

import iceberg_reading
import pyarrow as pa
import pytest
from hostile_tables import CANARY, CODE, alter, set_properties
from iceberg_life import TABLE, IcebergLife, catalog_of, ids, table_of
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg import _pyiceberg
from krishiv_spark.iceberg.catalogs import forget_catalog, guard, open_catalog, open_table
from krishiv_spark.iceberg.file_access import FileAccess, keep_users_choices, merge_vended
from krishiv_spark.iceberg.file_io import GuardedFileIO
from krishiv_spark.iceberg.guarded_catalog import GuardedCatalog, GuardedTable
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})


@pytest.fixture
def warehouse(tmp_path):
    folder = tmp_path / "warehouse"
    IcebergLife(folder).epoch(0, ROWS)
    return folder


@pytest.fixture
def canary(tmp_path, monkeypatch):
    file = tmp_path / "code-ran"
    monkeypatch.setenv(CANARY, str(file))
    return file


# --- classes of users


class UsersTable(Table):
    """A table with an additional method."""

    def shout(self):
        return ".".join(self.name()).upper()


class UsersSql(SqlCatalog):
    """A subclass that returns tables of another class."""

    def load_table(self, identifier):
        found = super().load_table(identifier)
        return UsersTable(found.name(), found.metadata, found.metadata_location, found.io, self)


class CommitsByAnotherMethod(SqlCatalog):
    """A catalog that loads the table for a commit as Hive's does: not by `load_table`."""

    def commit_table(self, table, requirements, updates):
        real = self.load_table
        self.load_table = functools.partial(SqlCatalog.load_table, self)
        try:
            return super().commit_table(table, requirements, updates)
        finally:
            self.load_table = real


class WithSlots(SqlCatalog):
    __slots__ = ("more",)


class Around(NoopCatalog):
    """A catalog of PyIceberg's base class around another one."""

    def __init__(self, name, **properties):
        super().__init__(name, **properties)
        self.inner = SqlCatalog(name, **properties)

    def load_table(self, identifier):
        return self.inner.load_table(identifier)

    def commit_table(self, table, requirements, updates):
        return self.inner.commit_table(table, requirements, updates)


def make(name, **properties):
    """Create a catalog; a function where a class is expected."""
    return UsersSql(name, **properties)


class NoCatalog:
    def __init__(self, name, **properties):
        pass


KINDS = [UsersSql, CommitsByAnotherMethod, WithSlots, Around, make, SqlCatalog]


def given(folder, kind):
    name = f"{kind.__module__}.{kind.__name__}"
    uri = f"sqlite:///{folder}/catalog.db"
    return {"catalog.py-catalog-impl": name, "catalog.uri": uri}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_users_catalog_reads_and_writes_and_obeys_no_table(warehouse, canary, kind):
    set_properties(warehouse, CODE)
    options = given(warehouse, kind)
    IcebergLife(warehouse, **options).epoch(1, ROWS)
    IcebergLife(warehouse, mode="upsert", keyColumns="id", **options).epoch(2, ROWS)
    assert iceberg_reading.batch(warehouse, table=TABLE, **options)["id"].to_pylist() == [1, 2]
    assert not canary.exists()
    assert ids_without_code(warehouse) == [1, 2]


def ids_without_code(folder):
    alter(folder, lambda metadata: [metadata["properties"].pop(key) for key in CODE])
    return ids(folder)


def options_of(folder, **more):
    return IcebergOptions.parse({"warehouse": str(folder), "table": TABLE, **more}, FORMAT)


def test_a_users_table_keeps_its_class(warehouse):
    table = open_table(options_of(warehouse, **given(warehouse, UsersSql)))
    assert isinstance(table, UsersTable)
    assert isinstance(table, GuardedTable)
    assert table.shout() == "DB.ROWS"
    assert isinstance(table.io, GuardedFileIO)
    assert isinstance(table.refresh().io, GuardedFileIO)


def test_a_catalog_in_another_is_guarded_too(warehouse):
    catalog = open_catalog(options_of(warehouse, **given(warehouse, Around)))
    assert isinstance(catalog, GuardedCatalog)
    assert isinstance(catalog.inner, GuardedCatalog)
    assert isinstance(catalog, Around)


def test_what_is_no_catalog_is_refused(warehouse):
    with pytest.raises(
        OptionError, match=r"NoCatalog.*not a subclass of pyiceberg\.catalog\.Catalog"
    ):
        open_table(options_of(warehouse, **given(warehouse, NoCatalog)))


class OwnProperties(SqlCatalog):
    """A subclass that chooses a FileIO and has a property that is not text."""

    def __init__(self, name, **properties):
        mine = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", "session": object()}
        super().__init__(name, **properties)
        self.properties = {**self.properties, **mine}


def test_a_users_catalog_keeps_the_properties_that_it_gives_itself(warehouse):
    options = options_of(warehouse, **given(warehouse, OwnProperties))
    assert {"py-io-impl", "session"} <= open_catalog(options).properties.keys()
    assert open_table(options).scan().to_arrow().num_rows == 2


# --- PyIceberg's own configuration


def test_settings_of_pyicebergs_environment_count_as_the_users(warehouse, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    configured = {
        "uri": f"sqlite:///{warehouse}/catalog.db",
        "type": "sql",
        "warehouse": str(tmp_path),
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }

    def config_of(name):
        return configured if name == "krishiv" else None

    monkeypatch.setattr(_pyiceberg._ENV_CONFIG, "get_catalog_config", config_of)
    options = IcebergOptions.parse({"table": TABLE, "catalog.type": "sql"}, FORMAT)
    set_properties(warehouse, {"write.data.path": str(elsewhere)})
    table = open_table(options)
    assert table.io.properties["py-io-impl"] == configured["py-io-impl"]
    assert table.location_provider().data_path == str(elsewhere)  # in that warehouse
    forget_catalog(options)


# --- locations


def test_folders_that_the_options_name_are_the_users(tmp_path):
    warehouse, data = tmp_path / "warehouse", tmp_path / "data of rows"
    metadata = tmp_path / "metadata"
    paths = {"write.data.path": str(data), "write.metadata.path": str(metadata)}
    own = {f"tableProperty.{key}": path for key, path in paths.items()}
    few = {"keepSnapshots": "1", "keepMetadataFiles": "1"}
    life = IcebergLife(warehouse, location=str(tmp_path / "place"), **own, **few)
    for epoch in range(3):
        life.epoch(epoch, ROWS)
    assert ids(warehouse) == [1, 1, 1, 2, 2, 2]
    assert len(list(data.glob("*.parquet"))) == 3
    assert len(list(metadata.glob("*.metadata.json"))) == 2  # the others were deleted
    with pytest.raises(OptionError, match=r"write\.data\.path.*'dataFilesWithin' = 'any'"):
        IcebergLife(warehouse).epoch(3, ROWS)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["plain", "with space", "ünïcode", "per%20cent", "a//b", "trailing/", "q?x", "#h"]
)
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_honest_locations(tmp_path, name, scheme):
    if scheme and set("?#") & set(name):
        pytest.skip("refused: PyIceberg's URLs end there")
    folder = tmp_path / "warehouse"
    life = IcebergLife(folder, location=f"{scheme}{tmp_path}/{name}", dataFilesWithin="table")
    for epoch in (0, 1):
        life.epoch(epoch, ROWS)
    read = iceberg_reading.batch(folder, table=TABLE, dataFilesWithin="table")
    assert sorted(read["id"].to_pylist()) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    "properties",
    [
        {"write.object-storage.enabled": "true"},
        {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"},
    ],
)
def test_honest_layouts(warehouse, properties):
    set_properties(warehouse, properties)
    IcebergLife(warehouse, dataFilesWithin="table").epoch(1, ROWS)
    assert ids(warehouse) == [1, 1, 2, 2]


def test_data_may_be_in_the_tables_location_itself(warehouse):
    set_properties(warehouse, {"write.data.path": table_of(warehouse).location()})
    IcebergLife(warehouse, dataFilesWithin="table").epoch(1, ROWS)
    assert ids(warehouse) == [1, 1, 2, 2]


def test_a_warehouse_behind_a_link_is_one_place(warehouse, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(warehouse)
    read = iceberg_reading.batch(link, table=TABLE, dataFilesWithin="table")
    assert read["id"].to_pylist() == [1, 2]
    IcebergLife(link, dataFilesWithin="table").epoch(1, ROWS)
    assert ids(warehouse) == [1, 1, 2, 2]


# --- settings of a server


def test_a_catalog_chooses_another_host_for_a_table_than_for_itself():
    server = {"uri": "http://c", "s3.endpoint": "http://usual", "py-io-impl": "evil"}
    client = keep_users_choices(server, {"uri": "http://c"})
    assert client == {"uri": "http://c", "s3.endpoint": "http://usual"}
    vended = {"s3.endpoint": "http://of-table", "s3.session-token": "x", "py-io-impl": "evil"}
    found = merge_vended(client, vended, {"uri": "http://c"})
    assert found == {"uri": "http://c", "s3.endpoint": "http://of-table", "s3.session-token": "x"}


def test_hosts_and_classes_of_the_user_win_over_those_of_a_server():
    mine = {"s3.endpoint": "http://mine", "py-io-impl": "mine", "auth": {"type": "noop"}}
    server = {"s3.endpoint": "http://theirs", "py-io-impl": "theirs", "gcs.service.host": "their"}
    assert keep_users_choices({**mine, **server}, mine) == {**mine, "gcs.service.host": "their"}
    ours = {"storage.s3.box.endpoint": "http://mine"}
    assert keep_users_choices({**ours, "s3.endpoint": "http://theirs"}, ours) == ours


# --- metadata files that a client placed


S3 = "s3://box/wh"
HDFS = "hdfs://nn:8020/wh"
AZURE = "abfss://c@acct.dfs.core.windows.net/wh"


@pytest.mark.parametrize(
    ("warehouse", "location", "is_accepted"),
    [
        (S3, "s3a://other/t/1.metadata.json", True),
        (S3, "gs://other/t/1.metadata.json", True),
        (S3, "abfss://c@evil.dfs.core.windows.net/1", False),
        (S3, "hdfs://evil:1/1", False),
        (S3, "/etc/1.metadata.json", False),
        (HDFS, "hdfs://nn/t/1", True),
        (HDFS, "hdfs:///t/1", True),
        (HDFS, "hdfs://evil/t/1", False),
        (AZURE, "wasbs://d@acct.blob.core.windows.net/t/1", True),
        (AZURE, "abfss://c@evil.dfs.core.windows.net/t/1", False),
        (AZURE, "abfss://c@acct.dfs.core.windows.net@evil/t/1", False),
        (AZURE, "abfss://c@acct.dfs.core.windows.net\\@evil/t/1", False),
        ("/wh", "hdfs://nn/t/1", True),  # the catalog decides
        ("/wh", "/elsewhere/1", True),
        (None, "hdfs://nn/t/1", True),
        ("named", "hdfs://nn/t/1", True),
    ],
)
def test_a_metadata_file_is_where_the_warehouse_is(warehouse, location, is_accepted):
    settings = {} if warehouse is None else {"warehouse": warehouse}
    for access in (FileAccess(), FileAccess(folders=("gs://mine",))):
        if is_accepted:
            access.check_metadata_file(location, settings)
        else:
            with pytest.raises(OptionError, match="not in the store of the warehouse"):
                access.check_metadata_file(location, settings)
    FileAccess(within="any").check_metadata_file(location, settings)


def test_a_client_cannot_have_the_metadata_file_fetched_from_another_host(warehouse):
    with catalog_of(warehouse).engine.begin() as connection:
        connection.exec_driver_sql(
            "update iceberg_tables set metadata_location = 'hdfs://127.0.0.1:1/x.metadata.json'"
        )
    given = {"catalog.uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": "hdfs://nn/wh"}
    for more in ({}, {"catalog.py-catalog-impl": "pyiceberg.catalog.sql.SqlCatalog"}):
        options = IcebergOptions.parse({"table": TABLE, **given, **more}, FORMAT)
        with pytest.raises(OptionError, match=r"hdfs://127\.0\.0\.1:1/x.*It was not opened"):
            open_table(options)


def test_a_catalog_that_names_no_metadata_file_has_no_disk_trusted(warehouse):
    metadata = table_of(warehouse).metadata.model_copy(update={"location": "s3://box/t"})
    access = FileAccess().for_table(metadata, "", {})
    with pytest.raises(OptionError, match="was not opened"):
        access.check(f"{os.getcwd()}/x.parquet")


def test_guarding_twice_changes_nothing(warehouse):
    catalog = load_catalog("krishiv", type="sql", uri=f"sqlite:///{warehouse}/catalog.db")
    first = guard(catalog, FileAccess(), {})
    assert type(guard(first, FileAccess(), {})) is type(first)
    assert isinstance(catalog, Catalog)
