"""The servers that receive the login of a store, and the warnings about it."""

import json
import logging
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from krishiv_spark.errors import KrishivError, OptionError, StorageError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.operate.commands.common import checkpoint_of
from krishiv_spark.options.plain_secrets import is_loopback, warn_of_plain_http
from krishiv_spark.runtime import once
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage import storage as storage_module
from krishiv_spark.storage.hdfs import HdfsStore
from krishiv_spark.storage.http_sessions import RedirectRefusedError, guard, ignore_netrc
from krishiv_spark.storage.storage import settings_for
from krishiv_spark.testing.processes.secret_roles import places_of
from servers.threads import serve_in_thread

TOKEN = {"storage.hdfs.token": "canary"}
STATUS = {"pathSuffix": "", "type": "FILE", "length": 1, "modificationTime": 0}
SAS = {"storage.azure.sasToken": "sig=canary"}


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(once, "_given", set())
    storage_module._check_login.cache_clear()


def storage_of(options):
    return ParquetSinkOptions.parse(options, "krishiv-parquet").storage


# --- whose login goes where


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"path": "webhdfs://nn:9870/t", **TOKEN}, "webhdfs://evil:9870/log"),
        ({"path": "webhdfs://nn:9870/t", **TOKEN}, "webhdfs://nn:1/log"),
        ({"path": "webhdfs://nn:9870/t", **TOKEN}, "webhdfs://nn:9870@evil/log"),
        ({"path": "swebhdfs://nn:9871/t", **TOKEN}, "webhdfs://nn:9871/log"),
        ({"path": "/disk", **TOKEN}, "hdfs://evil/log"),
        (
            {"path": "webhdfs://nn/t", "storage.hdfs.kerberos": "true"},
            "webhdfs://evil/log",
        ),
        ({"path": "abfss://c@mine.dfs.core.windows.net/t", **SAS}, "abfss://c@evil.dfs.x.net/l"),
        (
            {"path": "abfss://c@mine.dfs.core.windows.net/t", **SAS},
            "abfss://c@evil.dfs.core.windows.net/l",
        ),
        # The identity of the machine logs in without any option.
        ({"path": "abfss://c@mine.dfs.core.windows.net/t"}, "abfss://c@mine.dfs.evil.example/l"),
        (
            {"path": "az://c/t", "storage.azure.accountName": "mine", **SAS},
            "abfss://c@mine.dfs.evil.example/l",
        ),
    ],
)
def test_a_server_that_no_option_names_is_given_no_login(options, url):
    storage = storage_of(options)
    for open_place in (storage.folder, storage.files, storage.uploads):
        with pytest.raises(OptionError, match="no option of yours names") as caught:
            open_place(url)
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"path": "webhdfs://nn:9870/t", **TOKEN}, "hdfs://nn/log"),
        ({"path": "/t", "epochLog": "webhdfs://other/log", **TOKEN}, "webhdfs://other/log/q"),
        ({"path": "/t", "checkpointLocation": "hdfs://nn/c", **TOKEN}, "hdfs://nn/c/krishiv"),
        ({"path": "/t", "storage.hdfs.endpoint": "http://nn:1", **TOKEN}, "hdfs://any/log"),
        ({"path": "webhdfs://nn/t"}, "webhdfs://other/log"),  # there is no login
        (
            {"path": "abfss://c@mine.dfs.core.windows.net/t", **SAS},
            "abfss://logs@mine.blob.core.windows.net/l",
        ),
        (
            {
                "path": "abfss://c@mine.dfs.core.windows.net/t",
                "epochLog": "abfss://c@theirs.dfs.core.windows.net/l",
            },
            "abfss://c@theirs.dfs.core.windows.net/l/q",
        ),
        ({"path": "az://c/t", "storage.azure.accountName": "mine", **SAS}, "az://logs/l"),
        (
            {"path": "az://c/t", "storage.azure.endpoint": "http://127.0.0.1:1/x", **SAS},
            "abfss://c@any.dfs.core.windows.net/l",
        ),
        ({"path": "s3://mine/t"}, "s3://other/l"),  # both are Amazon's
    ],
)
def test_places_that_the_user_has_named_are_reached_as_before(options, url):
    storage = storage_of(options)
    storage.folder(url)
    storage.files(url)


