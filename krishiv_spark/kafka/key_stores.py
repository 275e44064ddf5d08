"""Java's key stores: PKCS#12 is read, as ``ssl.truststore.location`` and ``ssl.keystore.location``.

Python's ``ssl`` reads PEM files only. A PKCS#12 store is read by ``cryptography`` (extra
``keystores``), when a connection is made, so a renewed store is used without a restart. JKS is
Java's own form, which no kept library reads: it is refused with the command that converts it.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import OptionError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

__all__ = ["explain_jks", "make_context", "needs_context"]

_JKS, _JCEKS, _DER = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30"
_STORES = {
    "ssl_cafile": ("truststore", "ssl_truststore_password"),
    "ssl_certfile": ("keystore", "ssl_keystore_password"),
}
"""By the name of a file: the store of Kafka's settings, and the name of its password."""


def explain_jks(name: str) -> str:
    """Return the remedy for a JKS store: the command that converts it."""
    new = name.removesuffix(".jks").removesuffix(".JKS") + ".p12"
    return (
        "JKS is a form that only Java reads. Convert it to PKCS#12, and name that file: keytool "
        f"-importkeystore -srckeystore {name} -destkeystore {new} -deststoretype PKCS12"
    )


def _find_kind(path: str) -> str:
    with Path(path).open("rb") as file:
        start = file.read(4)
    if start in {_JKS, _JCEKS}:
        return "JKS"
    return "PKCS12" if start[:1] == _DER else "PEM"


def needs_context(values: Mapping[str, Any]) -> bool:
    """Return True if a file of the settings is no PEM file, and needs `make_context`.

    Args:
        values: Keyword arguments for kafka-python. The files are on this machine.

    Raises:
        OptionError: If one is a JKS store.
        OSError: If one cannot be read.
    """
    found = False
    for name, (store, _) in _STORES.items():
        if name in values:
            kind = _find_kind(values[name])
            if kind == "JKS":
                why = explain_jks(values[name])
                raise OptionError(f"option 'kafka.ssl.{store}.location': {why}")
            found = found or kind == "PKCS12"
    return found


def make_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS settings of a connection, as kafka-python makes them of PEM files.

    Args:
        values: Keyword arguments for kafka-python.

    Raises:
        OptionError: If a store cannot be read, or the extra ``keystores`` is not installed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = values.get("ssl_check_hostname", True)
    authorities = values.get("ssl_cafile")
    if authorities is None:
        context.load_default_certs()
    elif _find_kind(authorities) == "PKCS12":
        context.load_verify_locations(cadata=_read_authorities(values))
    else:
        context.load_verify_locations(authorities)
    own = values.get("ssl_certfile")
    if own is not None and _find_kind(own) == "PKCS12":
        _load_key(context, values)
    elif own is not None:
        context.load_cert_chain(own, values.get("ssl_keyfile"), values.get("ssl_password"))
    if "ssl_crlfile" in values:
        context.load_verify_locations(values["ssl_crlfile"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _read_authorities(values: Mapping[str, Any]) -> str:
    """Return the certificates of a trust store, as PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding

    found = _read_store("ssl_cafile", values)
    all_of_it = [*found.additional_certs, *([found.cert] if found.cert is not None else [])]
    if not all_of_it:
        raise OptionError(
            f"option 'kafka.ssl.truststore.location': {values['ssl_cafile']} contains no "
            "certificate to trust"
        )
    texts = (each.certificate.public_bytes(Encoding.PEM).decode() for each in all_of_it)
    return "".join(texts)


def _load_key(context: ssl.SSLContext, values: Mapping[str, Any]) -> None:
    """Load key and certificates of a key store; `ssl` reads them from a file only."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
    )

    found = _read_store("ssl_certfile", values)
    if found.key is None or found.cert is None:
        raise OptionError(
            f"option 'kafka.ssl.keystore.location': {values['ssl_certfile']} contains no private "
            "key with its certificate"
        )
    password = secrets.token_hex().encode()
    hidden = BestAvailableEncryption(password)
    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden)
    chain = (each.certificate for each in (found.cert, *found.additional_certs))
    with NamedTemporaryFile(prefix="krishiv-key-", suffix=".pem") as file:  # for its owner only
        file.write(key + b"".join(each.public_bytes(Encoding.PEM) for each in chain))
        file.flush()
        context.load_cert_chain(file.name, password=password)


def _read_store(name: str, values: Mapping[str, Any]) -> PKCS12KeyAndCertificates:
    store, password_name = _STORES[name]
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError as error:
        raise OptionError(
            f"option 'kafka.ssl.{store}.location': a PKCS#12 store needs a library that is missing "
            f"({error}): pip install 'krishiv-spark[keystores]', or convert the store to PEM"
        ) from None
    password = values.get(password_name)
    data = Path(values[name]).read_bytes()
    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except ValueError:  # its text states nothing else
        pass
    advice = "is needed" if password is None else "is wrong, or the store is damaged"
    raise OptionError(
        f"option 'kafka.ssl.{store}.location': {values[name]} cannot be read: "
        f"'kafka.ssl.{store}.password' {advice}"
    )
