"""Settings of a login with OAUTHBEARER, and its tokens: fetched, cached, renewed, refused."""

import json
import re
import shlex
import sys
import threading
import time
from dataclasses import replace

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka import login_tokens
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.jaas import parse_login
from krishiv_spark.kafka.login_tokens import LoginTokenError, LoginTokens, fetch_token
from krishiv_spark.messages.exception_chains import texts_of
from krishiv_spark.messages.redaction import without_secrets
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from servers.token_server import make_certificate, running_token_server, unsigned_token

SASL = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "OAUTHBEARER",
}
OAUTH = "kafka.sasl.oauthbearer."
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
JAAS = "kafka.sasl.jaas.config"
SECRET = "canary7f3a+b/c9d8e7"


def parse(**given):
    options = {**SASL, "subscribe": "t", **given}
    return KafkaSourceOptions.parse(options, "krishiv-kafka").kafka


def client_of(url, **given):
    own = {
        f"{OAUTH}token.endpoint.url": url,
        f"{OAUTH}client.credentials.client.id": "spark",
        f"{OAUTH}client.credentials.client.secret": SECRET,
    }
    return parse(**{**own, **given})


@pytest.fixture(scope="module")
def server():
    with running_token_server() as found:
        found.client, found.secret = "spark", SECRET
        yield found


@pytest.fixture(autouse=True)
def usual(server):
    server.answer, server.delay_s, server.life_s = None, 0.0, 300.0
    login_tokens._tokens.clear()


# --- settings


def test_both_forms_of_client_credentials_are_the_same_login():
    url = "https://tokens.invalid/token"
    jaas = (
        f'{MODULE} clientId="spark" clientSecret="{SECRET}" scope="a b" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2" ;'
    )
    pasted = parse(**{f"{OAUTH}token.endpoint.url": url, JAAS: jaas})
    more = {
        f"{OAUTH}scope": "a b",
        f"{OAUTH}extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
    }
    assert client_of(url, **more).login == pasted.login
    assert pasted.login.extensions == (("identityPoolId", "pool-2"), ("logicalCluster", "lkc-1"))
    assert SECRET not in f"{pasted!r} {pasted.login!r}"
    assert SECRET in "".join(pasted.secrets())


def test_a_module_without_entries_is_enough_beside_the_settings():
    handler = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    more = {
        JAAS: f"{MODULE};",
        "kafka.sasl.login.callback.handler.class": handler,
    }
    assert client_of("https://tokens.invalid/", **more).login.client_id == "spark"


