"""Options ``storage.s3.…`` for buckets of tables, unless a property is specified."""

import pickle

import pytest

from krishiv_spark.iceberg.file_io import StoreFileIO, derive_s3_properties
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions

KEYS = {
    "storage.s3.accessKeyId": "ours",
    "storage.s3.secretAccessKey": "hunter2",
    "storage.s3.sessionToken": "token",
}
OURS = {"s3.access-key-id": "ours", "s3.secret-access-key": "hunter2", "s3.session-token": "token"}


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch):
    for name in ("REGION", "DEFAULT_REGION", "ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


def found(given, place="s3a://box/x"):
    """Return the derived properties without timeouts."""
    properties = derive_s3_properties(given, place)
    return {name: text for name, text in properties.items() if not name.endswith("-timeout")}


def test_each_setting_is_a_property():
    given = {"endpoint": "http://h:1", "region": "r", "pathStyle": "false", "proxy": "http://p:2"}
    said = {f"storage.s3.{name}": text for name, text in given.items()}
    assert found({**KEYS, **said}) == {
        **OURS,
        "s3.endpoint": "http://h:1",
        "s3.region": "r",
        "s3.force-virtual-addressing": "true",
        "s3.proxy-uri": "http://p:2",
    }
    assert found({"storage.s3.anonymous": "true"}) == {"s3.anonymous": "true"}


def test_a_bucket_has_settings_of_its_own():
    given = {"storage.s3.region": "a", "storage.s3.box.region": "b"}
    assert found(given) == {"s3.region": "b"}
    assert found(given, "s3://other") == {"s3.region": "a"}


@pytest.mark.parametrize("name", ["s3.access-key-id", "client.role-arn", "s3.signer"])
def test_credentials_never_come_from_two_places(name):
    assert found({**KEYS, name: "theirs"}) == {}


def test_what_the_catalog_says_goes_before():
    given = {"storage.s3.region": "a", "storage.s3.endpoint": "http://h:1"}
    assert found({**given, "s3.region": "b"}) == {"s3.endpoint": "http://h:1"}
    assert found({**given, "client.region": "b"}) == {"s3.endpoint": "http://h:1"}


def test_amazon_is_not_asked_for_the_region_of_a_bucket_that_is_elsewhere():
    assert found({"s3.endpoint": "http://h:1"}) == {"s3.region": "us-east-1"}
    assert found({}) == {}  # in which it is at Amazon


@pytest.mark.parametrize(
    ("given", "has"),
    [
        ({"warehouse": "s3a://box/x"}, True),
        ({"warehouse": "s3a://box/x", "catalog.py-io-impl": "mine.IO"}, False),
        ({"warehouse": "name", "storage.S3.region": "r"}, True),
        ({"warehouse": "name", "storage.azure.accountName": "a"}, False),
        ({"warehouse": "abfss://box@a.dfs.core.windows.net/x"}, False),
    ],
)
def test_other_stores_are_left_to_pyiceberg(given, has):
    parsed = IcebergOptions.parse({"table": "t", "catalog.uri": "http://h", **given}, FORMAT)
    name = f"{StoreFileIO.__module__}.{StoreFileIO.__name__}"
    assert (parsed.catalog_properties().get("py-io-impl") == name) is has


def test_files_travel_with_their_settings():
    io = pickle.loads(pickle.dumps(StoreFileIO(KEYS)))
    assert isinstance(io, StoreFileIO)
    assert found(io.properties) == OURS
