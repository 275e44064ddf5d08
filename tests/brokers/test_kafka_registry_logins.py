"""Registries that ask for a login: the real one, behind a server that checks it."""

import base64
import traceback
import uuid

import pytest
from guarded_registry import running_guarded_registry
from registries import registry  # noqa: F401  a fixture

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.schemas.registry import RegistrySettings, SchemaRegistry
from servers.token_server import make_certificate, running_token_server

pytestmark = pytest.mark.long  # starts a registry

PASSWORD, TOKEN = "canary-5e1f", "canary-token-77"
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
STATIC = {
    "bearer.auth.credentials.source": "STATIC_TOKEN",
    "bearer.auth.logical.cluster": "lsrc-1",
    "bearer.auth.identity.pool.id": "pool-1",
}


def connect(url, **settings):
    given = {f"registry.{name}": text for name, text in settings.items()}
    return SchemaRegistry(
        RegistrySettings.from_options({"registry.url": url, "registry.timeout": "2s", **given})
    )


def assert_works(client):
    """Write a schema, and read it by its id as a task does."""
    subject = f"orders-{uuid.uuid4().hex[:8]}-value"
    number = client.register(subject, SCHEMA, "avro").id
    assert client.find(number).text


def assert_refused(client, *secrets):
    with pytest.raises(KrishivError) as found:
        client.register("orders-value", SCHEMA, "avro")
    text = "".join(traceback.format_exception(found.value))
    assert "HTTP 401" in str(found.value)
    assert "'registry.basic.auth.user.info' or 'registry.bearer.auth.…'" in str(found.value)
    for secret in secrets:
        assert secret not in text


def is_basic(headers):
    login = base64.b64encode(f"spark:{PASSWORD}".encode()).decode()
    return headers.get("Authorization") == f"Basic {login}"


def test_user_and_password(registry):  # noqa: F811
    with running_guarded_registry(registry.url, is_basic) as url:
        assert_works(connect(url, **{"basic.auth.user.info": f"spark:{PASSWORD}"}))
        assert_refused(connect(url))
        wrong = "canary-wrong-31"
        coded = base64.b64encode(f"spark:{wrong}".encode()).decode()
        assert_refused(connect(url, **{"basic.auth.user.info": f"spark:{wrong}"}), wrong, coded)


def test_a_token_that_the_user_gives(registry):  # noqa: F811
    def allows(headers):
        cluster = headers.get("target-sr-cluster"), headers.get("Confluent-Identity-Pool-Id")
        return cluster == ("lsrc-1", "pool-1") and headers["Authorization"] == f"Bearer {TOKEN}"

    with running_guarded_registry(registry.url, allows) as url:
        assert_works(connect(url, **STATIC, **{"bearer.auth.token": TOKEN}))
        wrong = "canary-wrong-32"
        assert_refused(connect(url, **STATIC, **{"bearer.auth.token": wrong}), wrong)


def test_client_credentials(registry):  # noqa: F811
    with running_token_server() as tokens:
        login = {
            **STATIC,
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.client.id": tokens.client,
            "bearer.auth.client.secret": tokens.secret,
            "bearer.auth.scope": "kafka",
            "bearer.auth.issuer.endpoint.url": tokens.url,
        }
        issued = []

        def allows(headers):
            issued.append(headers.get("Authorization", ""))
            return issued[-1].startswith("Bearer ") and issued[-1].count(".") == 2

        with running_guarded_registry(registry.url, allows) as url:
            assert_works(connect(url, **login))
            assert tokens.total == 1
            assert tokens.requests[0]["grant_type"] == ["client_credentials"]
            wrong = "canary-wrong-33"
            with pytest.raises(KrishivError) as found:
                connect(url, **{**login, "bearer.auth.client.secret": wrong}).register(
                    "orders-value", SCHEMA, "avro"
                )
            text = "".join(traceback.format_exception(found.value))
            assert wrong not in text
            assert "registry" in str(found.value)


def test_a_certificate_of_the_client(registry, tmp_path):  # noqa: F811
    certificate, key = make_certificate(tmp_path)
    shown = {
        "ssl.ca.location": str(certificate),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }
    with running_guarded_registry(registry.url, certificate=(certificate, key)) as url:
        assert_works(connect(url, **shown))
        with pytest.raises(KrishivError, match="was asked for"):
            connect(url, **{"ssl.ca.location": str(certificate)}).find_version("orders-value", None)
        with pytest.raises(KrishivError, match=r"(?i)certificate"):
            connect(url).find_version("orders-value", None)
