"""Which table, in which catalog, and how both are opened.

Catalogs are PyIceberg's. Without any setting of one, there is an embedded catalog: SQLite in the
folder of the warehouse. Only drivers open catalogs; workers get a `FileIO` that knows the object
store and nothing of the catalog (`worker_io`).
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.errors import KrishivError, OptionError
from krishiv_spark.options import Options
from krishiv_spark.paths import local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

__all__ = [
    "FORMAT",
    "CatalogFailedError",
    "CatalogSettings",
    "IcebergOptions",
    "catalog_errors",
    "forget_catalog",
    "open_catalog",
    "open_table",
    "worker_io",
]

FORMAT = "krishiv-iceberg"
"""How users know the connector; messages begin with it."""

_DEFAULT_NAMESPACE = "default"
_DEFAULT_TABLE = "table"
_EMBEDDED_FILE = "catalog.db"
_STORES = ("adls.", "client.", "gcs.", "hdfs.", "hf.", "py-io-impl", "s3.")
"""Beginnings of the settings that an object store needs (``pyiceberg.io``)."""

_SECRET = re.compile(r"secret|token|passw|credential|key|sas|auth|header|signature|connection-str")
_PLACE = re.compile(r"(uri|url|endpoint)$")
_BAD_SETTINGS = (
    "ValueError",
    "NotInstalledError",
    "NoSuchPropertyException",
    "UnauthorizedError",
    "ForbiddenError",
    "OAuthError",
    "ArgumentError",  # sqlalchemy: a URI that it cannot read
    "NoSuchModuleError",  # sqlalchemy: a database that it does not know
)
"""Classes of errors that no repetition helps against; by name, to import no client for them."""


_Key = tuple[int, str, tuple[tuple[str, str], ...]]
_CATALOGS: dict[_Key, Catalog] = {}
"""Open catalogs, by process, name and settings: a forked process must not share connections."""


class CatalogFailedError(KrishivError):
    """The catalog could not be asked, or did not answer."""

    retriable = True


@dataclass(frozen=True)
class CatalogSettings:
    """Settings of PyIceberg, as ``catalog.*`` gives them; never shown, since some are secret.

    Attributes:
        pairs: Names in PyIceberg and values, sorted.
    """

    pairs: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> CatalogSettings:
        """Settings by their names, with ``catalog.`` in front."""
        plain = {key.lower().removeprefix("catalog."): text for key, text in given.items()}
        return cls(tuple(sorted(plain.items())))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.pairs)

    @property
    def values(self) -> dict[str, str]:
        """By name in PyIceberg; some are secret."""
        return dict(self.pairs)

    def redacted(self, text: str) -> str:
        """A text without the secrets among the values."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        found: set[str] = set()
        for key, value in self.pairs:
            if _PLACE.search(key):
                password = urlsplit(value).password or ""
                found |= {password, unquote(password)}
            elif _SECRET.search(key):
                found |= {value, value.partition(":")[2]}
        return {secret for secret in found if secret}


def _settings(given: object) -> object:
    return CatalogSettings.of(given) if isinstance(given, Mapping) else given