URL = f"{OAUTH}token.endpoint.url"
BAD = {
    "no source": ({}, "a source of tokens is needed"),
    "two sources": ({URL: "file:///t", f"{OAUTH}token.command": "x"}, "both are given"),
    "no client": ({URL: "https://t/"}, "needs a client"),
    "no address": ({URL: "tokens.example"}, "write https://host/path"),
    "a relative file": ({URL: "file:t"}, "write https://host/path"),
    "a login in the address": ({URL: "https://u:hunter22@t/"}, "would be shown"),
    "no port": ({URL: f"https://u:{SECRET}@t/"}, "it is no address"),
    "an open quotation": ({f"{OAUTH}token.command": "x 'y"}, "cannot be read"),
    "a foreign class": ({URL: "file:///t", f"{OAUTH}jwt.retriever.class": "x"}, "cannot run here"),
    "an assertion": ({URL: "file:///t", f"{OAUTH}assertion.file": "/a"}, "signed assertion"),
    "an extension": ({URL: "file:///t", f"{OAUTH}extensions": "auth=x"}, "not 'auth'"),
    "an unknown entry": (
        {URL: "file:///t", JAAS: f'{MODULE} clientsecret="{SECRET}";'},
        "did you mean 'clientSecret'",
    ),
    "unsecured tokens": (
        {URL: "file:///t", JAAS: f'{MODULE} unsecuredLoginStringClaim_sub="u";'},
        "does not work here",
    ),
    "another mechanism": (
        {
            URL: "file:///t",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "u",
            "kafka.sasl.password": SECRET,
        },
        r"need 'kafka\.sasl\.mechanism' = OAUTHBEARER",
    ),
    "another module": (
        {URL: "file:///t", JAAS: 'a.PlainLoginModule x username="u" password="p";'},
        "names PlainLoginModule",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_settings_that_do_not_work_are_refused(case):
    given, said = BAD[case]
    with pytest.raises(OptionError, match=said) as failed:
        parse(**given)
    assert SECRET not in str(failed.value)


def test_a_password_with_quotes_and_a_comma_in_an_extension():
    found = parse_login(MODULE + r' clientSecret="a\"b;c" extension_x="1,2";')
    assert found == {"oauth_client_secret": 'a"b;c', "oauth_extensions": (("x", "1,2"),)}


# --- tokens


def age(tokens, renew_s, end_s):
    """Have the newest token be renewed, and end, some seconds from now."""
    now_s = time.monotonic()
    tokens._token = replace(tokens._token, renew_s=now_s + renew_s, end_s=now_s + end_s)
    return tokens._token


def test_a_token_is_fetched_once_and_renewed_before_its_end(server):
    tokens = LoginTokens(client_of(server.url, **{f"{OAUTH}scope": "kafka"}).login, fetch_token)
    before = server.total
    first = tokens.get(10)
    assert server.requests[-1] == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert tokens.get(10) is first
    assert 230 < first.renew_s - time.monotonic() <= 240
    assert server.total == before + 1
    age(tokens, -1, 60)
    assert tokens.get(10).text != first.text
    assert first.text not in repr(first)


def test_an_endpoint_that_is_away_costs_nothing_while_the_token_is_valid(server, monkeypatch):
    monkeypatch.setattr(login_tokens, "_PAUSE_S", 0.0)
    tokens = LoginTokens(client_of(server.url).login, fetch_token)
    tokens.get(10)
    server.answer = 503, "away"
    token = age(tokens, -1, 60)
    assert tokens.get(10) is token
    age(tokens, -1, -1)
    with pytest.raises(LoginTokenError, match="HTTP 503"):
        tokens.get(10)
    server.answer = None
    assert tokens.get(10).text != token.text


def test_the_error_of_an_attempt_stands_for_a_second(server):
    tokens = LoginTokens(client_of(server.url).login, fetch_token)
    server.answer = 403, "{}"
    before = len(server.requests)
    for _ in range(3):
        with pytest.raises(LoginTokenError, match="refuses the client"):
            tokens.get(10)
    assert len(server.requests) == before + 1


def test_many_threads_make_one_request(server):
    tokens = LoginTokens(client_of(server.url).login, fetch_token)
    server.delay_s, before = 0.3, server.total
    threads = [threading.Thread(target=tokens.get, args=(10,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.total == before + 1


def test_a_refused_token_is_replaced_and_trusted_for_a_minute(server, monkeypatch):
    tokens = LoginTokens(client_of(server.url).login, fetch_token)
    first = tokens.get(10)
    assert tokens.record_refusal() is False, "none was ever accepted"
    assert tokens.get(10).text != first.text
    tokens.record_login()
    assert tokens.record_refusal() is True
    monkeypatch.setattr(login_tokens, "_TRUSTED_S", -1.0)
    tokens.record_login()
    assert tokens.record_refusal() is False


def test_a_token_of_a_file_is_read_again(tmp_path):
    file = tmp_path / "a token"
    file.write_text(unsigned_token(300) + "\n")
    login = parse(**{URL: f"file://{tmp_path}/a%20token"}).login
    first = fetch_token(login)
    assert 230 < first.renew_s - time.monotonic() <= 240
    file.write_text(unsigned_token(2, "other"))
    assert fetch_token(login).text != first.text
    file.write_text(unsigned_token(-5))
    with pytest.raises(LoginTokenError, match=r"expired [56] s ago"):
        fetch_token(login)
    file.unlink()
    with pytest.raises(LoginTokenError, match="cannot be read: No such file"):
        fetch_token(login)


def command(program):
    return parse(**{f"{OAUTH}token.command": shlex.join([sys.executable, "-c", program])}).login


def test_a_command_prints_a_token_or_json():
    assert fetch_token(command("print('abc.def')")).text == "abc.def"
    printed = fetch_token(command('print(\'{"access_token": "t", "expires_in": "10"}\')'))
    assert printed.text == "t"
    assert 9 < printed.end_s - time.monotonic() <= 10


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit('no session; token=abcdef123')", r"ended with status 1: no session"),
        ("print('')", "returns no token, but nothing"),
        ("print('Please log in')", "other characters than those of a token"),
        ("print('{}')", "without a text 'access_token'"),
        ("import time; time.sleep(30)", "does not end within 1 s"),
    ],
)
def test_a_command_that_fails(program, said, monkeypatch):
    monkeypatch.setattr(login_tokens, "_COMMAND_S", 1.0)
    with pytest.raises(LoginTokenError, match=said) as failed:
        fetch_token(command(program))
    assert "abcdef123" not in str(failed.value)


# --- an endpoint that fails: one clear line, soon, without a secret


def refused(config):
    """The first line of a query's start, and after how many seconds."""
    begun_s = time.monotonic()
    with pytest.raises(KafkaFailedError) as failed:
        KafkaClient(config, at_start=True)
    assert "\n" not in str(failed.value)
    for text in texts_of(failed.value):
        assert without_secrets(text, [SECRET]) == text
    return str(failed.value), time.monotonic() - begun_s


ANSWERS = {
    "refuses": ((401, json.dumps({"error": "invalid_client", "error_description": SECRET})),
                "refuses the client 'spark' .HTTP 401, invalid_client: .*see its id, secret"),
    "is in trouble": ((503, "<html>"), "answers HTTP 503"),
    "is a page": ((200, f"<html>{SECRET}"), "something else than JSON"),
    "has no token": ((200, json.dumps({"token": SECRET})), "without a text 'access_token'"),
    "has a strange token": ((200, json.dumps({"access_token": "a b"})), "other characters"),
    "redirects": ((302, ""), "answers HTTP 302"),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_an_endpoint_that_does_not_give_a_token(server, case):
    server.answer, said = ANSWERS[case]
    text, took_s = refused(client_of(server.url))
    assert re.search(rf"cannot log in: the token endpoint {server.url} .*{said}", text), text
    assert took_s < 10


KEY = "canary-key-51"


@pytest.mark.parametrize("case", [*ANSWERS, "repeats its address", "is away"])
def test_a_key_in_the_address_of_an_endpoint_is_in_no_error(server, case):
    url = "http://127.0.0.1:1/token" if case == "is away" else server.url
    said = json.dumps({"error": f"no route to /token?code={KEY}"})
    server.answer = ANSWERS[case][0] if case in ANSWERS else (404, said)
    config = client_of(f"{url}?code={KEY}#{KEY}")
    with pytest.raises(KafkaFailedError, match=f"the token endpoint {url} ") as failed:
        KafkaClient(config, at_start=True)
    assert KEY not in "".join(texts_of(failed.value))
    assert KEY not in repr(config.login)


def test_an_endpoint_that_is_slow(server, monkeypatch):
    monkeypatch.setattr("krishiv_spark.kafka.client._FIRST_TOKEN_S", 1.0)
    server.delay_s = 3
    text, took_s = refused(client_of(server.url))
    assert "does not answer within 1 s" in text
    assert took_s < 10


def test_an_endpoint_that_is_not_there():
    text, took_s = refused(client_of("http://127.0.0.1:1/token"))
    assert re.search(r"cannot be reached: .*[Cc]onnection refused", text), text
    assert took_s < 10


def test_an_endpoint_with_a_certificate_of_another_authority(tmp_path):
    files = make_certificate(tmp_path)
    with running_token_server(files) as server:
        server.client, server.secret = "spark", SECRET
        text, took_s = refused(client_of(server.url))
        assert re.search(r"certificate that is not trusted .*'kafka\.https\.ca\.location'", text)
        assert took_s < 10
        trusting = client_of(server.url, **{"kafka.https.ca.location": str(files[0])})
        assert fetch_token(trusting.login).text.count(".") == 2


def test_the_login_of_another_cluster_has_other_tokens(server):
    one, other = client_of(server.url), client_of(server.url, **{f"{OAUTH}scope": "x"})
    assert login_tokens.open_tokens(one.login) is login_tokens.open_tokens(one.login)
    assert login_tokens.open_tokens(one.login) is not login_tokens.open_tokens(other.login)
    assert KafkaConfig.from_settings({"bootstrap.servers": "a:1"}).login is None
