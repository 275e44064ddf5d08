"""Which table, in which catalog, as users write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import parse_qsl, quote, unquote

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.redaction import excerpt, redact
from krishiv_spark.options import ByteSize
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.paths import local_path
from krishiv_spark.storage.storage import StorageOptions

__all__ = ["FORMAT", "MAX_METADATA_BYTES", "REGISTER", "CatalogSettings", "IcebergOptions"]

FORMAT = "krishiv-iceberg"
"""How users know the connector; messages begin with it."""

MAX_METADATA_BYTES = 256 * 2**20
"""Default of `maxMetadataBytes`."""

REGISTER = (
    "Give 'catalog.*' of the catalog that has it. If it is in none, add it to one with PyIceberg's "
    'register_table; docs/iceberg.md, "A table that is in no catalog", has the lines'
)
"""Advice for tables that are named by their files."""

_CATALOG = "catalog."
_DEFAULT_NAMESPACE = "default"
_DEFAULT_TABLE = "table"
_EMBEDDED_FILE = "catalog.db"
_WAREHOUSE = f"{FORMAT}: 'warehouse'"
_FILE_IO = "krishiv_spark.iceberg.file_io.StoreFileIO"
_SECRET = re.compile(r"secret|token|passw|credential|key|sas|auth|header|signature|connection-str")
_PLACE = re.compile(r"(uri|url|endpoint)$")
_METADATA_FILE = re.compile(r"/[^/]*\.metadata\.json(\.gz)?$")
_RESERVED = re.compile(r"[@/?#]")


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
        plain = {key.lower().removeprefix(_CATALOG): text for key, text in given.items()}
        return cls(tuple(sorted(plain.items())))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.pairs)

    @property
    def values(self) -> dict[str, str]:
        """By name in PyIceberg; some are secret."""
        return dict(self.pairs)

    def secrets(self) -> set[str]:
        """The secrets among the values, and their parts that clients show alone."""
        found: set[str] = set()
        for key, value in self.pairs:
            if _PLACE.search(key):
                found |= _secrets_in(value)
            elif _SECRET.search(key):
                # PyIceberg's `credential` is ``client:secret``, and errors may show the latter
                # alone.
                found |= {value, value.partition(":")[2]}
        return {secret for secret in found if secret}


def _secrets_in(uri: str) -> set[str]:
    """Passwords in a URI, also one that should have been percent-encoded and was not.

    Clients take such a URI apart in ways of their own, and show the pieces.
    """
    password = uri.partition("//")[2].rpartition("@")[0].partition(":")[2]
    given = parse_qsl(uri.partition("?")[2])
    named = (text for name, text in given if _SECRET.search(name.lower()))
    pieces = {password, *_RESERVED.split(password), *named}
    return {form for piece in pieces for form in (piece, unquote(piece), quote(piece, safe=""))}


def _settings(given: object) -> object:
    return CatalogSettings.of(given) if isinstance(given, Mapping) else given


class IcebergOptions(StorageOptions):
    """What source and sink have in common: the catalog and the table."""

    gathers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **StorageOptions.gathers,
        "catalog": (_CATALOG,),
    }

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """See `Options`."""
        of_catalog = {key: text for key, text in given.items() if key.lower().startswith(_CATALOG)}
        hiding = {k for k, text in of_catalog.items() if CatalogSettings.of({k: text}).secrets()}
        return super().secret_keys(given) | hiding

    path: str | None = Field(
        default=None,
        validation_alias=AliasChoices("path", "iceberg.path"),
        description="Table, as given to `load()`, `start()` or `save()`: `orders`, `db.orders`. A "
        "value with a `/` is the warehouse instead, and `table` names the table.",
    )
    table: str | None = Field(
        default=None,
        validation_alias=AliasChoices("table", "iceberg.table"),
        description="Table, as `name` or `namespace.name`. The default namespace is `default`.",
    )
    warehouse: str | None = Field(
        default=None,
        validation_alias=AliasChoices("warehouse", "iceberg.warehouse"),
        description="Location of the tables: a folder that every worker shares, or the catalog's "
        "name for it. Without `catalog.*`, the catalog is a file `catalog.db` (SQLite) in this "
        "folder.",
    )
    catalog_name: str = Field(
        default="krishiv",
        min_length=1,
        description="Name of the catalog. SQL catalogs keep the tables of each name separate.",
    )
    catalog: Annotated[CatalogSettings, BeforeValidator(_settings)] = Field(
        default=CatalogSettings(),
        validation_alias="catalog.*",
        description="PyIceberg settings for the catalog and the object store: `catalog.type`, "
        "`catalog.uri`, `catalog.token`, `catalog.s3.endpoint`, and so on.",
    )
    max_metadata_bytes: ByteSize = Field(
        default=MAX_METADATA_BYTES,
        gt=0,
        validation_alias=AliasChoices("maxMetadataBytes", "max_metadata_bytes"),
        description="Largest metadata file that is read from a SQL catalog or Glue, after "
        "decompression. A larger one is an error. The metadata file of a table with 10 000 "
        "snapshots has about 10 MB.",
    )
    data_files_within: Literal["table", "warehouse", "any"] | None = Field(
        default=None,
        validation_alias=AliasChoices("dataFilesWithin", "data_files_within"),
        description="Allowed location of a table's files: below the table's location (`table`), "
        "there or below the warehouse (`warehouse`), or anywhere (`any`). By default, reads "
        "accept any file except a file on a disk for a table that is not on a disk, and a file on "
        "a host that neither the warehouse nor the catalog names; writes go below the table's "
        "location or the warehouse.",
    )

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        if self._path_is_warehouse and self.warehouse not in {None, self.path}:
            raise ValueError("'path' with a '/' is the warehouse, and 'warehouse' is another one")
        if self.path and _METADATA_FILE.search(self.path):
            raise ValueError(
                f"{self.path!r} is the metadata file of a table, and tables are found by their "
                f"catalog. {REGISTER}"
            )
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
            raise ValueError(f"{named!r} is not a table name: write 'name' or 'namespace.name'")
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
        place = self.warehouse_text or ""
        if StoreUrl.kind_of(place) not in {"disk", None}:
            raise OptionError(
                f"{_WAREHOUSE} {place!r} cannot contain the embedded catalog, which is a file "
                "on a disk: set 'catalog.uri' of a database, such as "
                "'postgresql+psycopg2://...', of a REST catalog, or 'catalog.type' = 'glue'"
            )
        folder = local_path(place, _WAREHOUSE)
        if set("?#") & set(str(folder)):
            raise OptionError(f"{_WAREHOUSE} {str(folder)!r} must not contain '?' or '#'")
        return folder / _EMBEDDED_FILE

    def redacted(self, text: str) -> str:
        """A text without the secrets of catalog and stores."""
        return redact(text, self.secrets())

    def describe_error(self, error: BaseException | None) -> str:
        """Return the class of a foreign error and as much of its text as a message repeats."""
        return f"{type(error).__name__}: {excerpt(str(error), self.secrets())}"

    def catalog_properties(self) -> dict[str, str]:
        """All that PyIceberg's ``load_catalog`` is given; some of it is secret.

        Local places are plain paths, not URLs: every reader of tables on a disk takes them.
        """
        values = {**self._file_properties(), **self.catalog.values}
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
            values["warehouse"] = str(local_path(place, _WAREHOUSE)) if local else place
        return values

    def _file_properties(self) -> dict[str, str]:
        """What `StoreFileIO` goes by, where tables may be in S3; elsewhere PyIceberg chooses."""
        given = dict(self.storage.options)
        is_there = StoreUrl.kind_of(self.warehouse_text or "") == "s3"
        if not is_there and not any(name.lower().startswith("storage.s3.") for name in given):
            return {}
        return {**given, "py-io-impl": _FILE_IO}


def _check_same(path: str, table: str) -> None:
    if path != table:
        raise ValueError(f"the table is given twice: 'path' {path!r} and 'table' {table!r}")
