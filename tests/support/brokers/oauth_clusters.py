"""Clusters whose listener with TLS takes tokens (SASL/OAUTHBEARER)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from krishiv_spark.kafka.dev import Cluster, open_cluster
from servers.token_server import AUDIENCE, ISSUER, TokenServer

_CLASSES = "org.apache.kafka.common.security.oauthbearer."
_LISTENER = "listener.name.secure."
_JAVA_OPTIONS = "JDK_JAVA_OPTIONS"  # which each program of Java reads


def _settings(server: TokenServer | None, reauth_ms: int) -> Mapping[str, str]:
    """Properties of a broker; without a server it takes tokens that nobody has signed."""
    claim = "" if server else ' unsecuredLoginStringClaim_sub="broker"'
    found = {
        f"{_LISTENER}sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{_LISTENER}oauthbearer.sasl.jaas.config": f"{_CLASSES}OAuthBearerLoginModule required"
        f"{claim};",
        f"{_LISTENER}oauthbearer.connections.max.reauth.ms": str(reauth_ms),
    }
    if server is not None:
        handler = f"{_CLASSES}OAuthBearerValidatorCallbackHandler"
        found |= {
            f"{_LISTENER}oauthbearer.sasl.server.callback.handler.class": handler,
            "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }
    return found


@contextmanager
def open_oauth_cluster(server: TokenServer | None = None, *, reauth_ms: int) -> Iterator[Cluster]:
    """Run a broker that checks tokens by the keys of a server (JWKS).

    Args:
        server: Which signs the tokens; None for a broker that takes unsecured ones.
        reauth_ms: How long a login is valid (KIP-368).
    """
    before = os.environ.get(_JAVA_OPTIONS, "")
    if server is not None:
        # Kafka 4.0 and later asks no address that is not listed.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={server.keys_url}"
        os.environ[_JAVA_OPTIONS] = f"{before} {allowed}".strip()
    try:
        with open_cluster(secure=True, settings=_settings(server, reauth_ms)) as cluster:
            yield cluster
    finally:
        if before:
            os.environ[_JAVA_OPTIONS] = before
        else:
            os.environ.pop(_JAVA_OPTIONS, None)


def login_options(cluster: Cluster, **own: str) -> dict[str, str]:
    """Options of a login with tokens, with the names after ``kafka.sasl.oauthbearer.`` in `own`."""
    assert cluster.secure is not None
    return {
        "kafka.bootstrap.servers": cluster.secure.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(cluster.secure.authority),
        "kafka.sasl.mechanism": "OAUTHBEARER",
        **{f"kafka.sasl.oauthbearer.{name}": text for name, text in own.items()},
    }


def client_options(cluster: Cluster, server: TokenServer) -> dict[str, str]:
    """Options of a login with the credentials of a client."""
    return login_options(
        cluster,
        **{
            "token.endpoint.url": server.url,
            "client.credentials.client.id": server.client,
            "client.credentials.client.secret": server.secret,
        },
    )
