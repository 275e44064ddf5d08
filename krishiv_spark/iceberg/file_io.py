"""The `FileIO` of tables: guarded by `file_access`, and in buckets by options ``storage.…``.

The options travel among the properties that a catalog hands to each `FileIO`. This module alone
maps settings of krishiv-spark to properties of PyIceberg. A property that is already set takes
precedence, whether a user set it (``catalog.s3.…``) or the catalog handed it out with the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from typing_extensions import override

from krishiv_spark.errors import StorageError
from krishiv_spark.iceberg.file_access import TableAccess, keep_store_settings
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.s3 import S3Settings, S3Store, find_endpoint, profile_credentials
from krishiv_spark.storage.settings import option_or_variable
from krishiv_spark.storage.storage import settings_for

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.table import Table

__all__ = [
    "GuardedFileIO",
    "StoreFileIO",
    "create_file_io",
    "create_worker_io",
    "derive_s3_properties",
    "get_access",
    "get_guarded_io",
]

_LOGIN = ("access-key-id", "secret-access-key", "session-token", "role-arn", "profile-name")
_LOGINS = frozenset(
    [f"{owner}.{name}" for owner in ("s3", "client") for name in _LOGIN]
    + ["s3.anonymous", "s3.signer"]
)
"""Properties of a login: they belong together, and never come from two sources."""

_CONNECT_S = 4
"""Timeout of each of the three attempts of PyArrow."""

_PROBED_FOLDER = "_krishiv"
_LISTING_REFUSED = re.compile("AccessDenied|AllAccessDisabled")

_REACHED: set[tuple[int, str, S3Settings]] = set()
"""Buckets that have responded to this process, by its id, with their settings."""


def create_file_io(settings: Mapping[str, Any], location: str) -> FileIO:
    """Create a FileIO. Driver.

    Args:
        settings: Settings from the user's options and the catalog; never from a table.
        location: The file or folder whose scheme selects the class, unless a setting names one.
    """
    return load_file_io(dict(settings), location)


class GuardedFileIO(FileIO):
    """A FileIO that opens and deletes only files that the table may name. Anywhere; pickles.

    Attributes:
        inner: The FileIO that accesses the files.
        access: The rules.
    """

    def __init__(self, inner: FileIO, access: TableAccess) -> None:
        super().__init__(inner.properties)
        self.inner = inner
        self.access = access

    @override
    def new_input(self, location: str) -> InputFile:
        """Return a file to read.

        Raises:
            OptionError: If the table must not name it.
        """
        self.access.check(location)
        return self.inner.new_input(location)

    @override
    def new_output(self, location: str) -> OutputFile:
        """Return a file to write.

        Raises:
            OptionError: If the table must not name it.
        """
        self.access.check(location)
        return self.inner.new_output(location)

    @override
    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file.

        Raises:
            OptionError: If the table must not name it.
        """
        self.access.check(location if isinstance(location, str) else location.location)
        self.inner.delete(location)


def get_guarded_io(table: Table) -> GuardedFileIO:
    """Return the FileIO of a table that a guarded catalog has loaded."""
    return cast("GuardedFileIO", table.io)


def get_access(table: Table) -> TableAccess:
    """Return the rules for the files of a table that a guarded catalog has loaded."""
    return get_guarded_io(table).access


def create_worker_io(table: Table) -> FileIO:
    """Create a `FileIO` for the tasks, without secrets of the catalog; it pickles. Driver.

    It has the settings of the object store only, including credentials that the catalog handed out
    with the table (``loadTable``).
    """
    inner = create_file_io(keep_store_settings(table.io.properties), table.metadata_location)
    return GuardedFileIO(inner, get_access(table))


# --- buckets


class StoreFileIO(PyArrowFileIO):
    """PyIceberg's FileIO, which reaches buckets of S3 by options ``storage.…`` too. Pickles."""

    @override
    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        url = f"{scheme}://{netloc or ''}"
        if StoreUrl.kind_of(url) != "s3":
            return super()._initialize_fs(scheme, netloc)
        known = {**self.properties, **derive_s3_properties(self.properties, url)}
        _check_reachable(StoreUrl.parse(url), known)
        return PyArrowFileIO(known).fs_by_scheme(scheme, netloc)


