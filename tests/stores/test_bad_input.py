"""Mistakes of users about a store: one line states the fault, the value and the correction, soon.

The calls are those of Spark's planner: for a checkpoint with an epoch log, for a table that is
written, and for one that is read.
"""

import json
import pickle
import re
import socket
import time
import uuid
from contextlib import closing
from getpass import getuser

import pytest
import requests
from pyspark.sql.types import LongType, StructField, StructType
from store_users import new_token, new_user

from krishiv_spark.errors import StorageError
from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.runtime import contact
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.reader import ParquetReader
from krishiv_spark.storage import Storage, StoreUrl
from servers.forwarding import Message, forwarding
from servers.stores import ACCOUNT, KEY

SCHEMA = StructType([StructField("id", LongType())])
QUERY = str(uuid.uuid4())
OTHER_KEY = "F" + KEY[1:]
SECRETS = ("hunter2", KEY, OTHER_KEY, "sig=")
WITHIN_S = 12  # ten, on a busy machine


@pytest.fixture
def impatient(monkeypatch, roles):
    """Shorten waits of seconds in tests of texts."""
    del roles  # which are made with patience
    monkeypatch.setattr(contact, "_FIRST_CONTACT_S", 0.5)
    monkeypatch.setattr(contact, "_FIRST_REQUEST_S", 0.5)


class Roles:
    """The calls of a planner.

    Args:
        store: The store of the checkpoint and the tables.
        folder: A folder on the disk.
    """

    def __init__(self, store, folder):
        self.store, self.folder = store, folder
        begin(Storage.of(store.options), f"{store.url}/checkpoint")
        begin(Storage(), str(folder / "checkpoint"))

    def refused(self, role, url=None, **changes):
        """Return the error that a user gets after changes of the options, by the ends of their
        names.
        """
        kind = StoreUrl.parse(self.store.url).kind
        named = {f"storage.{kind}.{name}": text for name, text in changes.items()}
        given = {name: text for name, text in {**self.store.options, **named}.items() if text}
        begun_s = time.monotonic()
        with pytest.raises((PlanningFailed, StorageError)) as caught:
            getattr(self, role)(url or self.store.url, given)
        assert time.monotonic() - begun_s < WITHIN_S
        said = str(caught.value)
        assert "\n" not in said
        assert not [secret for secret in SECRETS if secret in said]
        return said

    def checkpoint(self, url, options):
        table = str(self.folder / "table")
        where = {"checkpointLocation": f"{url}/checkpoint", "epochLog": f"{url}/log"}
        plan({"path": table, **where, **options})

    def table(self, url, options):
        checkpoint = str(self.folder / "checkpoint")
        plan({"path": f"{url}/table", "checkpointLocation": checkpoint, **options})

    def source(self, url, options):
        given = ParquetReader.options_type.parse({"path": f"{url}/in", **options}, "test")
        ParquetReader(given, None, streaming=True).latest(ParquetOffset(), UNLIMITED)


def begin(storage, checkpoint):
    """A checkpoint of which Spark has planned the first epoch."""
    storage.folder(checkpoint).create("metadata", json.dumps({"id": QUERY}).encode())
    storage.folder(f"{checkpoint}/offsets").create("0", b'v1\n{}\n{"end":1}')


def plan(options):
    pickle.dumps(ParquetDataSource(options).streamWriter(SCHEMA, overwrite=False))


@pytest.fixture
def roles(store, tmp_path):
    return Roles(store, tmp_path)


@pytest.fixture
def of(servers, tmp_path):
    """By kind of the store."""
    return lambda kind: Roles(replaced(servers(kind)), tmp_path)


def replaced(store):
    return type(store)(**{**vars(store), "url": f"{store.url}/{uuid.uuid4().hex}"})


ROLES = pytest.mark.parametrize("role", ["checkpoint", "table", "source"])


# --- nobody answers


