"""A store of another package is a class and an entry point: tables and options know it then."""

import logging
import pickle
import subprocess
import sys

import pytest
import shelf_store
from parquet_reading import FIRST, UNLIMITED, reader
from sink_life import SCHEMA, Life, rows

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.storage import Storage, StoreUrl, UploadState, base
from krishiv_spark.storage.base import BaseStore, store_kinds, store_type

KEY = {"storage.shelf.key": "hunter2-of-the-shelf"}
URL = "shelf://box/table"


@pytest.fixture(autouse=True)
def fresh_registry():
    caches = (base._find_installed, base.store_type, base._find_by_scheme)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package that only registers a store, as its wheel would."""

    def install(kind="shelf", value="shelf_store:ShelfStore"):
        site = tmp_path / "site"
        metadata = site / "krishiv_spark_shelf-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(f"[krishiv_spark.stores]\n{kind} = {value}\n")
        monkeypatch.syspath_prepend(site)
        return site

    return install


@pytest.fixture
def shelf(install):
    return install()


@pytest.mark.usefixtures("shelf")
def test_a_table_in_it_is_written_exactly_once_and_read():
    driver = Life(ParquetWriter, {"path": URL, **KEY}, "q1", OutputMode.APPEND)
    for _ in range(2):  # the second time as after a crash before Spark's commit
        driver.epoch(0, rows(0, 10))
    driver.epoch(1, rows(10, 5))
    assert sorted(Storage.of(KEY).folder(f"{URL}/_krishiv").names()) != []
    source = reader(URL, schema=SCHEMA, **KEY)
    end = source.latest(FIRST, UNLIMITED)
    found = [batch for part in source.plan(FIRST, end) for batch in source.read(part)]
    assert sorted(n for batch in found for n in batch["id"].to_pylist()) == list(range(15))


@pytest.mark.usefixtures("shelf")
def test_its_abilities_are_those_of_the_class():
    storage = Storage.of(KEY)
    folder, uploads = storage.folder(URL), storage.uploads(URL)
    assert folder.create("a", b"1")
    assert not folder.create("a", b"2")
    assert (folder.read("a"), folder.tail("a", 1)) == (b"1", b"1")
    assert storage.files(URL).identity(f"{URL}/a").size == 1
    file = uploads.open("b")
    file.write(b"22")
    upload = file.close()
    assert uploads.state(upload) is UploadState.OPEN
    assert uploads.complete(upload)
    assert pickle.loads(pickle.dumps(folder)).read("b") == b"22"


@pytest.mark.usefixtures("shelf")
def test_its_options_are_checked_and_its_secrets_are_not_shown(caplog):
    caplog.set_level(logging.DEBUG)
    options = ParquetSinkOptions.parse({"path": URL, **KEY}, "krishiv-parquet")
    assert options.storage.secrets() == {KEY["storage.shelf.key"]}
    assert ParquetSinkOptions.secret_keys(KEY) == {*KEY}
    assert "hunter2" not in f"{options!r} {options.storage.folder(URL)!r} {caplog.text}"
    with pytest.raises(OptionError, match=r"storage.shelf: unknown option 'kee'"):
        ParquetSinkOptions.parse({"path": URL, "storage.shelf.kee": "x"}, "krishiv-parquet")
    with pytest.raises(OptionError, match=r"needs 'storage.shelf.key'"):
        Storage().folder(URL).names()


@pytest.mark.usefixtures("shelf")
def test_its_urls_are_like_those_of_a_bucket_and_its_schemes_are_known():
    url = StoreUrl.parse("shelves://box/a/../b")
    assert (url.kind, url.bucket, url.path) == ("shelf", "box", "b")
    assert url.store == StoreUrl.parse("shelf://box").store
    assert store_kinds()[-1] == "shelf"
    with pytest.raises(OptionError, match="names no bucket: write shelf://"):
        StoreUrl.parse("shelf:///x")
    with pytest.raises(OptionError, match=r"known: a path, s3:.* shelf:, shelves:"):
        StoreUrl.parse("ftp://x/y")


def test_an_error_states_the_cause_in_one_line(install):
    install()
    with pytest.raises(StorageError) as caught:
        Storage.of(KEY).folder("shelf://box").read("\0")
    assert "\n" not in str(caught.value)


def test_a_store_that_is_not_installed_is_not_known():
    assert StoreUrl.kind_of(URL) is None
    with pytest.raises(OptionError, match=r"unknown option .storage\.shelf"):
        ParquetSinkOptions.parse({"path": "/t", **KEY}, "krishiv-parquet")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no_such_module:Store", "cannot be imported: ModuleNotFoundError"),
        ("shelf_store:ShelfSettings", "no subclass of BaseStore of that kind"),
    ],
)
def test_a_registration_that_does_not_fit_is_told(install, value, expected):
    install(value=value)
    with pytest.raises(OptionError, match=expected):
        StoreUrl.parse(URL)
    assert StoreUrl.kind_of("s3://box") == "s3"  # others are reached as before


def test_every_store_has_a_class_that_its_registration_names():
    found = [store_type(kind) for kind in store_kinds()]
    assert all(issubclass(one, BaseStore) for one in found)
    schemes = [scheme for one in found for scheme in one.schemes]
    assert len(schemes) == len({*schemes})
    assert {*store_type("disk").schemes} == {*base._DISK_SCHEMES}


@pytest.mark.long
def test_a_path_imports_no_store_of_buckets():
    code = (
        "import sys\n"
        "from krishiv_spark.storage import Storage\n"
        "Storage().folder('/tmp').names()\n"
        "print([name for name in sys.modules if name.startswith('krishiv_spark.storage.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "storage.disk'" in done.stdout
    assert "storage.s3'" not in done.stdout
    assert shelf_store.ShelfStore.__module__ not in done.stdout
