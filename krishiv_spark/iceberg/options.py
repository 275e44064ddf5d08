"""Options that specify a table and its catalog."""

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
from krishiv_spark.options.topic_names import check_pattern, is_pattern
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.paths import local_path
from krishiv_spark.storage.storage import StorageOptions

__all__ = ["FORMAT", "MAX_METADATA_BYTES", "REGISTER", "CatalogSettings", "IcebergOptions"]

FORMAT = "krishiv-iceberg"
"""Name of the connector; messages start with it."""

MAX_METADATA_BYTES = 256 * 2**20
"""Default of `maxMetadataBytes`."""

REGISTER = (
    "Give 'catalog.*' of the catalog that has it. If it is in none, add it to one with PyIceberg's "
    'register_table; docs/iceberg.md, "A table that is in no catalog", has the lines'
)
"""Advice for tables that are specified by their files."""

_CATALOG = "catalog."
_DEFAULT_NAMESPACE = "default"
_DEFAULT_TABLE = "table"
_EMBEDDED_FILE = "catalog.db"
_WAREHOUSE = f"{FORMAT}: 'warehouse'"
_FILE_IO = "krishiv_spark.iceberg.file_io.StoreFileIO"
_SECRET = re.compile(r"secret|token|passw|credential|key|sas|auth|header|signature|connection-str")
_ADDRESS = re.compile(r"(uri|url|endpoint)$")
_METADATA_FILE = re.compile(r"/[^/]*\.metadata\.json(\.gz)?$")
_RESERVED = re.compile(r"[@/?#]")
_DOT = re.compile(r"\.(?![^{]*\})")
"""A dot between the levels of a table's name; those in ``${topic.last}`` are part of a level."""


@dataclass(frozen=True)
class CatalogSettings:
    """Settings of PyIceberg from the options ``catalog.*``; never shown, since some are secret.

    Attributes:
        pairs: PyIceberg's names and the values, sorted.
    """

    pairs: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> CatalogSettings:
        """Create settings from options, whose names may start with ``catalog.``."""
        plain = {key.lower().removeprefix(_CATALOG): text for key, text in given.items()}
        return cls(tuple(sorted(plain.items())))

    def __bool__(self) -> bool:
        """Return True if any setting is specified."""
        return bool(self.pairs)

    @property
    def values(self) -> dict[str, str]:
        """The values by PyIceberg's names; some are secret."""
        return dict(self.pairs)

    def secrets(self) -> set[str]:
        """Return the secrets among the values, and the parts of them that clients show alone."""
        found: set[str] = set()
        for key, value in self.pairs:
            if _ADDRESS.search(key):
                found |= _secrets_in(value)
            elif _SECRET.search(key):
                # PyIceberg's `credential` is ``client:secret``, and errors may show the latter
                # alone.
                found |= {value, value.partition(":")[2]}
        return {secret for secret in found if secret}


def _secrets_in(uri: str) -> set[str]:
    """Return the passwords in a URI, also one that is not percent-encoded as it should be.

    Clients split such a URI differently, and show the pieces.
    """
    password = uri.partition("//")[2].rpartition("@")[0].partition(":")[2]
    given = parse_qsl(uri.partition("?")[2])
    named = (text for name, text in given if _SECRET.search(name.lower()))
    pieces = {password, *_RESERVED.split(password), *named}
    return {form for piece in pieces for form in (piece, unquote(piece), quote(piece, safe=""))}


def _to_settings(given: object) -> object:
    return CatalogSettings.of(given) if isinstance(given, Mapping) else given