@pytest.fixture
def silent():
    """The address of who takes connections, and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@ROLES
@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://127.0.0.1:9", "no server listens at http://127.0.0.1:9"),
        ("http://nowhere.invalid", "the host of http://nowhere.invalid{port} is not known"),
        ("silent", "{silent} does not respond"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_an_endpoint_where_nobody_answers_is_named(roles, role, endpoint, says, silent):
    said = roles.refused(role, endpoint=silent if endpoint == "silent" else endpoint)
    kind = StoreUrl.parse(roles.store.url).kind
    port = ":80" if kind == "hdfs" else ""  # WebHDFS has a port of its own: it is always named
    assert says.format(silent=silent, port=port) in said
    assert said.endswith(f"correct 'storage.{kind}.endpoint', or the setting in the environment")


@pytest.mark.parametrize("kind", ["s3", "hdfs"])  # by each of the clients that are asked first
def test_who_never_answers_is_given_up_in_time_again_and_again(of, kind, silent):
    roles = of(kind)
    for _ in range(2):
        assert "does not respond" in roles.refused("source", endpoint=silent)


# --- who asks, and where


LOGINS = {
    "key": ("versity", {"accessKeyId": "nobody"}, "'storage.s3.accessKeyId'"),
    "secret": ("versity", {"secretAccessKey": "hunter2"}, "the secret is wrong"),
    "region": ("versity", {"region": "eu-west-1"}, 'expecting "us-east-1".*storage.s3.region'),
    "account key": ("azure", {"accountKey": OTHER_KEY}, "'storage.azure.accountKey'"),
}


@ROLES
@pytest.mark.long  # at each of the stores
@pytest.mark.parametrize("case", LOGINS)
def test_a_wrong_login_is_told_with_its_option(of, role, case):
    kind, changes, says = LOGINS[case]
    roles = of(kind)
    said = roles.refused(role, **changes)
    assert_matches(says, said)


def assert_matches(pattern, text):
    assert re.search(pattern, text), text


@ROLES
@pytest.mark.parametrize("kind", ["s3", "versity", "azure"])  # Google's emulator does not say it
def test_a_bucket_that_is_not_there_is_no_place_without_files(of, role, kind):
    roles = of(kind)
    said = roles.refused(role, roles.store.url.replace("box", "nowhere"))
    assert_matches("(bucket|container) does not exist .*: create it, or correct the URL", said)
    assert "nowhere" in said


# --- what is not allowed


S3_ALL = (
    "s3:ListBucket",
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListBucketMultipartUploads",
)
S3_MISSING = {
    "checkpoint": {"GetObject": "read", "ListBucket": "list", "PutObject": "create"},
    "table": {
        "ListBucket": "list",
        "PutObject": "start a multipart upload",
        "AbortMultipartUpload": "abort the multipart upload",
        "ListBucketMultipartUploads": "list the multipart uploads",
        "DeleteObject": "remove",
    },
    "source": {"ListBucket": "list"},
}


@pytest.mark.parametrize(
    ("role", "right"), [(role, right) for role, rights in S3_MISSING.items() for right in rights]
)
@pytest.mark.xdist_group("versity")
def test_a_right_that_is_missing_in_s3_is_told(of, role, right):
    roles = of("versity")
    options = new_user(roles.store, *(each for each in S3_ALL if each != f"s3:{right}"))
    said = roles.refused(role, accessKeyId=options["storage.s3.accessKeyId"])
    verb = S3_MISSING[role][right]
    assert_matches(f"cannot {verb} .*the credentials do not allow it .*'storage.s3.", said)


AZURE_MISSING = {
    ("checkpoint", "wlcd"): "read",
    ("checkpoint", "rwcd"): "list",
    ("checkpoint", "rl"): "create",
    ("table", "racwd"): "list",
    ("table", "rl"): "write to",
    ("table", "rlcw"): "abort",
    ("source", "racwd"): "list",
}


@pytest.mark.xdist_group("azure")
@pytest.mark.parametrize(("role", "may"), AZURE_MISSING)
def test_a_right_that_is_missing_in_azure_is_told(of, role, may):
    roles = of("azure")
    token = {name.rpartition(".")[2]: text for name, text in new_token(may).items()}
    said = roles.refused(role, **token)
    verb = AZURE_MISSING[role, may]
    assert_matches(f"cannot {verb} .*the credentials do not allow it .*'storage.azure.", said)


@ROLES
@pytest.mark.xdist_group("hdfs")
def test_a_right_that_is_missing_in_hdfs_is_told(of, role):
    roles = of("hdfs")
    closed = f"{roles.store.options['storage.hdfs.endpoint']}/webhdfs/v1"
    path = StoreUrl.parse(roles.store.url).path
    given = {"op": "SETPERMISSION", "permission": "700", "user.name": getuser()}
    requests.put(closed + path, params=given, timeout=60).raise_for_status()
    said = roles.refused(role, user="somebody")
    assert_matches("the credentials do not allow it .*user=somebody.*'storage.hdfs.user'", said)


# --- what emulators never say, in the words of the stores' documentation


def answer(status, code, message):
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Message({"Content-Type": "application/xml"}, body.encode(), status=status)


SAID = {
    ("s3", 301, "PermanentRedirect", "must be addressed using the endpoint"): "another region",
    ("s3", 400, "ExpiredToken", "The provided token has expired."): "have expired .*: renew ",
    ("s3", 403, "RequestTimeTooSkewed", "The difference is too large"): "clock of this machine",
    ("s3", 403, "InvalidAccessKeyId", "does not exist in our records"): "is not known there",
    ("gcs", 404, "NoSuchBucket", "The bucket does not exist."): "bucket does not exist",
    ("gcs", 403, "AccessDenied", "no storage.objects.list access"): "do not allow it",
    ("gcs", 401, "AuthenticationRequired", "Authentication required."): "'storage.gcs.",
    ("azure", 403, "AuthenticationFailed", "Make sure the value"): "account or its key is wrong",
}


@ROLES
@pytest.mark.parametrize("case", SAID)
def test_what_a_store_says_is_told_with_what_to_do(of, role, case):
    kind, *said = case
    roles = of(kind)
    before = roles.store.options[f"storage.{kind}.endpoint"]
    with forwarding(before, lambda _: answer(*said)) as proxy:
        endpoint = proxy + (f"/{ACCOUNT}" if kind == "azure" else "")
        assert_matches(SAID[case], roles.refused(role, endpoint=endpoint))
