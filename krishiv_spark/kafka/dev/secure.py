"""TLS and SASL for brokers on loopback: a certificate, a user and a password for one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from types import MappingProxyType
from typing import Literal, TypeAlias

from krishiv_spark.kafka.dev.maven import run_java

__all__ = [
    "ACLS",
    "Mechanism",
    "Secure",
    "make_secure",
    "scram_user",
    "server_settings",
    "write_secret",
]

Mechanism: TypeAlias = Literal["SCRAM-SHA-512", "PLAIN"]

ACLS: Mapping[str, str] = MappingProxyType(
    {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the brokers, and clients without SASL
    }
)
"""Server settings that restrict a logged-in user to what ACLs allow."""

_MODULES: Mapping[Mechanism, str] = {
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
}
_KEYTOOL = "sun.security.tools.keytool.Main"  # a JRE may have no such command in its PATH


@dataclass(frozen=True)
class Secure:
    """The access to a cluster through TLS and SASL.

    Attributes:
        bootstrap: Value for ``bootstrap.servers``.
        authority: PEM file with the certificate to trust.
        user: Name of the only user.
        password: The user's password.
    """

    bootstrap: str
    authority: Path
    user: str
    password: str = field(repr=False)

    def options(self, mechanism: Mechanism = "SCRAM-SHA-512") -> dict[str, str]:
        """Return the options of a login, by the names of Kafka's Java clients."""
        login = f'username="{self.user}" password="{self.password}"'
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": f"{_MODULES[mechanism]} required {login};",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.authority),
        }


def make_secure(folder: Path, bootstrap: str) -> Secure:
    """Create a key, its certificate for 127.0.0.1, and a password.

    Args:
        folder: A new folder for them, which only its owner may enter.
        bootstrap: Addresses at which brokers will listen.

    Raises:
        FileExistsError: If the folder exists.
        KrishivError: If Java cannot create them.
    """
    folder.mkdir(mode=0o700, parents=True)
    made = Secure(bootstrap, folder / "authority.pem", "krishiv", token_urlsafe())
    write_secret(_password_file(made), made.password)
    names = ("-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1,dns:localhost")
    # It is self-signed, so it is its authority too: strict clients require that declaration.
    signs = ("-ext", "bc:critical=ca:true", "-ext", "ku:critical=digitalSignature,keyCertSign")
    kind = ("-keyalg", "EC", "-groupname", "secp256r1", "-validity", "3650")
    _keytool(made, "-genkeypair", *kind, *names, *signs, "-storetype", "PKCS12")
    _keytool(made, "-exportcert", "-rfc", "-file", str(made.authority))
    return made


def server_settings(secure: Secure) -> dict[str, str]:
    """Return the properties of a broker for its listener ``SECURE``; they contain the password."""
    user = f'user_{secure.user}="{secure.password}"'
    own = {
        "sasl.enabled.mechanisms": ",".join(_MODULES),
        "scram-sha-512.sasl.jaas.config": f"{_MODULES['SCRAM-SHA-512']} required;",
        "plain.sasl.jaas.config": f"{_MODULES['PLAIN']} required {user};",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(_key_store(secure)),
        "ssl.keystore.password": secure.password,
    }
    return {f"listener.name.secure.{key}": value for key, value in own.items()}


def scram_user(secure: Secure) -> tuple[str, ...]:
    """Return the arguments with which Kafka's StorageTool creates the user.

    Other users of this machine may see them for a moment; they can use the listener without a
    password anyway.
    """
    return ("--add-scram", f"SCRAM-SHA-512=[name={secure.user},password={secure.password}]")


def write_secret(path: Path, text: str) -> None:
    """Write a new file that only its owner may read."""
    path.touch(0o600)
    path.write_text(text)


def _keytool(secure: Secure, *arguments: str) -> None:
    store = ("-keystore", str(_key_store(secure)), "-storepass:file", str(_password_file(secure)))
    failure = f"no certificate could be made in {secure.authority.parent}"
    run_java(_KEYTOOL, *arguments, "-alias", "broker", *store, failure=failure)


def _key_store(secure: Secure) -> Path:
    return secure.authority.with_name("broker.p12")


def _password_file(secure: Secure) -> Path:
    return secure.authority.with_name("password")
