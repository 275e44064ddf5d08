"""A token server: gives tokens for client credentials, and publishes the keys that sign them.

It runs in threads of this process, so that a test can change its answers. Brokers, drivers and
tasks reach it by its address.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import ssl
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from servers.threads import serve_in_thread

__all__ = [
    "AUDIENCE",
    "ISSUER",
    "TokenServer",
    "make_certificate",
    "running_token_server",
    "unsigned_token",
]

ISSUER, AUDIENCE = "https://tokens.invalid", "kafka"
_CLIENT, _SECRET = "spark-client", "s3cret/of+the client"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _encode_json(value: Mapping[str, Any]) -> str:
    return _encode(json.dumps(value).encode())


def _claims(life_s: float, subject: str) -> dict[str, Any]:
    now_s = int(time.time())
    return {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "scope": "kafka",
        "iat": now_s,
        "exp": now_s + round(life_s),
        "jti": uuid.uuid4().hex,
    }


def unsigned_token(life_s: float, subject: str = _CLIENT) -> str:
    """Return an unsecured JWS: header and claims, with an empty signature."""
    return f"{_encode_json({'alg': 'none'})}.{_encode_json(_claims(life_s, subject))}."


@dataclass
class TokenServer:
    """The state of a server, which a test may change while it runs.

    Attributes:
        url: Address of the token endpoint.
        keys_url: Address of the public keys (JWKS).
        life_s: Seconds from the issue of a token to its end.
        client: The only client that gets tokens.
        secret: Its secret.
        answer: Status and body to answer with instead of a token; None for tokens.
        delay_s: Seconds to wait before each answer.
        total: Number of tokens that were issued.
        requests: The parameters of each request for a token.
        signed: Number of tokens by the key that signed them.
    """

    url: str = ""
    keys_url: str = ""
    life_s: float = 300.0
    client: str = _CLIENT
    secret: str = field(default=_SECRET, repr=False)
    answer: tuple[int, str] | None = None
    delay_s: float = 0.0
    total: int = 0
    requests: list[dict[str, list[str]]] = field(default_factory=list)
    signed: Counter[str] = field(default_factory=Counter)
    _keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict, repr=False)
    _active: str = ""

    def add_key(self) -> str:
        """Publish one more key, which signs nothing yet; return its id."""
        name = f"key-{len(self._keys) + 1}"
        self._keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return name

    def sign_with(self, name: str) -> None:
        """Sign with another key from now on."""
        self._active = name

    def token(self, life_s: float | None = None) -> str:
        """Return a new token, signed by RS256."""
        head = _encode_json({"alg": "RS256", "kid": self._active, "typ": "JWT"})
        claims = _claims(self.life_s if life_s is None else life_s, self.client)
        text = f"{head}.{_encode_json(claims)}"
        key = self._keys[self._active]
        self.total += 1
        self.signed[self._active] += 1
        return f"{text}.{_encode(key.sign(text.encode(), padding.PKCS1v15(), SHA256()))}"

    def public_keys(self) -> str:
        """Return the published keys as a JWKS."""
        return json.dumps({"keys": [_to_jwk(name, key) for name, key in self._keys.items()]})

    def respond(self, path: str, login: str, body: str) -> tuple[int, str]:
        """Return status and body for a request."""
        if path == "/keys":
            return 200, self.public_keys()
        time.sleep(self.delay_s)
        self.requests.append(parse_qs(body))
        if self.answer is not None:
            return self.answer
        given = f"{self.client}:{self.secret}".encode()
        if login != f"Basic {base64.b64encode(given).decode()}":
            said = {"error": "invalid_client", "error_description": f"wrong secret in {login}"}
            return 401, json.dumps(said)
        token = {"access_token": self.token(), "token_type": "Bearer"}
        return 200, json.dumps({**token, "expires_in": self.life_s})


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Create a certificate for 127.0.0.1 that signs itself; return its file and that of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return files


def _to_jwk(name: str, key: rsa.RSAPrivateKey) -> dict[str, str]:
    public = key.public_key().public_numbers()
    size = (public.n.bit_length() + 7) // 8
    return {
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": name,
        "n": _encode(public.n.to_bytes(size, "big")),
        "e": _encode(public.e.to_bytes(3, "big")),
    }


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def do_GET(self) -> None:
        self._answer("")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())

    def _answer(self, body: str) -> None:
        login = self.headers.get("Authorization", "")
        status, text = self.server.state.respond(self.path, login, body)
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())
        except OSError:  # the client did not wait
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Log nothing: a line would show logins."""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    state: TokenServer

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that break a connection off."""


@contextmanager
def running_token_server(
    certificate: tuple[Path, Path] | None = None, *, life_s: float = 300.0
) -> Iterator[TokenServer]:
    """Run a token server on loopback.

    Args:
        certificate: Files with its certificate and key, for https; None for http.
        life_s: As `TokenServer.life_s`.
    """
    server, scheme = _Http(("127.0.0.1", 0), _Handler), "http"
    if certificate is not None:
        context, scheme = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https"
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    at = f"{scheme}://127.0.0.1:{server.server_port}"
    state = TokenServer(url=f"{at}/token", keys_url=f"{at}/keys", life_s=life_s)
    state.sign_with(state.add_key())
    server.state = state
    with serve_in_thread(server):
        yield state