def derive_s3_properties(given: Mapping[str, Any], location: str) -> dict[str, str]:
    """Derive properties of PyIceberg for a bucket of S3 from options ``storage.…``.

    Args:
        given: Properties of PyIceberg, and options ``storage.…`` by their names.
        location: URL of a bucket of S3, or of a file in it.

    Returns:
        The derived properties, without those in `given`.

    Raises:
        OptionError: If a setting has a bad value, or a profile does not log in.
    """
    url = StoreUrl.parse(location)
    settings = settings_for(url, dict(Storage.for_query(given).options))
    assert isinstance(settings, S3Settings)
    login = {} if _LOGINS & given.keys() else _derive_login(settings)
    found = {**_derive_connection(settings, url.bucket), **login}
    endpoint = given.get("s3.endpoint", found.get("s3.endpoint"))
    if "client.region" not in given and (region := _derive_region(settings, endpoint)):
        found["s3.region"] = region
    return {name: value for name, value in found.items() if name not in given}


def _derive_connection(settings: S3Settings, bucket: str) -> dict[str, str]:
    found = {
        "s3.connect-timeout": str(_CONNECT_S),
        "s3.request-timeout": str(settings.timeout / 1000),
    }
    if endpoint := find_endpoint(bucket, settings):
        found["s3.endpoint"] = endpoint
    if settings.path_style is not None:
        found["s3.force-virtual-addressing"] = str(not settings.path_style).lower()
    if settings.proxy is not None:
        found["s3.proxy-uri"] = settings.proxy.get_secret_value()
    return found


def _derive_region(settings: S3Settings, endpoint: str | None) -> str | None:
    """Return a region: without it PyIceberg asks Amazon for the bucket's, even with an endpoint."""
    if endpoint is None:
        return settings.region
    return option_or_variable(settings.region, "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"


def _derive_login(settings: S3Settings) -> dict[str, str]:
    """Return the login from options; empty to use that of the machine's environment."""
    if settings.anonymous:
        return {"s3.anonymous": "true"}
    if settings.profile is not None and settings.access_key_id is None:
        return _read_profile(settings)
    keys = {
        "s3.access-key-id": settings.access_key_id,
        "s3.secret-access-key": settings.secret_access_key,
        "s3.session-token": settings.session_token,
    }
    return {name: value.get_secret_value() for name, value in keys.items() if value is not None}


def _read_profile(settings: S3Settings) -> dict[str, str]:
    """Return the current keys of a profile: PyArrow reads only the environment's profile."""
    found = profile_credentials(settings)()
    keys = {"access-key-id": "access_key_id", "secret-access-key": "secret_access_key"}
    named = {**keys, "session-token": "token"}
    return {f"s3.{name}": found[key] for name, key in named.items() if found.get(key)}


def _check_reachable(url: StoreUrl, known: Mapping[str, Any]) -> None:
    """List a folder in a bucket, most likely an empty one, when this process first uses it.

    PyArrow would try a silent endpoint three times, each as long as one request may take, and
    sends HEAD first, whose response has no text. The response to a listing contains the reason.

    Raises:
        StorageError: If the bucket does not respond in time, or refuses the login; in one line.
    """
    settings = _to_settings(url.bucket, known)
    key = (os.getpid(), url.bucket, settings)
    if key in _REACHED:
        return
    try:
        S3Store(url / _PROBED_FOLDER, settings).folder().names()
    except StorageError as error:
        if not _LISTING_REFUSED.search(str(error)):  # other folders may be allowed
            raise
    _REACHED.add(key)


def _to_settings(bucket: str, known: Mapping[str, Any]) -> S3Settings:
    """Convert properties of PyIceberg to settings of krishiv-spark."""

    def first(*names: str) -> str | None:
        return next((known[name] for name in names if known.get(name)), None)

    endpoint = first("s3.endpoint")
    by_host = first("s3.force-virtual-addressing") == "true"
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    if endpoint is not None and by_host:
        endpoint = endpoint.replace("://", f"://{bucket}.", 1)
    key = first("s3.access-key-id", "client.access-key-id")
    given = {
        "endpoint": endpoint,
        "region": first("s3.region", "client.region"),
        "access_key_id": key,
        "secret_access_key": first("s3.secret-access-key", "client.secret-access-key"),
        "session_token": first("s3.session-token", "client.session-token"),
        "path_style": not by_host,
        # PyArrow and obstore may find different logins in the environment.
        "anonymous": key is None,
        "proxy": first("s3.proxy-uri"),
    }
    present = {name: value for name, value in given.items() if value is not None}
    return S3Settings.model_validate(present, by_name=True)
