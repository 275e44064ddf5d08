"""Java's key stores: PKCS#12 is read, JKS is refused with the command that converts it."""

import socket
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.key_stores import make_context, needs_context
from servers.token_server import make_certificate

PASSWORD = "canary7f3a-c9d8e7"
SSL = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}


@pytest.fixture
def stores(tmp_path):
    """A trust store, a key store, and the same as PEM."""
    certificate_file, key_file = make_certificate(tmp_path)
    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    key = load_pem_private_key(key_file.read_bytes(), None)
    hidden = BestAvailableEncryption(PASSWORD.encode())
    own = pkcs12.serialize_key_and_certificates(b"own", key, certificate, None, hidden)
    trusted = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(certificate, b"ca")], hidden
    )
    (tmp_path / "own.p12").write_bytes(own)
    (tmp_path / "trusted.p12").write_bytes(trusted)
    return tmp_path


def values(stores, **given):
    """The settings of a client with both stores."""
    found = {
        "ssl.truststore.location": str(stores / "trusted.p12"),
        "ssl.truststore.password": PASSWORD,
        "ssl.truststore.type": "PKCS12",
        "ssl.keystore.location": str(stores / "own.p12"),
        "ssl.keystore.password": PASSWORD,
        **given,
    }
    return KafkaConfig.from_settings({**SSL, **found})


def shake_hands(context, stores):
    """Return the subject that a server reads from the client's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(stores / "certificate.pem", stores / "key.pem")
    server.load_verify_locations(stores / "certificate.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    ours, theirs = socket.socketpair()
    found = []

    def answer():
        with server.wrap_socket(theirs, server_side=True) as wrapped:
            found.append(wrapped.getpeercert()["subject"])

    thread = threading.Thread(target=answer)
    thread.start()
    with context.wrap_socket(ours, server_hostname="127.0.0.1") as wrapped:
        wrapped.do_handshake()
        thread.join()
    return found


def test_a_client_with_both_stores_logs_in(stores):
    settings = values(stores).values
    assert needs_context(settings)
    assert shake_hands(make_context(settings), stores)


def test_a_pem_file_beside_a_store(stores):
    pem = {
        "ssl.keystore.location": str(stores / "certificate.pem"),
        "ssl.keyfile": str(stores / "key.pem"),
    }
    assert shake_hands(make_context(values(stores, **pem).values), stores)


def test_files_in_pem_are_left_to_kafka_python(stores):
    given = {**SSL, "ssl.truststore.location": str(stores / "certificate.pem")}
    assert not needs_context(KafkaConfig.from_settings(given).values)


def failure(config):
    with pytest.raises(KafkaFailedError) as failed:
        KafkaClient(config)
    assert "guessed" not in str(failed.value)
    assert PASSWORD not in str(failed.value)
    return str(failed.value)


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_a_wrong_password(stores, store):
    config = values(stores, **{f"ssl.{store}.password": "guessed-word"})
    assert f"'kafka.ssl.{store}.password' is wrong" in failure(config)
    assert {"guessed-word"} <= config.secrets()


def test_a_password_that_is_missing(stores):
    given = dict(values(stores).settings)
    del given["ssl.keystore.password"]
    assert "'kafka.ssl.keystore.password' is needed" in failure(KafkaConfig.from_settings(given))


def test_a_store_without_what_is_needed(stores):
    swapped = {
        "ssl.keystore.location": str(stores / "trusted.p12"),
    }
    assert "contains no private key" in failure(values(stores, **swapped))


def test_jks_is_refused_with_the_command_that_converts_it(stores):
    line = (
        "keytool -importkeystore -srckeystore /etc/trust.jks -destkeystore /etc/trust.p12 "
        "-deststoretype PKCS12"
    )
    with pytest.raises(ValueError, match=line):
        KafkaConfig.from_settings({**SSL, "ssl.truststore.location": "/etc/trust.jks"})
    with pytest.raises(ValueError, match="-deststoretype PKCS12"):
        KafkaConfig.from_settings({**SSL, "ssl.keystore.type": "jks"})
    (stores / "truststore").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    given = {"ssl.truststore.location": str(stores / "truststore")}
    with pytest.raises(OptionError, match=f"-srckeystore {stores}/truststore -destkeystore"):
        needs_context(values(stores, **given).values)
