"""No secret is in any part of the chain of an error, whichever client fails, in whichever way."""

import json
import logging
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile_brokers import refusing_broker
from hostile_servers import WAYS, failing
from pydantic import BaseModel, ValidationError

from krishiv_spark.errors import KrishivError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.kafka import login_tokens
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.schemas.registry import RegistrySettings, SchemaRegistry
from krishiv_spark.messages.exception_chains import raise_alone, scrub, walk
from krishiv_spark.messages.redaction import without_secrets
from krishiv_spark.runtime import contact
from krishiv_spark.storage import Storage, StoreUrl, azure, s3
from krishiv_spark.testing.processes.secret_roles import places_of
from servers.token_server import make_certificate, running_token_server

SECRET = "canary7f3a+b/c9d8e7"  # whose form in a URL is another one


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    """Clients give up soon, and nothing of this machine logs in."""
    monkeypatch.setattr(contact, "_FIRST_CONTACT_S", 0.2)
    monkeypatch.setattr(contact, "_LATER_CONTACT_S", 0.2)
    for name in ("_FIRST_RETRIES", "_RETRIES"):
        monkeypatch.setattr(azure, name, 0)
    for name in ("_FIRST_ATTEMPTS", "_ATTEMPTS"):
        monkeypatch.setattr(s3, name, 1)
    monkeypatch.setenv("CANARY", SECRET)


def shown_by(error):
    """The places where an error, or what is linked to it, shows the secret."""
    texts = [*places_of(error)]
    for linked in walk(error):
        with_locals = traceback.TracebackException.from_exception(linked, capture_locals=True)
        own = [frame for frame in with_locals.stack if "krishiv_spark" in frame.filename]
        texts.append(("locals", str([frame.locals for frame in own])))
    return {place for place, text in texts if without_secrets(text, [SECRET]) != text}


def store(kind, url, **settings):
    given = {"endpoint": url, "timeout": "500ms", **settings}
    return Storage.for_query({f"storage.{kind}.{name}": text for name, text in given.items()})


def of_hdfs(url):
    place = StoreUrl.parse(url.replace("http", "webhdfs", 1).replace("webhdfss", "swebhdfs") + "/t")
    return Storage.for_query(
        {"storage.hdfs.token": "${env:CANARY}", "storage.hdfs.timeout": "500ms"}
    ), place


def read_hdfs(url):
    storage, place = of_hdfs(url)
    storage.folder(place).names()


def open_hdfs(url):
    storage, place = of_hdfs(url)
    if storage.folder(place).read("x") is None:
        raise FileNotFoundError


def write_hdfs(url):
    storage, place = of_hdfs(url)
    storage.folder(place).replace("x", b"1")


def stream_to_hdfs(url):
    storage, place = of_hdfs(url)
    file = storage.uploads(place).open("part.parquet")
    file.write(b"x" * 100)
    file.close()


def s3_store(url):
    keys = {
        "accessKeyId": "AK",
        "secretAccessKey": "${env:CANARY}",
        "sessionToken": "${env:CANARY}",
    }
    return store("s3", url, region="eu-west-1", **keys)


def azure_store(url):
    return store("azure", f"{url}/acct", accountName="acct", sasToken="sp=rw&sig=${env:CANARY}")


def catalog(url, **given):
    named = {f"catalog.{name}": text for name, text in given.items()}
    of_it = {"table": "a.b", "catalog.type": "rest", "catalog.uri": url, **named}
    open_table(IcebergOptions.parse(of_it, "krishiv-iceberg"))


def error_of(call, url):
    try:
        call(url)
    except (KrishivError, OSError) as error:
        return error
    return None


