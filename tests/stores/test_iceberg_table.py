"""Tables of Iceberg in buckets: by SQL, Glue and REST catalogs; what users get wrong."""

import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from cutting_proxy import CuttingProxy
from iceberg_life import (
    STREAM,
    IcebergLife,
    assert_appends,
    assert_upserts,
    numbered,
    race_of_three,
)
from iceberg_places import GLUE_SECRET, client, new_place
from iceberg_reading import Stream
from pyiceberg.catalog import load_catalog

from krishiv_spark.cli import main
from krishiv_spark.errors import CommitRejected, CommitUnknown, KrishivError
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions
from krishiv_spark.sinks.iceberg.committer import EpochCommit
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from servers.rest_catalog import open_rest_catalog
from servers.stores import SECRET

# Each with the server in whose group of xdist it is.
SQL = [("s3", "sql"), ("versity", "sql")]
GLUE = ("s3", "glue")
PLACES = [*SQL, GLUE, ("versity", "rest")]


def in_groups(places):
    return [
        pytest.param(place, marks=pytest.mark.xdist_group(place[0]), id=" ".join(place))
        for place in places
    ]


@pytest.fixture(scope="module")
def rest(servers, tmp_path_factory):
    """The URI of a REST catalog, whose tables are in versitygw."""
    with open_rest_catalog(tmp_path_factory.mktemp("rest"), servers("versity")) as uri:
        yield uri


@pytest.fixture(params=in_groups(PLACES))
def place(request, servers, tmp_path):
    server, catalog = request.param
    uri = request.getfixturevalue("rest") if catalog == "rest" else ""
    return new_place(catalog, servers(server), tmp_path, uri)


def test_epochs(place):
    assert_appends(place)


def test_upserts(place):
    assert_upserts(place)


def test_a_stream_reads_what_epochs_append(place):
    life = place.life()
    life.epoch(0, numbered(0))
    stream = Stream(place.url, table=place.name, **place.options)
    assert stream.trigger() == list(range(10))
    life.epoch(1, numbered(1))
    assert stream.restart().trigger() == list(range(10, 20))


def vacuum(place):
    command = ["iceberg", "vacuum", place.name, "--warehouse", place.url, "--older-than", "0 s"]
    for name, value in place.options.items():
        command += ["-o", f"{name}={value}"]
    return CliRunner().invoke(main, command, catch_exceptions=False).output


def test_vacuum_removes_what_no_snapshot_names(place):
    life = place.life(query=STREAM)
    life.epoch(0, numbered(0))
    life.stage(1, numbered(1), tasks=2)
    assert len(place.unnamed()) == 2
    said = vacuum(place)
    assert said.splitlines()[-1].startswith("2 files"), said
    assert place.unnamed() == set()
    assert place.ids() == list(range(10))


def test_a_driver_that_slept_through_a_vacuum_commits_no_file_that_is_not_there(place):
    """It was paused, or its epoch took longer than the guard age."""
    life = place.life(query=STREAM)
    life.epoch(0, numbered(0))
    long_ago = [replace(item, at_s=item.at_s - 3600) for item in life.stage(1, numbered(1))]
    vacuum(place)
    with pytest.raises(CommitRejected, match="the driver cannot find"):
        life.publish(1, long_ago, numbered(1))
    life.epoch(1, numbered(1))
    assert place.ids() == list(range(20))


def test_vacuum_refuses_a_folder_in_which_another_table_has_its_metadata(place):
    life = place.life()
    life.epoch(0, numbered(0))
    life.stage(1, numbered(1))
    other = uuid.uuid4()
    folder = urlsplit(f"{place.table().location()}/metadata")
    key = f"{folder.path[1:]}/00001-{other}.metadata.json"
    body = f'{{"table-uuid": "{other}"}}'.encode()
    client("s3", place.endpoint).put_object(Bucket=folder.netloc, Key=key, Body=body)
    assert f"belongs to another table (UUID {other})" in vacuum(place)
    assert len(place.unnamed()) == 1


# --- two at once


@pytest.mark.once
def test_three_drivers_race_on_one_query(place):
    given = {**place.options, "path": place.name}
    race_of_three(place.url, 4, 40, **given)
    assert place.ids() == list(range(160))


def test_committers_of_several_queries_lose_nothing_of_one_another(place):
    place.life().epoch(0, numbered(0))
    lives = [place.life(query=f"query-{number}", commitTimeout="60 s") for number in (1, 2, 3)]
    staged = [life.stage(7, numbered(number)) for number, life in enumerate(lives, 1)]
    with ThreadPoolExecutor() as pool:
        done = [
            pool.submit(life.publish, 7, part, numbered(0))
            for life, part in zip(lives, staged, strict=True)
        ]
        assert [each.result() for each in done] == [None] * 3
    assert place.ids() == list(range(40))
    assert len(place.table().snapshots()) == 4


def test_a_foreign_writer_between_stage_and_publish(place):
    life = place.life()
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    properties = IcebergOptions.parse(life_options(life), FORMAT).catalog_properties()
    load_catalog("krishiv", **properties).load_table(place.name).append(numbered(50))
    life.publish(1, staged, numbered(1))
    assert place.ids() == [*range(20), *range(500, 510)]


def life_options(life):
    return {key: text for key, text in life.options.items() if key != "commitTimeout"}


# --- answers of Glue that are lost, so that boto3 asks again


def is_commit(request: bytes) -> bool:
    return b"AWSGlue.UpdateTable" in request


@pytest.fixture
def proxy(place):
    with CuttingProxy(urlsplit(place.endpoint).port) as found:
        yield found