class IcebergOptions(Options):
    """What source and sink have in common: the catalog and the table."""

    gathers: ClassVar[Mapping[str, tuple[str, ...]]] = {"catalog": ("catalog.",)}

    path: str | None = Field(
        default=None,
        validation_alias=AliasChoices("path", "iceberg.path"),
        description="The table, as given to `load()`, `start()` or `save()`: `orders`, "
        "`db.orders`. With a `/` it is the warehouse instead, and `table` names the table.",
    )
    table: str | None = Field(
        default=None,
        validation_alias=AliasChoices("table", "iceberg.table"),
        description="The table, `name` or `namespace.name`; the namespace is `default` if none "
        "is given.",
    )
    warehouse: str | None = Field(
        default=None,
        validation_alias=AliasChoices("warehouse", "iceberg.warehouse"),
        description="Where tables are: a folder that every worker shares, or what the catalog "
        "calls so. Without `catalog.*` the catalog is a file `catalog.db` (SQLite) in this folder.",
    )
    catalog_name: str = Field(
        default="krishiv",
        min_length=1,
        description="Name of the catalog. SQL catalogs keep the tables of each name apart.",
    )
    catalog: Annotated[CatalogSettings, BeforeValidator(_settings)] = Field(
        default=CatalogSettings(),
        validation_alias="catalog.*",
        description="Settings of PyIceberg for the catalog and the object store: `catalog.type`, "
        "`catalog.uri`, `catalog.token`, `catalog.s3.endpoint`, ...",
    )

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        if self._path_is_warehouse and self.warehouse not in {None, self.path}:
            raise ValueError("'path' with a '/' is the warehouse, and 'warehouse' is another one")
        if not self._path_is_warehouse and self.path and self.table:
            _check_same(self.path, self.table)
        _ = self.identifier
        if self.is_embedded and self.warehouse_text is None:
            raise ValueError("option 'warehouse' is required, or 'catalog.*' for a catalog")
        return self

    @property
    def _path_is_warehouse(self) -> bool:
        return self.path is not None and "/" in self.path

    @property
    def warehouse_text(self) -> str | None:
        """The warehouse as it was written."""
        return self.path if self._path_is_warehouse else self.warehouse

    @property
    def identifier(self) -> tuple[str, ...]:
        """The table: the levels of its namespace, then its name.

        Raises:
            ValueError: If there is none, or it is no name.
        """
        named = self.table if self._path_is_warehouse else self.table or self.path
        if named is None and not self._path_is_warehouse:
            raise ValueError("option 'table' is required, as 'name' or 'namespace.name'")
        parts = tuple((named or _DEFAULT_TABLE).split("."))
        if not all(part.strip() for part in parts):
            raise ValueError(f"{named!r} is no table: write 'name' or 'namespace.name'")
        return parts if len(parts) > 1 else (_DEFAULT_NAMESPACE, *parts)

    @property
    def table_name(self) -> str:
        """The table's full name, for messages."""
        return ".".join(self.identifier)

    @property
    def is_embedded(self) -> bool:
        """Whether the catalog is the file in the warehouse's folder."""
        return not {"type", "uri", "py-catalog-impl"} & self.catalog.values.keys()

    @property
    def embedded_file(self) -> Path:
        """The embedded catalog."""
        option = f"{FORMAT}: 'warehouse'"
        folder = local_path(self.warehouse_text or "", option)
        if set("?#") & set(str(folder)):
            raise OptionError(f"{option} {str(folder)!r} must not contain '?' or '#'")
        return folder / _EMBEDDED_FILE

    def catalog_properties(self) -> dict[str, str]:
        """All that PyIceberg's ``load_catalog`` is given; some of it is secret.

        Local places are plain paths, not URLs: every reader of tables on a disk takes them.
        """
        values = self.catalog.values
        if self.is_embedded:
            file = self.embedded_file
            return {
                **values,
                "type": "sql",
                "uri": f"sqlite:///{file}",
                "warehouse": str(file.parent),
            }
        place = self.warehouse_text
        if place is not None:
            local = place.startswith(("/", "file:"))
            values["warehouse"] = str(local_path(place)) if local else place
        return values


def _check_same(path: str, table: str) -> None:
    if path != table:
        raise ValueError(f"the table is given twice: 'path' {path!r} and 'table' {table!r}")