def test_options_of_stores_alone_say_nothing_of_places():
    Storage.for_query(TOKEN).folder("webhdfs://any:9870/t")
    with pytest.raises(OptionError):
        Storage.for_query({"path": "webhdfs://nn:9870/t", **TOKEN}).folder("webhdfs://any:9870/t")


@pytest.mark.parametrize("url", ["s3://h:1#/x", "s3://h?/x", "gs://h#/x", "abfss://c@h:1#/x"])
def test_a_bucket_cannot_make_its_host_another_one(url):
    with pytest.raises(OptionError, match="not the name of a bucket"):
        StoreUrl.parse(url)


# --- redirects


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, dict(self.headers)))
        status, headers, body = self.server.answer(self)
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ExitStack() as running:

        def start(answer, host="127.0.0.1"):
            made = ThreadingHTTPServer((host, 0), Answers)
            made.answer, made.asked, made.url = answer, [], f"http://{host}:{made.server_port}"
            return running.enter_context(serve_in_thread(made))

        yield start


def page(body=b"{}", status=200, **headers):
    return lambda _: (status, headers, body)


def hdfs_at(*addresses, **settings):
    url = StoreUrl.parse("hdfs://nn/t")
    given = {f"storage.hdfs.{name}": text for name, text in {"token": "canary", **settings}.items()}
    return HdfsStore(url, settings_for(url, given)).connect(addresses)


def test_a_relative_location_of_a_proxy_is_followed(server):
    def answer(request):
        if "moved" in request.path:
            return 200, {}, b"content"
        return 307, {"Location": f"{request.path}&moved=1"}, b""

    assert hdfs_at(server(answer).url).read("/x") == b"content"


def test_a_datanode_is_reached_by_the_redirect_of_the_namenode(server):
    node = server(page(b"content"), "127.0.0.2")
    name = server(page(status=307, Location=f"{node.url}/x?delegation=of-the-block"))
    assert hdfs_at(name.url).read("/x") == b"content"
    assert node.asked[0][0] == "/x?delegation=of-the-block"


def test_a_datanode_that_is_down_is_an_error_without_the_login_that_it_would_get(server):
    gone = "http://127.0.0.1:0/x?delegation=canary"
    body = json.dumps({"Location": gone}).encode()
    storage = Storage.for_query({"storage.hdfs.token": "canary"})
    url = server(page(body)).url.replace("http:", "webhdfs:")
    file = storage.uploads(f"{url}/t").open("part.parquet")
    file.write(b"x" * 100)
    with pytest.raises(StorageError, match="HDFS broke off") as caught:
        file.close()
    assert [text for _, text in places_of(caught.value) if "canary" in text] == []


def test_metadata_is_not_asked_of_another_server(server):
    other = server(page(), "127.0.0.2")
    name = server(page(status=307, Location=f"{other.url}/x"))
    with pytest.raises(StorageError, match="which is given no login"):
        hdfs_at(name.url).status("/x")
    assert other.asked == []


def test_a_datanode_cannot_send_on_to_another_server(server):
    other = server(page(), "127.0.0.3")
    node = server(page(status=307, Location=f"{other.url}/x"), "127.0.0.2")
    name = server(page(status=307, Location=f"{node.url}/x"))
    with pytest.raises(StorageError, match="which is given no login"):
        hdfs_at(name.url).read("/x")
    assert other.asked == []


def test_a_file_whose_last_answer_is_a_redirect_does_not_count_as_written(server):
    name = server(lambda request: (307, {"Location": request.path}, b""))
    with pytest.raises(StorageError, match="refuses CREATE"):
        hdfs_at(name.url).stream("/x", iter([b"1"]))


