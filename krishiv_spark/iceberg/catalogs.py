"""Catalogs and tables, opened by the options. Driver.

Catalogs are PyIceberg's. Without any setting of one, there is an embedded catalog: SQLite in the
folder of the warehouse. Each catalog is guarded, so that its tables choose neither code nor hosts,
and its client has timeouts. Only drivers open catalogs; workers get a `FileIO` that knows the
object store and nothing of the catalog (`create_worker_io`).

The classes of catalogs are imported when a catalog is opened: that for REST brings ``requests``,
whose import takes a tenth of a second in each process, that for SQL brings SQLAlchemy.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit
from weakref import WeakSet

from krishiv_spark.errors import KrishivError, OptionError, SchemaError, StorageError
from krishiv_spark.iceberg.embedded import (
    CatalogFile,
    CatalogReplacedError,
    describe_missing,
    find_embedded,
)
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.storage.clients import explain_code, explain_connect_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from krishiv_spark.iceberg.file_access import FileAccess
    from krishiv_spark.iceberg.guarded_catalog import GuardedCatalog

__all__ = [
    "CatalogFailedError",
    "explain_catalog_errors",
    "forget_catalog",
    "guard",
    "load_table",
    "open_catalog",
    "open_table",
]

_BAD_SETTINGS = (
    "ValueError",
    "NotInstalledError",
    "NoSuchPropertyException",
    "UnauthorizedError",
    "ForbiddenError",
    "OAuthError",
    "RedirectRefusedError",
    "ArgumentError",  # sqlalchemy: a URI that it cannot read
    "NoSuchModuleError",  # sqlalchemy: a database that it does not know
    "ModuleNotFoundError",  # the client of a database is not installed
    "NoCredentialsError",  # botocore, of Glue
    "NoRegionError",
    "PartialCredentialsError",
    "ProfileNotFound",
)
"""Errors that another attempt does not cure; by name, to import no client for them."""


_RACE_ERRORS = ("IntegrityError", "OperationalError", "ProgrammingError")
"""Errors of SQLAlchemy if another process creates the tables of a new catalog at the same time."""

_MOST_MOVES = 2

_CLASS = "py-catalog-impl"
"""The setting of PyIceberg that names the class of a catalog."""

_ROOM = "krishiv_spark.iceberg"

_Key = tuple[int, str, "FileAccess", tuple[tuple[str, str], ...]]
_CATALOGS: dict[_Key, Catalog] = {}
"""The catalogs in use, by process, name, file access and settings.

A forked process must not share connections."""

_OPENED: dict[_Key, WeakSet[Catalog]] = {}
"""All catalogs that still exist, also those that were forgotten.

A table that was loaded before keeps its catalog, which connects again at the table's next commit.
If that commit and its rollback fail, the connection of this older catalog has SQLite's lock."""


class CatalogFailedError(KrishivError):
    """The catalog could not be reached, or did not respond."""

    retriable = True


@contextlib.contextmanager
def explain_catalog_errors(options: IcebergOptions, doing: str) -> Iterator[None]:
    """Convert errors of catalogs, without the credentials that errors of clients may show.

    Args:
        options: Options that specify the catalog.
        doing: The action that may fail, as "open the catalog".

    Raises:
        OptionError: If the settings are wrong: only changing them helps.
        SchemaError: If PyIceberg does not know something in a table, such as the type variant.
        CatalogFailedError: In all other cases.
    """
    try:
        yield
    except StorageError as error:  # of the bucket that its tables are in
        forget_catalog(options)
        why = options.redact(str(error))
        raise_alone(CatalogFailedError(f"{FORMAT}: cannot {doing}: {why}"))
    except KrishivError:
        raise
    except Exception as error:  # noqa: BLE001  clients of catalogs raise any class
        name = type(error).__name__
        text = f"{name}: {excerpt(str(error), options.secrets())}{_advise(error, options)}"
        reason = options.redact(_explain_silence(error, options) or text)
        text = f"{FORMAT}: cannot {doing} (catalog {options.catalog_name!r}): {reason}"
        if name == "ValidationError":  # of PyIceberg, where metadata cannot be read
            raise_alone(SchemaError(f"{text}. PyIceberg does not know every type, as variant"))
        kind = OptionError if name in _BAD_SETTINGS else CatalogFailedError
        forget_catalog(options)
        raise_alone(kind(text))  # the text of a cause may show secrets that this one does not


