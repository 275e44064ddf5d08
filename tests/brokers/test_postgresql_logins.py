"""Logins at PostgreSQL: TLS, client certificates, service files, variables, passwords."""

import datetime as dt
import os
import secrets
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pg_server import open_killable
from postgres import PASSWORD, USER, require_programs

from krishiv_spark.errors import StorageError
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter
from krishiv_spark.sources.postgresql.options import PostgresqlSourceOptions
from krishiv_spark.sources.postgresql.reader import PostgresqlReader

pytestmark = pytest.mark.long  # a server, and connections to it

FORMAT = "krishiv-postgresql"
QUERY = "8503b910-b624-45a4-85db-fcb79eac7740"
ROWS = pa.table({"id": pa.array([1, 2, 3])})
KEY_PASSWORD = "of the key"
HBA = """
hostssl all certified all cert
hostssl all all all scram-sha-256
host postgres {user} all scram-sha-256
"""


class Authority:
    """A certificate authority of its own, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        # The name of a folder may be longer than a common name, so two would have one name.
        common_name = f"authority {secrets.token_hex(8)}"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        self.root = self._write("root", self._sign(self._name, self._key, is_root=True))

    def issue(self, name: str, *hosts: str, password: str | None = None) -> tuple[Path, Path]:
        """Return the files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        file = self._write(name, self._sign(subject, key, hosts))
        hidden = serialization.BestAvailableEncryption(password.encode()) if password else None
        data = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            hidden or serialization.NoEncryption(),
        )
        path = self.folder / f"{name}.key"
        path.write_bytes(data)
        path.chmod(0o600)
        return file, path

    def _sign(self, subject, key, hosts=(), *, is_root=False):
        now = dt.datetime.now(dt.timezone.utc)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            made = made.add_extension(names, critical=False)
        return made.sign(self._key, hashes.SHA256())

    def _write(self, name: str, certificate) -> Path:
        path = self.folder / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority):
    """A server that takes logins over TLS; its certificate is for localhost."""
    with open_killable(require_programs()) as server:
        data, owner = server.folder / "data", (server.folder / "data").stat()
        names = ("server.crt", "server.key", "root.crt")
        files = (*authority.issue("server", "localhost"), authority.root)
        for source, name in zip(files, names, strict=True):
            shutil.copy(source, data / name)
            os.chown(data / name, owner.st_uid, owner.st_gid)
            (data / name).chmod(0o600)
        (data / "pg_hba.conf").write_text(HBA.format(user=USER))
        server.database.run("ALTER SYSTEM SET ssl_ca_file = 'root.crt'")
        server.database.run("ALTER SYSTEM SET ssl = on")
        server.database.run("CREATE ROLE certified LOGIN")
        server.database.run("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def database(server):
    server.database.run("DROP SCHEMA public CASCADE")
    server.database.run("CREATE SCHEMA public")
    server.database.run("GRANT ALL ON SCHEMA public TO public")
    return server.database


def write_and_read(**options) -> list[int]:
    """Write an epoch, and return the rows that the source then reads with the same options."""
    parsed = PostgresqlSinkOptions.parse({"table": "orders", **options}, FORMAT)
    writer = PostgresqlWriter(parsed, ROWS.schema, OutputMode.APPEND)
    writer.check()
    staged = writer.stage(iter(ROWS.to_batches()), Task(QUERY, 0, 0, 0), writer.plan(None))
    writer.committer().publish(Epoch(QUERY, 0), [staged])
    given = PostgresqlSourceOptions.parse({"table": "orders", **options}, FORMAT)
    reader = PostgresqlReader(given, None, streaming=False)
    start = reader.initial()
    tasks = reader.plan(start, reader.latest(start, None))
    batches = [batch for task in tasks for batch in reader.read(task)]
    return sorted(pa.Table.from_batches(batches)["id"].to_pylist())


def check(**options) -> None:
    parsed = PostgresqlSinkOptions.parse({"table": "orders", **options}, FORMAT)
    PostgresqlWriter(parsed, ROWS.schema, OutputMode.APPEND).check()


def over_tls(database, authority, host="localhost", user=USER, **settings):
    more = {f"libpq.{name}": str(value) for name, value in settings.items()}
    return {
        "url": f"postgresql://{user}@{host}:{database.port}/postgres",
        "libpq.sslmode": "verify-full",
        "libpq.sslrootcert": str(authority.root),
        **more,
    }


def test_a_server_with_the_right_name_is_trusted(database, authority):
    assert write_and_read(**over_tls(database, authority), password=PASSWORD) == [1, 2, 3]


def test_a_server_with_another_name_or_authority_gets_no_password(database, authority, tmp_path):
    with pytest.raises(StorageError, match="does not match host name") as found:
        check(**over_tls(database, authority, "127.0.0.1"), password=PASSWORD)
    assert "\n" not in str(found.value)
    with pytest.raises(StorageError, match="certificate verify failed"):
        check(**over_tls(database, Authority(tmp_path)), password=PASSWORD)
    with pytest.raises(StorageError, match=r"root certificate file .* does not exist"):
        check(**over_tls(database, authority, sslrootcert=tmp_path / "none"), password=PASSWORD)


def test_a_client_certificate_is_a_login(database, authority):
    certificate, key = authority.issue("certified")
    given = over_tls(database, authority, user="certified", sslcert=certificate, sslkey=key)
    assert write_and_read(**given) == [1, 2, 3]


def test_a_client_without_its_certificate_or_with_another_is_refused(database, authority):
    with pytest.raises(StorageError, match="requires a valid client certificate"):
        check(**over_tls(database, authority, user="certified"))
    certificate, key = authority.issue("another")
    given = over_tls(database, authority, user="certified", sslcert=certificate, sslkey=key)
    with pytest.raises(StorageError, match="certificate authentication failed"):
        check(**given)
    key.chmod(0o644)
    with pytest.raises(StorageError, match="has group or world access"):
        check(**given)


def test_the_password_of_a_key_is_a_secret(database, authority, monkeypatch):
    certificate, key = authority.issue("certified", password=KEY_PASSWORD)
    given = over_tls(database, authority, user="certified", sslcert=certificate, sslkey=key)
    monkeypatch.setenv("OF_KEY", KEY_PASSWORD)
    secret = {"libpq.sslpassword": "${env:OF_KEY}"}
    parsed = PostgresqlSinkOptions.parse({"table": "orders", **given, **secret}, FORMAT)
    assert KEY_PASSWORD in parsed.secrets()
    assert write_and_read(**given, **secret) == [1, 2, 3]
    monkeypatch.setenv("OF_KEY", "wrong password")
    with pytest.raises(StorageError) as found:
        check(**given, **secret)
    assert "wrong password" not in str(found.value)


def test_a_service_file_names_the_server(database, authority, tmp_path, monkeypatch):
    file = tmp_path / "services"
    file.write_text(
        f"[shop]\nhost=localhost\nport={database.port}\ndbname=postgres\nuser={USER}\n"
        f"sslmode=verify-full\nsslrootcert={authority.root}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    assert write_and_read(**{"libpq.service": "shop"}, password=PASSWORD) == [1, 2, 3]
    database.run("DROP TABLE orders, krishiv_epochs")
    assert write_and_read(url="service=shop", password=PASSWORD) == [1, 2, 3]
    with pytest.raises(StorageError, match='definition of service "none" not found'):
        check(**{"libpq.service": "none"}, password=PASSWORD)


def test_variables_and_a_password_file_are_enough(database, authority, tmp_path, monkeypatch):
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"localhost:{database.port}:*:{USER}:{PASSWORD}\n")
    passwords.chmod(0o600)
    values = {
        "PGHOST": "localhost",
        "PGPORT": str(database.port),
        "PGDATABASE": "postgres",
        "PGUSER": USER,
        "PGPASSFILE": str(passwords),
        "PGSSLMODE": "verify-full",
        "PGSSLROOTCERT": str(authority.root),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert write_and_read() == [1, 2, 3]
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="no password supplied"):
        check()


def test_a_password_is_read_from_a_file_and_never_shown(database, tmp_path):
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    url = f"postgresql://{USER}@127.0.0.1:{database.port}/postgres"
    given = {"url": url, "password": f"${{file:{file}}}"}
    assert write_and_read(**given) == [1, 2, 3]
    file.write_text("a wrong secret")
    with pytest.raises(StorageError, match="Check the options 'user' and 'password'") as found:
        check(**given)
    assert "a wrong secret" not in str(found.value)
