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
"""Properties that say who asks: they belong together, and never come from two places."""

_CONNECT_S = 4
"""For one of the three attempts of PyArrow."""

_PART = "_krishiv"
_MAY_NOT = re.compile("AccessDenied|AllAccessDisabled")

_ANSWERED: set[tuple[int, str, S3Settings]] = set()
"""What has answered this process: its id, a bucket and how it is reached."""


def create_file_io(settings: Mapping[str, Any], location: str) -> FileIO:
    """Create a FileIO. Driver.

    Args:
        settings: Of the user's options and the catalog; never of a table.
        location: The file or folder whose scheme selects the class, unless a setting names one.
    """
    return load_file_io(dict(settings), location)


class GuardedFileIO(FileIO):
    """A FileIO that opens and deletes only what the table may name. Driver and tasks; pickles.

    Attributes:
        inner: The FileIO that does it.
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
    """Create a `FileIO` for the tasks that knows no secret of the catalog; it pickles. Driver.

    It has the settings of the object store only, credentials that the catalog handed out with the
    table (``loadTable``) included.
    """
    inner = create_file_io(keep_store_settings(table.io.properties), table.metadata_location)
    return GuardedFileIO(inner, get_access(table))


# --- buckets


class StoreFileIO(PyArrowFileIO):
    """PyIceberg's files; buckets are reached by `derive_s3_properties` too. Anywhere; pickles."""

    @override
    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        place = f"{scheme}://{netloc or ''}"
        if StoreUrl.kind_of(place) != "s3":
            return super()._initialize_fs(scheme, netloc)
        known = {**self.properties, **derive_s3_properties(self.properties, place)}
        _check_answers(StoreUrl.parse(place), known)
        return PyArrowFileIO(known).fs_by_scheme(scheme, netloc)


def derive_s3_properties(given: Mapping[str, Any], place: str) -> dict[str, str]:
    """What PyIceberg is told of a bucket besides what it is given.

    Args:
        given: Properties of PyIceberg, and options ``storage.…`` by their names.
        place: URL of a bucket of S3, or of anything in it.

    Returns:
        Properties that are not given.

    Raises:
        OptionError: If a setting has a bad value, or a profile does not log in.
    """
    url = StoreUrl.parse(place)
    settings = settings_for(url, dict(Storage.given(given).options))
    assert isinstance(settings, S3Settings)
    login = {} if _LOGINS & given.keys() else _login(settings)
    found = {**_connection(settings, url.bucket), **login}
    endpoint = given.get("s3.endpoint", found.get("s3.endpoint"))
    if "client.region" not in given and (region := _region(settings, endpoint)):
        found["s3.region"] = region
    return {name: value for name, value in found.items() if name not in given}


def _connection(settings: S3Settings, bucket: str) -> dict[str, str]:
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


def _region(settings: S3Settings, endpoint: str | None) -> str | None:
    """The region; without it PyIceberg asks Amazon where the bucket is, whatever the endpoint."""
    if endpoint is None:
        return settings.region
    return option_or_variable(settings.region, "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"


def _login(settings: S3Settings) -> dict[str, str]:
    """Who asks, by options; nothing leaves it to the environment of the machine that asks."""
    if settings.anonymous:
        return {"s3.anonymous": "true"}
    if settings.profile is not None and settings.access_key_id is None:
        return _of_profile(settings)
    keys = {
        "s3.access-key-id": settings.access_key_id,
        "s3.secret-access-key": settings.secret_access_key,
        "s3.session-token": settings.session_token,
    }
    return {name: value.get_secret_value() for name, value in keys.items() if value is not None}


def _of_profile(settings: S3Settings) -> dict[str, str]:
    """A profile's keys as they are now: PyArrow reads no profile but the environment's."""
    found = profile_credentials(settings)()
    keys = {"access-key-id": "access_key_id", "secret-access-key": "secret_access_key"}
    named = {**keys, "session-token": "token"}
    return {f"s3.{name}": found[key] for name, key in named.items() if found.get(key)}


def _check_answers(url: StoreUrl, known: Mapping[str, Any]) -> None:
    """List a part of a bucket, most likely an empty one, when this process first uses it.

    PyArrow would try an endpoint that is silent three times as long as one request may take, and
    asks by HEAD first, whose answer has no words. What answers this says what is wrong.

    Raises:
        StorageError: If it does not answer in time, or not to who asks; in one line.
    """
    settings = _settings_of(url.bucket, known)
    key = (os.getpid(), url.bucket, settings)
    if key in _ANSWERED:
        return
    try:
        S3Store(url / _PART, settings).folder().names()
    except StorageError as error:
        if not _MAY_NOT.search(str(error)):  # it may list other parts
            raise
    _ANSWERED.add(key)


def _settings_of(bucket: str, known: Mapping[str, Any]) -> S3Settings:
    """How a bucket is reached by properties of PyIceberg, the other way round."""

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
        # Who asks by the environment may be somebody else to PyArrow than to obstore.
        "anonymous": key is None,
        "proxy": first("s3.proxy-uri"),
    }
    present = {name: value for name, value in given.items() if value is not None}
    return S3Settings.model_validate(present, by_name=True)