_CONNECTION_ERRORS = ("ConnectTimeout", "ConnectionError", "ReadTimeout", "SSLError")
"""Errors of requests, whose texts are written for authors of clients."""


def _explain_silence(error: Exception, options: IcebergOptions) -> str | None:
    """Return the reason why a catalog does not respond; None for other errors."""
    if type(error).__name__ not in _CONNECTION_ERRORS:
        return None
    to = urlsplit(options.catalog_properties().get("uri", ""))
    known = explain_connect_error(f"{to.scheme}://{to.netloc.rpartition('@')[2]}", str(error))
    return None if known is None else f"{known}: correct 'catalog.uri'"


_CODE = re.compile(r"AWS Error ([A-Z_]+)")
"""A code in an error of Amazon's SDK for C++, which writes ``NO_SUCH_BUCKET``."""


def _advise(error: Exception, options: IcebergOptions) -> str:
    """Return the advice for an error of a table's store; empty without any."""
    if isinstance(error, FileNotFoundError):
        return describe_missing(str(error.filename or ""), options)
    code = _CODE.search(str(error)) if isinstance(error, OSError) else None
    return "" if code is None else f": {explain_code(code[1].title().replace('_', ''))}"


def open_catalog(options: IcebergOptions, *, create: bool = False) -> Catalog:
    """Open PyIceberg's catalog, or return the one that this process has open. Driver.

    Args:
        options: Options that specify the catalog.
        create: True to create an embedded catalog if there is none.

    Raises:
        OptionError: If the settings are wrong, or there is no embedded catalog.
        CatalogFailedError: If it cannot be reached.
    """
    properties = options.catalog_properties()
    with explain_catalog_errors(options, "open the catalog"):
        if options.is_embedded:
            find_embedded(options.embedded_file, create=create)
        key = _get_key(options)
        known = _CATALOGS.get(key)
        if known is not None and _is_replaced(known):
            forget_catalog(options)
            known = None
        if known is None:
            known = _CATALOGS[key] = _open(options, properties)
            _OPENED.setdefault(key, WeakSet()).add(known)
        return known


def _is_replaced(catalog: Catalog) -> bool:
    """Return True for a catalog in SQLite whose path leads to another file now."""
    file = getattr(catalog, "catalog_file", None)
    return isinstance(file, CatalogFile) and file.is_replaced()


def forget_catalog(options: IcebergOptions) -> None:
    """Close a catalog's connections, so that the next ones are new. Driver; after each failure.

    A connection whose SQL commit has failed stays in its transaction (SQLAlchemy's pool does not
    roll it back): it shows changes that no other process sees, and keeps SQLite's lock. It may be
    one of a catalog that was forgotten before, of which a table still exists.

    SQLite closes a connection only once its statements have ended, and keeps its locks until then
    (``sqlite3_close_v2``). The cursor of an earlier error may have one, as part of a reference
    cycle, so garbage is collected.
    """
    key = _get_key(options)
    _CATALOGS.pop(key, None)
    opened = [*_OPENED.get(key, ())]
    for catalog in opened:
        with contextlib.suppress(Exception):  # the connections are not used again in any case
            catalog.close()
    if any(getattr(catalog, "catalog_file", None) is not None for catalog in opened):
        gc.collect()


def _get_key(options: IcebergOptions) -> _Key:
    from krishiv_spark.iceberg.file_access import FileAccess

    properties = tuple(sorted(options.catalog_properties().items()))
    return os.getpid(), options.catalog_name, FileAccess.from_options(options), properties


def _open(options: IcebergOptions, properties: dict[str, str]) -> Catalog:
    from krishiv_spark.iceberg._pyiceberg import read_configured_settings
    from krishiv_spark.iceberg.file_access import FileAccess

    name = options.catalog_name
    given = {**read_configured_settings(name), **properties}
    return guard(_create(name, properties), FileAccess.from_options(options), given)


def _create(name: str, properties: dict[str, str]) -> Catalog:
    robust = _add_timeouts(properties)
    if is_postgresql(robust.get("uri", "")):
        check_connection(robust["uri"])
    try:
        catalog = _load(name, robust)
    except Exception as error:
        if type(error).__name__ not in _RACE_ERRORS:
            raise
        catalog = _load(name, robust)
    if type(catalog).__name__ != "SqlCatalog":
        return catalog
    from krishiv_spark.iceberg.sql_catalog import CachingSqlCatalog

    with contextlib.closing(catalog):  # only its settings are used, as PyIceberg resolved them
        return CachingSqlCatalog(name, **catalog.properties)