def test_no_netrc_logs_in(server, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login u password canary\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    asked = server(page(json.dumps({"FileStatus": STATUS}).encode()))
    assert hdfs_at(asked.url).status("/x").size == 1  # nor does the environment's proxy count
    monkeypatch.delenv("http_proxy")
    for made in (guard, ignore_netrc):
        with requests.Session() as session:
            made(session)
            session.get(asked.url)
    with requests.Session() as plain:
        plain.get(asked.url)
    logins = ["Authorization" in headers for _, headers in asked.asked]
    assert logins == [False, False, False, True]  # the last one shows that the file is right


def test_a_guarded_session_follows_a_redirect_within_one_server_only(server):
    there = server(page(), "127.0.0.2")

    def answer(request):
        where = {"/near": "/end", "/far": f"{there.url}/end"}.get(request.path)
        return (200, {}, b"end") if where is None else (307, {"Location": where}, b"")

    here = server(answer)
    with requests.Session() as session:
        guard(session)
        assert session.get(f"{here.url}/near").text == "end"
        with pytest.raises(RedirectRefusedError, match=f"{here.url} redirects to {there.url}"):
            session.get(f"{here.url}/far", headers={"X-Key": "canary"})
    assert there.asked == []


@pytest.mark.parametrize("status", [401, 500])
def test_no_more_than_64_kib_of_an_error_page_are_read(server, status):
    answers = server(page(b"x" * 2**20, status))
    with requests.Session() as session:
        guard(session)
        assert len(session.get(answers.url).content) == 2**16
        answers.answer = page(b"x" * 2**20)
        assert len(session.get(answers.url).content) == 2**20


# --- without encryption


def test_a_token_without_encryption_is_warned_of_once(caplog):
    storage = Storage.for_query(
        {"storage.hdfs.token": "canary", "storage.hdfs.endpoint": "nn:9870"}
    )
    for _ in range(2):
        storage.folder("hdfs://nn/t")
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 1
    assert "'storage.hdfs.token' is sent to nn without encryption" in warned[0]
    assert "canary" not in warned[0]


@pytest.mark.parametrize(
    "options",
    [
        {"storage.azure.endpoint": "http://store/acct", "storage.azure.sasToken": "sig=x"},
        {
            "storage.s3.endpoint": "http://store",
            "storage.s3.accessKeyId": "a",
            "storage.s3.secretAccessKey": "b",
            "storage.s3.sessionToken": "c",
        },
        {"storage.gcs.endpoint": "http://store"},
    ],
)
def test_what_is_sent_as_it_is_is_warned_of(options, caplog):
    urls = {"azure": "az://c/t", "s3": "s3://b/t", "gcs": "gs://b/t"}
    kind = next(iter(options)).split(".")[1]
    Storage.for_query(options).folder(urls[kind])
    assert "without encryption" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"storage.hdfs.token": "x", "storage.hdfs.endpoint": "https://nn:9871"},
        {"storage.hdfs.token": "x", "storage.hdfs.endpoint": "http://127.0.0.1:9870"},
        {"storage.hdfs.user": "x", "storage.hdfs.endpoint": "http://nn:9870"},
        {"storage.s3.endpoint": "http://minio", "storage.s3.secretAccessKey": "never sent"},
        {"storage.azure.endpoint": "http://azurite/x", "storage.azure.accountKey": "never sent"},
    ],
)
def test_what_is_encrypted_or_never_sent_is_not(options, caplog):
    caplog.set_level(logging.WARNING)
    urls = {"azure": "az://c/t", "s3": "s3://b/t", "hdfs": "hdfs://nn/t"}
    Storage.for_query(options).folder(urls[next(iter(options)).split(".")[1]])
    assert caplog.text == ""


def test_a_catalog_without_encryption_is_warned_of(caplog):
    given = {"table": "a.b", "catalog.uri": "http://catalog.invalid:1", "catalog.token": "canary"}
    with pytest.raises(KrishivError):
        open_table(IcebergOptions.parse(given, "krishiv-iceberg"))
    assert "'catalog.uri') is sent to catalog.invalid without encryption" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("nn", False)],
)
def test_loopback_is_this_machine(host, expected):
    assert is_loopback(host) is expected


def test_a_bad_address_is_left_to_who_connects(caplog):
    warn_of_plain_http("http://[::bad", "x")
    assert not caplog.records
    assert issubclass(OptionError, KrishivError)


ONE = "abfss://data@one.dfs.core.windows.net/"
KEY = "storage.azure.accountKey=c29tZSBrZXk="


def test_a_command_reaches_each_place_of_its_command_line():
    given = [KEY, f"warehouse={ONE}tables"]
    place = "abfss://checkpoints@two.dfs.core.windows.net/cp"
    log = "abfss://logs@three.dfs.core.windows.net/log"
    found = checkpoint_of(place, given, None, log)
    assert str(found.folder().url) == place
    found.storage.folder(log)
    with pytest.raises(OptionError, match="no option of yours names"):
        found.storage.folder("abfss://data@four.dfs.core.windows.net/x")


def test_accounts_of_azure_have_no_case():
    given = dict([KEY.split("=", 1), ("path", ONE.replace("one", "One"))])
    Storage.for_query(given).folder(ONE)
