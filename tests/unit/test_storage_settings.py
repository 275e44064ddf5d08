"""Options of how stores are reached: by kind and bucket, checked, never shown."""

import pickle

import pytest

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.storage import settings_for

SECRET = "hunter2-very-secret"
SECRETS = {
    "storage.s3.accessKeyId": SECRET,
    "storage.s3.secretAccessKey": SECRET,
    "storage.s3.sessionToken": SECRET,
    "storage.gcs.serviceAccountKey": SECRET,
    "storage.azure.accountKey": SECRET,
    "storage.azure.sasToken": SECRET,
    "storage.azure.clientSecret": SECRET,
    "storage.hdfs.token": SECRET,
    "storage.s3.endpoint": "http://127.0.0.1:9",
    "storage.hdfs.endpoint": "http://127.0.0.1:9",
    "storage.gcs.endpoint": "http://127.0.0.1:9",
    "storage.azure.endpoint": "http://127.0.0.1:9",
}
PROXY = f"http://user:{SECRET}@127.0.0.1:9"
PLACES = ("s3://box/x", "gs://box/x", "az://box@acc.dfs.core.windows.net/x", "hdfs://nn/x")


def regions(given, *urls: str) -> list[object]:
    found = [settings_for(StoreUrl.parse(url), given) for url in urls]
    return [settings.config().get("region") for settings in found]


def test_a_setting_of_a_bucket_goes_before_that_of_its_kind():
    given = {"storage.s3.region": "a", "storage.S3.my.box.Region": "b"}
    assert regions(given, "s3://box/x", "s3a://my.box/x") == ["a", "b"]


def test_a_setting_of_another_store_says_nothing():
    assert regions({"storage.s3.other.region": "a"}, "s3://box") == [None]
    assert regions({"storage.azure.accountName": "a"}, "s3://box") == [None]


def parsed(given) -> KafkaSinkOptions:
    return KafkaSinkOptions.parse({"kafka.bootstrap.servers": "h:1", **given}, "krishiv-kafka")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("storage.s3.acessKeyId", "storage.s3: unknown option .*did you mean 'accessKeyId'"),
        ("storage.s3.box.regoin", "storage.s3.box: unknown option .*did you mean 'region'"),
        ("storage.azur.accountKey", "did you mean 'storage.azure"),
        ("storage.ftp.user", r"write storage.<s3\|gcs\|azure\|hdfs"),
        ("storage.s3", "unknown option"),
    ],
)
def test_an_unknown_setting_is_refused_whatever_store_is_used(name, said):
    with pytest.raises(OptionError, match=said):
        parsed({name: SECRET})


def test_a_bad_value_is_told():
    with pytest.raises(OptionError, match=r"timeout.*needs a unit of time"):
        parsed({"storage.s3.timeout": "5"})


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_is_in_what_is_shown_or_raised(place, monkeypatch):
    monkeypatch.setattr("krishiv_spark.runtime.contact._FIRST_CONTACT_S", 0.1)
    storage = Storage.of(SECRETS)
    folder = storage.folder(place)
    settings = settings_for(StoreUrl.parse(place), SECRETS)
    with pytest.raises(StorageError) as caught:
        folder.read("x")
    shown = [repr(storage), repr(folder), repr(settings), str(settings), str(caught.value)]
    shown += [repr(parsed(SECRETS)), str(folder), repr(vars(folder))]
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("proxy", [PROXY, f"no scheme {SECRET}@:"])
def test_a_login_of_a_proxy_is_not_shown(place, proxy, monkeypatch):
    monkeypatch.setattr("krishiv_spark.runtime.contact._FIRST_CONTACT_S", 0.1)
    kind = StoreUrl.parse(place).kind
    given = {**SECRETS, f"storage.{kind}.proxy": proxy}
    with pytest.raises((StorageError, OptionError)) as caught:
        Storage.of(given).folder(place).read("x")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("place", PLACES)
def test_what_was_unpickled_is_reached_likewise(place):
    options = parsed(SECRETS)
    assert pickle.loads(pickle.dumps(options)).storage.folder(place).__dict__.keys()
    assert pickle.loads(pickle.dumps(options)).storage == options.storage