def _load(name: str, properties: dict[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    return load_catalog(name, **properties)


def _add_timeouts(properties: dict[str, str]) -> dict[str, str]:
    """Return settings with which a catalog's client has timeouts and checks old connections.

    Without a type, PyIceberg takes http for REST, and names of databases for SQL.
    """
    others = {key: text for key, text in properties.items() if key != "type"}
    uri = "" if _CLASS in others else others.get("uri", "")
    kind = properties.get("type", "rest" if uri.startswith("http") else "").lower()
    # PyIceberg refuses a type beside a class.
    if kind == "rest":  # only another class can set timeouts
        return {**others, _CLASS: f"{_ROOM}.rest_catalog.TimeoutRestCatalog"}
    if kind == "glue" and find_spec("boto3") is not None:  # otherwise PyIceberg's error names it
        return {**others, _CLASS: f"{_ROOM}.glue_catalog.TimeoutGlueCatalog"}
    # A connection to a file is closed by no other process.
    if uri.startswith("sqlite"):
        return properties
    if is_postgresql(uri):
        properties = {**properties, "uri": add_libpq_timeouts(uri)}
    return {"pool_pre_ping": "true", **properties}  # of SQL catalogs; others ignore it


def open_table(options: IcebergOptions) -> Table:
    """Load the table in its current state. Driver.

    Raises:
        OptionError: If the table is missing (a similar name is suggested), the settings are wrong,
            or there is no embedded catalog.
        CatalogFailedError: If the catalog cannot be reached, or the table's metadata not be read.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    catalog = open_catalog(options)
    with explain_catalog_errors(options, f"load table {options.table_name}"):
        try:
            try:
                return load_table(catalog, options)
            except CatalogReplacedError:  # since it was opened, a moment ago
                catalog = open_catalog(options)
                return load_table(catalog, options)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise OptionError(_describe_missing_table(options, catalog)) from None


def load_table(catalog: Catalog, options: IcebergOptions) -> Table:
    """Load the table again if the metadata file that the catalog named was deleted meanwhile.

    Raises:
        NoSuchTableError: If it is missing. Other errors of PyIceberg's catalogs pass.
        ValueError: If the metadata contradicts itself.
    """
    for _ in range(_MOST_MOVES):
        with contextlib.suppress(FileNotFoundError):
            return _check_branch(catalog.load_table(options.identifier))
    return _check_branch(catalog.load_table(options.identifier))


def _check_branch(table: Table) -> Table:
    """Refuse a table whose main branch is not at its current snapshot.

    They are the same by the Iceberg spec ("Table Metadata Fields"). A commit requires one of them,
    and changes the other.
    """
    main, current = table.metadata.refs.get("main"), table.metadata.current_snapshot_id
    at = None if main is None else main.snapshot_id
    if at != current:
        raise ValueError(
            f"its metadata names snapshot {current} as the current one, and its branch main is at "
            f"snapshot {at}"
        )
    return table


def _describe_missing_table(options: IcebergOptions, catalog: Catalog) -> str:
    text = f"{FORMAT}: there is no table {options.table_name} in catalog {options.catalog_name!r}"
    known: list[str] = []
    with contextlib.suppress(Exception):  # a hint only
        known = [".".join(name) for name in catalog.list_tables(options.identifier[:-1])]
    near = suggest(options.table_name, known)
    if near:
        return f"{text}; did you mean {near!r}?"
    with contextlib.suppress(Exception):  # a hint only
        text += _suggest_catalog_names(options, catalog)
    return text


def _suggest_catalog_names(options: IcebergOptions, catalog: Catalog) -> str:
    """Return a hint where a SQL catalog's database has tables under other names of catalogs."""
    if type(catalog).__name__ != "CachingSqlCatalog":
        return ""
    found: Any = catalog
    having = found.list_catalog_names(options.identifier)
    if having:
        names = " or ".join(map(repr, having))
        return f"; its database has this table in catalog {names}: give that as 'catalogName'"
    others = [name for name in found.list_catalog_names() if name != options.catalog_name]
    listed = ", ".join(map(repr, others))
    return (
        f"; its database has tables of other catalogs ('catalogName'): {listed}" if others else ""
    )


# --- guarding


def guard(catalog: Catalog, access: FileAccess, given: Mapping[str, Any]) -> Catalog:
    """Make a catalog of any class take no settings from its tables. Driver.

    Catalogs in its attributes are guarded too, for example of one that adds a cache to another.

    Args:
        catalog: The catalog, as PyIceberg has created it.
        access: The user's options.
        given: The user's settings of the catalog, before a server added its own.

    Returns:
        The same catalog.

    Raises:
        OptionError: If it is no catalog of PyIceberg.
    """
    from pyiceberg.catalog import Catalog

    from krishiv_spark.iceberg._pyiceberg import search_snapshots_quickly
    from krishiv_spark.iceberg.avro_files import bound_avro_files
    from krishiv_spark.iceberg.guarded_catalog import GuardedCatalog

    bound_avro_files()
    search_snapshots_quickly()
    if not isinstance(catalog, Catalog):
        raise OptionError(
            f"{FORMAT}: 'catalog.py-catalog-impl' names {type(catalog).__name__}, which is not "
            "a subclass of pyiceberg.catalog.Catalog"
        )
    if not isinstance(catalog, GuardedCatalog):
        catalog.__class__ = _get_guarded_class(type(catalog))
        for inner in [one for one in vars(catalog).values() if isinstance(one, Catalog)]:
            guard(inner, access, given)
        if _is_rest(type(catalog)):
            from krishiv_spark.iceberg.rest_catalog import GuardedRestCatalog

            cast("GuardedRestCatalog", catalog).keep_choices_of(given)
    guarded = cast("GuardedCatalog", catalog)
    guarded.file_access = access
    return guarded


@lru_cache(maxsize=16)
def _get_guarded_class(kind: type[Catalog]) -> type[Catalog]:
    return type(kind.__name__, (_find_mixin(kind), kind), {})


def _find_mixin(kind: type[Catalog]) -> type[GuardedCatalog]:
    from pyiceberg.catalog import MetastoreCatalog

    from krishiv_spark.iceberg.guarded_catalog import GuardedCatalog, GuardedMetastoreCatalog

    if _is_rest(kind):
        from krishiv_spark.iceberg.rest_catalog import GuardedRestCatalog

        return GuardedRestCatalog
    return GuardedMetastoreCatalog if issubclass(kind, MetastoreCatalog) else GuardedCatalog


def _is_rest(kind: type[Catalog]) -> bool:
    # As long as the module is not imported, there is no class of it and no subclass.
    module = sys.modules.get("pyiceberg.catalog.rest")
    return module is not None and issubclass(kind, module.RestCatalog)


# --- PostgreSQL

# libpq waits permanently for a server that accepts a connection and sends nothing, and for one that
# vanishes later as long as the machine does
# (https://www.postgresql.org/docs/current/libpq-connect.html). And PyIceberg 0.12 takes a database
# that cannot be reached for one without tables, and tries to create them.


_CLIENTS = ("postgresql", "postgresql+psycopg", "postgresql+psycopg2")
"""Schemes of URIs whose client is libpq."""

_LIBPQ_SETTINGS = {
    "connect_timeout": "8",  # seconds for each address of a host, logging in included
    "tcp_user_timeout": "60000",  # ms until a server that confirms no packet counts as lost
    "keepalives_idle": "20",  # seconds; like the next, for a client that only waits
    "keepalives_interval": "10",
    "keepalives_count": "4",
}


def is_postgresql(uri: str) -> bool:
    """Return True if libpq is the client of this URI."""
    return uri.partition("://")[0] in _CLIENTS


def add_libpq_timeouts(uri: str) -> str:
    """Return the URI with the timeouts that its user has not set, in it or for libpq."""
    given = parse_qs(urlsplit(uri).query, keep_blank_values=True)
    if "PGCONNECT_TIMEOUT" in os.environ:
        given["connect_timeout"] = []
    new = "&".join(f"{key}={text}" for key, text in _LIBPQ_SETTINGS.items() if key not in given)
    return f"{uri}{'&' if '?' in uri else '?'}{new}"


def check_connection(uri: str) -> None:
    """Connect once. Driver.

    Raises:
        sqlalchemy.exc.OperationalError: If the server does not respond, or refuses the login.
    """
    from sqlalchemy import NullPool, create_engine

    with contextlib.closing(create_engine(uri, poolclass=NullPool).connect()):
        pass
