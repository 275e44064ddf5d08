"""S3 by a profile of Amazon's files, as its own tools read them; versitygw reads signatures."""

import importlib.util
import json
import shlex
import sys

import pytest

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.storage import Storage
from krishiv_spark.storage.clients import open_client

KEYS = "storage.s3.accessKeyId", "storage.s3.secretAccessKey"
pytestmark = pytest.mark.xdist_group("versity")


@pytest.fixture
def store(servers):
    return servers("versity")


@pytest.fixture
def aws(tmp_path, monkeypatch):
    """Write Amazon's two files."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def write(credentials: str = "", config: str = "") -> None:
        (tmp_path / "credentials").write_text(credentials)
        (tmp_path / "config").write_text(config)

    return write


def keys_of(store) -> dict[str, str]:
    key, secret = (store.options[name] for name in KEYS)
    return {"aws_access_key_id": key, "aws_secret_access_key": secret}


def keys_in_options(store) -> dict[str, str]:
    return {name.rpartition(".")[2]: store.options[name] for name in KEYS}


def section(name: str, values) -> str:
    return "\n".join((f"[{name}]", *(f"{key} = {value}" for key, value in values.items()), ""))


def reached(store, **given: str) -> bool:
    plain = {name: value for name, value in store.options.items() if name not in KEYS}
    more = {f"storage.s3.{name}": value for name, value in given.items()}
    folder = Storage.of({**plain, **more}).folder(f"{store.url}/profiles")
    folder.replace("x", b"1")
    return folder.read("x") == b"1"


@pytest.fixture(autouse=True)
def _opened_anew():
    """A store is kept by its settings, and what files say is none of them."""
    open_client.cache_clear()
    yield
    open_client.cache_clear()


def test_the_default_profile_logs_in(store, aws):
    aws(section("default", keys_of(store)))
    assert reached(store)


def test_a_profile_is_chosen_by_the_environment_or_by_an_option(store, aws, monkeypatch):
    aws(section("mine", keys_of(store)))
    assert reached(store, profile="mine")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert reached(store)


def test_keys_go_before_profiles(store, aws, monkeypatch):
    aws(section("default", dict.fromkeys(keys_of(store), "not-this-one")))
    assert reached(store, profile="default", **keys_in_options(store))
    for name, value in keys_of(store).items():
        monkeypatch.setenv(name.upper(), value)
    assert reached(store)


def test_a_process_may_give_the_credentials(store, aws):
    keys = keys_of(store)
    said = {"Version": 1, "AccessKeyId": keys["aws_access_key_id"]}
    text = json.dumps({**said, "SecretAccessKey": keys["aws_secret_access_key"]})
    process = shlex.join([sys.executable, "-c", f"print({text!r})"])
    aws("", section("profile mine", {"credential_process": process}))
    assert reached(store, profile="mine")


def test_without_boto3_a_profile_alone_is_told(store, aws, monkeypatch):
    aws(section("default", keys_of(store)))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "krishiv_spark.storage.s3.find_spec",
        lambda name: None if name == "boto3" else find_spec(name),
    )
    with pytest.raises(OptionError, match=r"krishiv-spark\[s3\]"):
        reached(store)


def test_a_profile_that_is_not_there_is_named(store, aws):
    aws(section("mine", keys_of(store)))
    with pytest.raises(OptionError, match="'mien'"):
        reached(store, profile="mien")


def test_a_wrong_secret_is_told_and_not_shown(store, aws):
    aws(section("default", {**keys_of(store), "aws_secret_access_key": "not-this-one"}))
    with pytest.raises(StorageError, match="the secret is wrong") as caught:
        reached(store)
    assert "not-this-one" not in str(caught.value)