@contextlib.contextmanager
def catalog_errors(options: IcebergOptions, doing: str) -> Iterator[None]:
    """Say what failed, where and why, without the credentials that errors of clients may show.

    Args:
        options: Whose catalog is asked.
        doing: What was tried, as "open the catalog".

    Raises:
        OptionError: If the settings are wrong: nothing helps but to change them.
        CatalogFailedError: In all other cases.
    """
    try:
        yield
    except KrishivError:
        raise
    except Exception as error:  # noqa: BLE001  clients of catalogs raise what they like
        name = type(error).__name__
        reason = options.catalog.redacted(f"{name}: {error}")
        text = f"{FORMAT}: cannot {doing} (catalog {options.catalog_name!r}): {reason}"
        kind = OptionError if name in _BAD_SETTINGS else CatalogFailedError
        forget_catalog(options)
        raise kind(text) from None  # the cause's own text may show what was taken out of this one


def open_catalog(options: IcebergOptions, *, create: bool = False) -> Catalog:
    """PyIceberg's catalog. Driver; one for each process and its settings.

    Args:
        options: Which one.
        create: Whether an embedded catalog is made if there is none.

    Raises:
        OptionError: If the settings are wrong, or there is no embedded catalog.
        CatalogFailedError: If it cannot be reached.
    """
    properties = options.catalog_properties()
    with catalog_errors(options, "open the catalog"):
        if options.is_embedded:
            _find_embedded(options.embedded_file, create=create)
        key = _key(options)
        if key not in _CATALOGS:
            _CATALOGS[key] = _opened(options.catalog_name, properties)
        return _CATALOGS[key]


def forget_catalog(options: IcebergOptions) -> None:
    """Close a catalog's connections, so that the next ones are new. Driver; after each failure.

    A connection whose SQL commit has failed stays inside of its transaction (SQLAlchemy's pool
    does not roll it back): it shows what nobody else sees, and holds SQLite's lock.
    """
    catalog = _CATALOGS.pop(_key(options), None)
    with contextlib.suppress(Exception):  # whatever is wrong with them, they are not used again
        if catalog is not None:
            catalog.close()


def _key(options: IcebergOptions) -> _Key:
    properties = tuple(sorted(options.catalog_properties().items()))
    return os.getpid(), options.catalog_name, properties


def _find_embedded(file: Path, *, create: bool) -> None:
    if create:
        file.parent.mkdir(parents=True, exist_ok=True)
    elif not file.is_file():
        raise OptionError(
            f"{FORMAT}: there is no catalog {file}: 'warehouse' must be the folder that tables "
            "were written with, or give 'catalog.*' for another catalog"
        )


def _opened(name: str, properties: dict[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except Exception as error:
        if type(error).__name__ != "OperationalError":
            raise
        # Two processes make the tables of a new SQL catalog, and one of them comes second.
        return load_catalog(name, **properties)


def open_table(options: IcebergOptions) -> Table:
    """The table as it is now. Driver.

    Raises:
        OptionError: If there is none (one that is named nearly so is shown), or as `open_catalog`.
        CatalogFailedError: If the catalog cannot be reached, or the table's metadata not be read.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    catalog = open_catalog(options)
    with catalog_errors(options, f"load table {options.table_name}"):
        try:
            return catalog.load_table(options.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise OptionError(_not_there(options, catalog)) from None


def _not_there(options: IcebergOptions, catalog: Catalog) -> str:
    text = f"{FORMAT}: there is no table {options.table_name} in catalog {options.catalog_name!r}"
    known: list[str] = []
    with contextlib.suppress(Exception):  # a hint only
        known = [".".join(name) for name in catalog.list_tables(options.identifier[:-1])]
    near = difflib.get_close_matches(options.table_name, known, n=1)
    return f"{text}; did you mean {near[0]!r}?" if near else text


def worker_io(table: Table) -> FileIO:
    """A `FileIO` for the files of a table that knows no secret of the catalog; it pickles.

    It has the settings of the object store only, credentials that the catalog handed out with the
    table (``loadTable``) included.
    """
    from pyiceberg.io import load_file_io

    given: Mapping[str, Any] = table.io.properties
    needed = {key: text for key, text in given.items() if key.startswith(_STORES)}
    return load_file_io(needed, table.metadata_location)