class IcebergOptions(StorageOptions):
    """Options of source and sink that specify the catalog and the table."""

    may_name_by_topic: ClassVar[bool] = False
    """True if the name of the table may be an expression over the name of a topic."""

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **StorageOptions.collects_prefixes,
        "catalog": (_CATALOG,),
    }

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the names of options whose values contain secrets."""
        of_catalog = {key: text for key, text in given.items() if key.lower().startswith(_CATALOG)}
        hiding = {k for k, text in of_catalog.items() if CatalogSettings.of({k: text}).secrets()}
        return super().secret_keys(given) | hiding

    path: str | None = Field(
        default=None,
        validation_alias=AliasChoices("path", "iceberg.path"),
        description="Table, as given to `load()`, `start()` or `save()`: `orders`, `db.orders`. "
        "A value with a `/` is the warehouse instead.",
    )
    table: str | None = Field(
        default=None,
        validation_alias=AliasChoices("table", "iceberg.table"),
        description="Table, as `name` or `namespace.name`. The default namespace is `default`. For "
        "streams that are written, `lake.${topic.last}` is [a table for each "
        "topic](change-data.md#several-tables-in-one-query).",
    )
    warehouse: str | None = Field(
        default=None,
        validation_alias=AliasChoices("warehouse", "iceberg.warehouse"),
        description="Location of the tables: a folder that every worker shares, or the "
        "catalog's name for it. Without `catalog.*`, the catalog is `catalog.db` (SQLite) there.",
    )
    catalog_name: str = Field(
        default="krishiv",
        min_length=1,
        description="Name of the catalog. SQL catalogs keep the tables of each name separate.",
    )
    catalog: Annotated[CatalogSettings, BeforeValidator(_to_settings)] = Field(
        default=CatalogSettings(),
        validation_alias="catalog.*",
        description="PyIceberg's settings for catalog and store: `catalog.type`, `catalog.uri`, "
        "`catalog.token`, `catalog.s3.endpoint`, and so on.",
    )
    max_metadata_bytes: ByteSize = Field(
        default=MAX_METADATA_BYTES,
        gt=0,
        description="Largest metadata file that is read, after decompression (SQL catalogs, Glue).",
    )
    data_files_within: Literal["table", "warehouse", "any"] | None = Field(
        default=None,
        description="Allowed location of a table's files: below its location (`table`), there "
        "or below the warehouse (`warehouse`, default of writes), or anywhere (`any`); see "
        "[tables that others may alter](iceberg-catalogs.md#tables-that-others-may-alter).",
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
        self._check_pattern()
        if self.is_embedded and self.warehouse_text is None:
            raise ValueError("option 'warehouse' is required, or 'catalog.*' for a catalog")
        return self

    def _check_pattern(self) -> None:
        if self.is_by_topic:
            if not self.may_name_by_topic:
                raise ValueError(
                    "'table' has '${', as a name by topic, which is for writes: give the name of "
                    "the table to read"
                )
            check_pattern(self.table_name)

    @property
    def is_by_topic(self) -> bool:
        """True if each topic has its own table, see `topic_names`."""
        return is_pattern(self.table_name)

    @property
    def _path_is_warehouse(self) -> bool:
        return self.path is not None and "/" in self.path

    @property
    def warehouse_text(self) -> str | None:
        """The warehouse, as the user wrote it."""
        return self.path if self._path_is_warehouse else self.warehouse

    @property
    def identifier(self) -> tuple[str, ...]:
        """The levels of the table's namespace, then its name.

        Raises:
            ValueError: If no table is specified, or it is not a name.
        """
        named = self.table if self._path_is_warehouse else self.table or self.path
        if named is None and not self._path_is_warehouse:
            raise ValueError("option 'table' is required, as 'name' or 'namespace.name'")
        parts = tuple(_DOT.split(named or _DEFAULT_TABLE))
        if not all(part.strip() for part in parts):
            raise ValueError(f"{named!r} is not a table name: write 'name' or 'namespace.name'")
        return parts if len(parts) > 1 else (_DEFAULT_NAMESPACE, *parts)

    @property
    def table_name(self) -> str:
        """The table's full name, for messages."""
        return ".".join(self.identifier)

    @property
    def is_embedded(self) -> bool:
        """True if the catalog is the file in the warehouse's folder."""
        return not {"type", "uri", "py-catalog-impl"} & self.catalog.values.keys()

    @property
    def embedded_file(self) -> Path:
        """The file of the embedded catalog.

        Raises:
            OptionError: If the warehouse is not on a disk, or its path contains ``?`` or ``#``.
        """
        warehouse = self.warehouse_text or ""
        if StoreUrl.kind_of(warehouse) not in {"disk", None}:
            raise OptionError(
                f"{_WAREHOUSE} {warehouse!r} cannot contain the embedded catalog, which is a file "
                "on a disk: set 'catalog.uri' of a database, such as "
                "'postgresql+psycopg2://...', of a REST catalog, or 'catalog.type' = 'glue'"
            )
        folder = local_path(warehouse, _WAREHOUSE)
        if set("?#") & set(str(folder)):
            raise OptionError(f"{_WAREHOUSE} {str(folder)!r} must not contain '?' or '#'")
        return folder / _EMBEDDED_FILE

    def redact(self, text: str) -> str:
        """Return a text without the secrets of catalog and stores."""
        return redact(text, self.secrets())

    def describe_error(self, error: BaseException | None) -> str:
        """Return the class of a foreign error and as much of its text as a message repeats."""
        return f"{type(error).__name__}: {excerpt(str(error), self.secrets())}"

    def catalog_properties(self) -> dict[str, str]:
        """Return all settings for PyIceberg's ``load_catalog``; some of them are secret.

        Local warehouses are plain paths, not URLs: every reader of tables on a disk accepts these.
        """
        values = {**self._get_file_properties(), **self.catalog.values}
        if self.is_embedded:
            file = self.embedded_file
            return {
                **values,
                "type": "sql",
                "uri": f"sqlite:///{file}",
                "warehouse": str(file.parent),
            }
        warehouse = self.warehouse_text
        if warehouse is not None:
            is_local = warehouse.startswith(("/", "file:"))
            values["warehouse"] = str(local_path(warehouse, _WAREHOUSE)) if is_local else warehouse
        return values

    def _get_file_properties(self) -> dict[str, str]:
        """Return the settings of `StoreFileIO` if tables may be in S3; else PyIceberg chooses."""
        given = dict(self.storage.options)
        is_in_s3 = StoreUrl.kind_of(self.warehouse_text or "") == "s3"
        if not is_in_s3 and not any(name.lower().startswith("storage.s3.") for name in given):
            return {}
        return {**given, "py-io-impl": _FILE_IO}


def _check_same(path: str, table: str) -> None:
    if path != table:
        raise ValueError(f"the table is given twice: 'path' {path!r} and 'table' {table!r}")