def through(proxy) -> dict[str, str]:
    return {"catalog.glue.endpoint": f"http://127.0.0.1:{proxy.port}"}


glue = pytest.mark.parametrize("place", in_groups([GLUE]), indirect=True)


@glue
@pytest.mark.parametrize("fault", ["lost answer", "lost request", "cut"])
def test_a_commit_that_glue_is_asked_for_twice_is_there_once(place, proxy, fault):
    life = place.life(**through(proxy))
    life.epoch(0, numbered(0))
    proxy.cut(is_commit, fault)
    life.epoch(1, numbered(1))
    assert proxy.cuts == [fault]
    assert place.ids() == list(range(20))
    assert len(place.table().snapshots()) == 2


@glue
def test_a_job_whose_snapshot_has_expired_since_does_not_add_its_rows_again(
    place, proxy, monkeypatch
):
    life, other = place.life(), place.life(query="other", keepSnapshots="1")
    life.epoch(0, numbered(0))
    job = place.life(query=f"{BATCH_PREFIX}1", streaming=False, **through(proxy))
    staged = job.stage(0, numbered(1))
    look = EpochCommit._load_table

    def late(committer):
        monkeypatch.setattr(EpochCommit, "_load_table", look)
        other.epoch(0, numbered(2))
        return look(committer)

    monkeypatch.setattr(EpochCommit, "_load_table", late)
    proxy.cut(is_commit, "lost answer")
    with pytest.raises(CommitUnknown, match="may or may not be in the table"):
        job.publish(0, staged, numbered(1))
    assert place.ids() == list(range(30))


# --- how a bucket is reached


@pytest.mark.parametrize("place", in_groups(SQL), indirect=True)
def test_what_the_catalog_is_given_goes_before_what_stores_are_given(place):
    wrong = {"storage.s3.endpoint": "http://127.0.0.1:9", "storage.s3.secretAccessKey": "no"}
    right = {
        "endpoint": place.endpoint,
        "access-key-id": place.options["storage.s3.accessKeyId"],
        "secret-access-key": SECRET,
    }
    given = {f"catalog.s3.{name}": value for name, value in right.items()}
    place.life(**wrong, **given).epoch(0, numbered(0))
    assert place.ids() == list(range(10))


@pytest.mark.parametrize("place", in_groups(SQL[1:]), indirect=True)
def test_the_environment_is_enough(place, monkeypatch):
    for name, setting in (("ACCESS_KEY_ID", "accessKeyId"), ("ENDPOINT_URL", "endpoint")):
        monkeypatch.setenv(f"AWS_{name}", place.options[f"storage.s3.{setting}"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    IcebergLife(place.url, **place.catalog).epoch(0, numbered(0))
    assert place.ids() == list(range(10))


@pytest.mark.parametrize("place", in_groups(SQL[1:]), indirect=True)
def test_a_profile_is_enough(place, monkeypatch, tmp_path):
    file = tmp_path / "credentials"
    user = place.options["storage.s3.accessKeyId"]
    file.write_text(f"[mine]\naws_access_key_id={user}\naws_secret_access_key={SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    given = {"storage.s3.endpoint": place.endpoint, "storage.s3.profile": "mine"}
    IcebergLife(place.url, **place.catalog, **given).epoch(0, numbered(0))
    assert place.ids() == list(range(10))


# --- what users get wrong


@pytest.fixture
def silent():
    """The URL of a server that takes requests and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


WRONG = {
    "bucket": ({"warehouse": "s3a://nowhere/x"}, "the bucket does not exist"),
    "refusing": ({"storage.s3.endpoint": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    "silent": ({"storage.s3.endpoint": "silent"}, "cannot list s3a://box"),
    "key": ({"storage.s3.accessKeyId": "nobody"}, "the access key is not known"),
    "secret": ({"storage.s3.secretAccessKey": "hunter3-wrong"}, "the secret is wrong"),
    "catalog's secret": ({"catalog.s3.secret-access-key": "hunter3-wrong"}, "cannot list s3a"),
    "setting": ({"storage.s3.regoin": "x"}, "did you mean 'region'"),
}


@pytest.mark.parametrize("there", [False, True], ids=["no table", "a table"])
@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("place", in_groups(SQL[1:]), indirect=True)
def test_a_bucket_that_is_not_reached_is_one_clear_line_before_a_row_moves(
    place, case, there, silent
):
    changes, says = WRONG[case]
    if there and "warehouse" in changes:
        return  # the catalog says where a table is
    if there:
        place.life().epoch(0, numbered(0))
    given = {key: silent if text == "silent" else text for key, text in changes.items()}
    begun_s = time.monotonic()
    with pytest.raises(KrishivError, match=says) as caught:
        place.life(**given).plan(numbered(0))
    assert time.monotonic() - begun_s < 15
    assert "\n" not in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (SECRET, "hunter3"))


@glue
def test_a_wrong_endpoint_of_glue_is_one_clear_line(place):
    begun_s = time.monotonic()
    with pytest.raises(KrishivError, match=r"127\.0\.0\.1:9") as caught:
        place.life(**{"catalog.glue.endpoint": "http://127.0.0.1:9"}).plan(numbered(0))
    assert time.monotonic() - begun_s < 20
    assert GLUE_SECRET not in str(caught.value)


@pytest.mark.parametrize("place", in_groups(SQL[:1]), indirect=True)
def test_an_embedded_catalog_cannot_be_in_a_bucket(place):
    life = IcebergLife(place.url, **place.store.options)
    with pytest.raises(KrishivError, match=r"set 'catalog\.uri'"):
        life.plan(numbered(0))