CLIENTS = {
    "webhdfs, metadata": read_hdfs,
    "webhdfs, read": open_hdfs,
    "webhdfs, write": write_hdfs,
    "webhdfs, stream": stream_to_hdfs,
    "obstore, S3": lambda url: s3_store(url).folder("s3://b/t").names(),
    "obstore, an object of S3": lambda url: s3_store(url).files("s3://b").tail("s3://b/t/x", 8),
    "boto3": lambda url: s3_store(url).uploads("s3://b/t").verify(),
    "obstore, Azure": lambda url: azure_store(url).folder("az://c/t").names(),
    "azure-storage-blob": lambda url: azure_store(url).uploads("az://c/t").verify(),
    "obstore, Google": lambda url: store("gcs", url, anonymous="true").folder("gs://b/t").names(),
    "REST catalog, token": lambda url: catalog(url, token="${env:CANARY}"),
    "REST catalog, credential": lambda url: catalog(url, credential="id:${env:CANARY}"),
    "REST catalog, header": lambda url: catalog(url, **{"header.X-Key": "${env:CANARY}"}),
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_an_error_of_a_client_shows_no_secret(client, way, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "krishiv_spark")
    with failing(way, tmp_path) as (url, elsewhere):
        error = error_of(CLIENTS[client], url)
    if error is None:
        # A page that a 200 brings is the content of a file; a 404, an empty folder.
        assert way in {"bad JSON", "404 that repeats"}
    else:
        assert (error.__cause__, error.__context__) == (None, None)
        assert shown_by(error) == set()
    assert SECRET not in "".join(map(str, caplog.records))
    assert [
        asked for asked in elsewhere if without_secrets(str(asked), [SECRET]) != str(asked)
    ] in (
        [],
        elsewhere if client in TO_DATANODES else [],
    )


@pytest.mark.parametrize(
    "way", ["refused", *(pytest.param(way, marks=pytest.mark.long) for way in ("reset", WAYS[6]))]
)
def test_an_error_of_postgresql_shows_no_secret(way, tmp_path):
    with failing(way, tmp_path) as (url, _):
        uri = url.replace("http://", "postgresql+psycopg2://u:${env:CANARY}@") + "/lake"
        of_it = {"table": "a.b", "catalog.uri": uri, "warehouse": str(tmp_path)}
        with pytest.raises(KrishivError) as caught:
            open_table(IcebergOptions.parse(of_it, "krishiv-iceberg"))
    assert caught.value.__context__ is None
    assert shown_by(caught.value) == set()


@pytest.mark.long
@pytest.mark.parametrize("way", ["refused", "reset", "no TLS", "401 that repeats"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_an_error_of_kafka_shows_no_secret(way, mechanism, tmp_path):
    with failing(way, tmp_path) as (url, _):
        settings = {
            "bootstrap.servers": url.rpartition("/")[2],
            "security.protocol": "SASL_SSL" if way == "no TLS" else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "u",
            "sasl.password": SECRET,
            "default.api.timeout.ms": "500",
        }
        with pytest.raises(KrishivError) as caught:
            open_client(KafkaConfig.from_settings(settings))
    assert caught.value.__context__ is None
    assert shown_by(caught.value) == set()


MODULE = "org.apache.kafka.common.security"
ESCAPED = SECRET.replace("/", '"/')
"""A secret that a configuration of JAAS must write with an escape."""
OF_TOKENS = "sasl.oauthbearer."
OF_CLIENT = f"{OF_TOKENS}client.credentials.client."


def of_tokens(**given):
    return {"sasl.mechanism": "OAUTHBEARER", **given}


def plain_in_jaas(_, __):
    module = 'plain.PlainLoginModule required username="u" password'
    return {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f"{MODULE}.{module}={json.dumps(ESCAPED)};",
    }, ESCAPED


def scram(_, __):
    given = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u", "sasl.password": SECRET}
    return given, SECRET


def client_secret(_, server):
    server.answer = 200, json.dumps({"access_token": "canary.of.tokens"})
    own = {f"{OF_CLIENT}id": "spark", f"{OF_CLIENT}secret": SECRET}
    return of_tokens(**own, **{f"{OF_TOKENS}token.endpoint.url": server.url}), SECRET


def client_secret_in_jaas(_, server):
    server.answer = 200, json.dumps({"access_token": "canary.of.tokens"})
    entries = f'clientId="spark" clientSecret={json.dumps(ESCAPED)}'
    return of_tokens(
        **{
            f"{OF_TOKENS}token.endpoint.url": server.url,
            f"{OF_TOKENS}header.urlencode": "true",
            "sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required {entries};",
        }
    ), ESCAPED


def token_of_an_endpoint(folder, server):
    given, _ = client_secret(folder, server)
    server.answer = 200, json.dumps({"access_token": SECRET})
    return given, SECRET


def token_in_a_file(folder, _):
    (folder / "token").write_text(SECRET)
    return of_tokens(**{f"{OF_TOKENS}token.endpoint.url": f"file://{folder}/token"}), SECRET


def token_of_a_command(folder, _):
    (folder / "token").write_text(SECRET)
    return of_tokens(**{f"{OF_TOKENS}token.command": f"cat {folder}/token"}), SECRET


def passwords_of_stores(kind):
    def given(folder, _):
        (folder / "store.p12").write_bytes(b"\x30\x82")
        files = make_certificate(folder)
        stores = {
            "ssl.truststore.location": str(files[0]),
            "ssl.keystore.location": str(files[0]),
            "ssl.keyfile": str(files[1]),
        }
        if kind != "key":
            stores[f"ssl.{kind}.location"] = str(folder / "store.p12")
        return {**scram(folder, None)[0], **stores, f"ssl.{kind}.password": SECRET}, SECRET

    return given


def msk(name):
    def given(folder, _):
        lines = {"aws_access_key_id": "AKID", "aws_secret_access_key": "of the other case"}
        lines["aws_session_token"] = "of the other case, too"
        lines[name] = SECRET
        text = "".join(f"{key} = {value}\n" for key, value in lines.items())
        (folder / "credentials").write_text(f"[default]\n{text}")
        return {"sasl.mechanism": "AWS_MSK_IAM"}, SECRET

    return given


LOGINS = {
    "PLAIN in JAAS": plain_in_jaas,
    "SCRAM": scram,
    "client secret": client_secret,
    "client secret in JAAS": client_secret_in_jaas,
    "token of an endpoint": token_of_an_endpoint,
    "token in a file": token_in_a_file,
    "token of a command": token_of_a_command,
    "key store": passwords_of_stores("keystore"),
    "trust store": passwords_of_stores("truststore"),
    "key": passwords_of_stores("key"),
    "MSK, secret key": msk("aws_secret_access_key"),
    "MSK, session token": msk("aws_session_token"),
}
"""By login: a function of a folder and a token server that returns its settings and its secret."""


@pytest.fixture(scope="module")
def token_server():
    with running_token_server() as found:
        found.client = found.secret = "unused"
        yield found


@pytest.mark.long
@pytest.mark.parametrize("login", LOGINS)
def test_a_broker_that_repeats_a_login_shows_no_secret_of_it(
    login, token_server, tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.DEBUG, "krishiv_spark")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    login_tokens._tokens.clear()
    given, secret = LOGINS[login](tmp_path, token_server)
    files = make_certificate(tmp_path)
    with refusing_broker(f"I know {secret}", files) as broker:
        settings = {
            "bootstrap.servers": f"127.0.0.1:{broker.server_address[1]}",
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(files[0]),
            "default.api.timeout.ms": "3000",
            **given,
        }
        with pytest.raises(KrishivError) as caught:
            open_client(KafkaConfig.from_settings(settings))
    assert broker.asked or "store" in login or "key" in login, caught.value
    texts = [text for _, text in places_of(caught.value)]
    texts += [str(record.getMessage()) for record in caplog.records]
    for text in texts:
        assert without_secrets(text, [secret]) == text
        assert "canary" not in text


def test_tokens_that_a_broker_has_refused_or_another_has_replaced_are_hidden(token_server):
    given, _ = token_of_an_endpoint(None, token_server)
    config = KafkaConfig.from_settings(
        {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", **given}
    )
    tokens = login_tokens.LoginTokens(config.login, login_tokens.fetch_token)
    texts = []
    for number in range(3):
        token_server.answer = 200, json.dumps({"access_token": f"token.number.{number}"})
        texts.append(tokens.get(10).text)
        tokens.record_refusal()
    assert tokens.text == ""
    assert {*texts, SECRET} <= tokens.secrets()


def test_a_login_with_an_assertion_is_refused_without_its_value():
    for name in ("assertion.private.key.passphrase", "assertion.private.key.file"):
        settings = {"bootstrap.servers": "h:1", f"{OF_TOKENS}{name}": SECRET}
        with pytest.raises(ValueError, match="assertion") as caught:
            KafkaConfig.from_settings(settings)
        assert shown_by(caught.value) <= {"locals"}


REGISTRY_LOGINS = {
    "user and password": {"basic.auth.user.info": f"user:{SECRET}"},
    "token": {
        "bearer.auth.credentials.source": "STATIC_TOKEN",
        "bearer.auth.token": SECRET,
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1",
    },
    "address": {"url": "http://user:{}@{{}}".format(SECRET.replace("/", "%2F"))},
}


@pytest.mark.long
@pytest.mark.parametrize("way", ["refused", "reset", "401 that repeats", "500 that repeats"])
@pytest.mark.parametrize("login", REGISTRY_LOGINS)
def test_an_error_of_a_schema_registry_shows_no_secret(login, way, tmp_path, caplog):
    with failing(way, tmp_path) as (url, _):
        host = url.rpartition("/")[2]
        given = {"url": url, "timeout": "300ms", **REGISTRY_LOGINS[login]}
        given["url"] = given["url"].format(host)
        settings = RegistrySettings.from_options(
            {f"registry.{name}": text for name, text in given.items()}
        )
        with pytest.raises(KrishivError) as caught:
            SchemaRegistry(settings).find(1)
    texts = [text for _, text in places_of(caught.value)]
    texts += [record.getMessage() for record in caplog.records]
    for text in texts:
        assert without_secrets(text, [SECRET]) == text
    assert settings.hide(f"it is {SECRET}") == "it is ***"


def failed_in_layers():
    try:
        try:
            raise OSError(f"GET https://h/x?sig={SECRET}")
        except OSError:
            raise KeyError(SECRET) from None
    except KeyError:
        raise_alone(KrishivError("ours"))


def test_nothing_of_what_was_handled_is_linked_to_an_error_that_is_raised_alone():
    with pytest.raises(KrishivError) as caught:
        failed_in_layers()
    assert [*walk(caught.value)] == [caught.value]


def test_an_error_that_is_raised_alone_in_a_thread_or_a_generator_stays_alone():
    def pieces():
        yield 1
        failed_in_layers()

    with ThreadPoolExecutor(1) as threads, pytest.raises(KrishivError) as caught:
        threads.submit(list, pieces()).result()
    assert [*walk(caught.value)] == [caught.value]


class OddError(Exception):
    def __init__(self, secret):
        super().__init__("nothing to see")
        self.secret = secret

    def __repr__(self):
        return f"OddError({self.secret})"


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError


def chained(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        ValueError("text", {"token": SECRET}),
        OSError(2, "no such file", SECRET),
        UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, "bad"),
        OddError(SECRET),
        chained(BrokenError(), ValueError(SECRET)),
        chained(ValueError("text"), OddError(SECRET)),
        chained(KrishivError("ours"), chained(KeyError("x"), ValueError(f"?sig={SECRET}"))),
        KrishivError(f"ours: {SECRET}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_leaves_is_scrubbed_whatever_it_is(error):
    shown = scrub(error, [SECRET])
    with pytest.raises(type(shown)) as caught:
        raise_alone(shown)
    assert shown_by(caught.value) == set()
    if isinstance(error, KrishivError):
        assert shown is error  # its class decides what may be believed


class Settings(BaseModel):
    number: int


def test_what_pydantic_and_groups_show_of_their_inputs_is_scrubbed():
    with pytest.raises(ValidationError) as caught:
        Settings(number=SECRET)
    found = [caught.value]
    if sys.version_info >= (3, 11):
        found.append(ExceptionGroup("several", [ValueError(SECRET), KeyError("x")]))  # noqa: F821
    for error in found:
        assert shown_by(scrub(error, [SECRET])) == set()


def test_an_error_without_a_secret_stays_as_it_is_with_its_causes():
    cause = ValueError("why")
    error = chained(KrishivError("what"), cause)
    assert scrub(error, [SECRET]) is error
    assert error.__cause__ is cause


TO_DATANODES = {"webhdfs, read", "webhdfs, write", "webhdfs, stream"}
"""The URL to which the NameNode redirects, with the login that it has added."""
