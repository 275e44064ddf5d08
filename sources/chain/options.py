"""Options of ``krishiv-chain``: those of its two sources, and those of the chain."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import AliasChoices, BeforeValidator, Field, InstanceOf, model_validator
from typing_extensions import Self

from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.offsets import Offset
from krishiv_spark.options import Names
from krishiv_spark.runtime.lazy import find_format
from krishiv_spark.sources.base import UNLIMITED, Limit, SourceOptions, StreamReader
from krishiv_spark.sources.handover import SupportsBackfillSource, SupportsBackfillTarget

__all__ = ["FORMAT", "ChainOptions", "Place", "offset_of", "reader_of"]


def reader_of(format_name: str) -> type[StreamReader[Any, Any]]:
    """Return the source of a format that can be a part."""
    found: type[StreamReader[Any, Any]] = find_format(format_name).reader_type
    return found


def offset_of(kind: object) -> type[Offset]:
    """Return the class of a part's offsets, by the ``kind`` in their JSON.

    Raises:
        OffsetError: If no format has a source with such offsets.
    """
    source = find_format(f"krishiv-{kind}")
    reader = None if source is None else source.reader_type
    if reader is None or not issubclass(reader, SupportsBackfillSource | SupportsBackfillTarget):
        raise OffsetError(f"an offset of krishiv-chain of kind {kind!r}: there is no such kind")
    found: type[Offset] = cast("Any", reader).offset_type  # a protocol has no class attributes
    return found


FORMAT = "krishiv-chain"

Place = Literal["first", "then"]
"""The index of one of the two sources."""

_PREFIXES: dict[Place, str] = {"first": "first.", "then": "then."}
_FOR_BOTH = {
    "columns": "columns",
    "eventtime": "eventTime",
    "laterows": "lateRows",
    "maxeventtimeahead": "maxEventTimeAhead",
    "snapshot-id": "snapshot",
    "snapshotid": "snapshot",
    "watermarkdelay": "watermarkDelay",
}
"""Options of parts, in lower case, and the options of the chain that replace them."""


def _without_prefix(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    return {key.partition(".")[2]: text for key, text in given.items()}


_Given = Annotated[Mapping[str, InstanceOf[str]], BeforeValidator(_without_prefix)]


class ChainOptions(SourceOptions):
    """Options of the source.

    Attributes:
        first_given: Options of the first source, without their prefix.
        then_given: Options of the second source, without their prefix.
    """

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "first_given": ("first.",),
        "then_given": ("then.",),
    }
    unsupported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("max_files_per_trigger", "max_bytes_per_trigger"),
        "only the table has files: use 'first.maxFilesPerTrigger' or 'first.maxBytesPerTrigger'",
    )

    first_format: Literal["krishiv-iceberg"] = Field(
        default="krishiv-iceberg",
        validation_alias="first",
        description="Format that is read first, to its end.",
    )
    first_given: _Given = Field(
        default={},
        repr=False,
        validation_alias="first.<option>",
        description="Options of that format, such as `first.table` and `first.warehouse`.",
    )
    then_format: Literal["krishiv-kafka"] = Field(
        default="krishiv-kafka",
        validation_alias="then",
        description="Format that is read afterwards, without end.",
    )
    then_given: _Given = Field(
        default={},
        repr=False,
        validation_alias="then.<option>",
        description="Options of that format, such as `then.kafka.bootstrap.servers` and "
        "`then.subscribe`.",
    )
    path: str | None = Field(default=None, description="Table, as given to `load()`: `first.path`.")
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. Default: those of the table.",
    )
    max_rows_per_trigger: int | None = Field(
        default=None,
        gt=0,
        description="Maximum number of rows in a batch (offsets, for topics), for each part "
        "without a limit of its own.",
    )
    landed_by: str | None = Field(
        default=None,
        min_length=1,
        description="Landing query: its id, or its checkpoint. Needed if the table [does not "
        "show where its rows end](backfill.md#the-seam).",
    )
    snapshot: int | None = Field(
        default=None,
        validation_alias=AliasChoices("snapshot", "snapshotId"),
        description="Snapshot of the table whose rows end at `then.startingOffsets`, if the "
        "table does not record where its rows end.",
    )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        for place, given in (("first", self.first_given), ("then", self.then_given)):
            for key in given:
                if (instead := _FOR_BOTH.get(key.lower())) is not None:
                    raise ValueError(f"option '{place}.{key}': set {instead!r} instead, for both")
        if self.snapshot is not None and self.landed_by is not None:
            raise ValueError("options 'snapshot' and 'landedBy' exclude each other")
        self.part("first")
        self.part("then")
        return self

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the secret keys; each source determines its own. See `Options`."""
        found = super().secret_keys(given)
        for place, prefix in _PREFIXES.items():
            own = {k[len(prefix) :]: k for k in given if k.lower().startswith(prefix)}
            options = {name: given[key] for name, key in own.items()}
            model = reader_of(cls.model_fields[f"{place}_format"].default).options_type
            with contextlib.suppress(OptionError):
                found |= {own[name] for name in model.secret_keys(options)}
        return found

    def secrets(self) -> set[str]:
        """Return the secrets, including those of the two sources. See `Options`."""
        parts = (("first.", self.first_given), ("then.", self.then_given))
        given = {f"{prefix}{key}": text for prefix, own in parts for key, text in own.items()}
        return super().secrets() | {given[key] for key in self.secret_keys(given)} - {""}

    def format_of(self, place: Place) -> str:
        """Return the format of a source."""
        return self.first_format if place == "first" else self.then_format

    def part(self, place: Place) -> SourceOptions:
        """Return the options of a source.

        Raises:
            OptionError: If they are invalid.
        """
        name = self.format_of(place)
        given = self._of_first() if place == "first" else self._of_then()
        return reader_of(name).options_type.parse(given, f"'{place}.', {name}")

    def _of_first(self) -> dict[str, str]:
        own = {} if self.path is None else {"path": self.path}
        columns = {"columns": ",".join(self.columns)} if self.columns else {}
        return {**own, **self.first_given, **columns}

    def _of_then(self) -> dict[str, str]:
        # Only the topics have event times: the rows of a table have times in any order.
        if self.event_time is None:
            return {**self.then_given}
        timed = {
            "eventTime": self.event_time,
            "watermarkDelay": f"{self.watermark_delay} ms",
            "maxEventTimeAhead": f"{self.max_event_time_ahead} ms",
        }
        return {**self.then_given, **timed}

    def limit(self) -> Limit:
        """Return the limit of any source, so that Spark passes one back; `limit_of` decides."""
        own = super().limit(), self.part("first").limit(), self.part("then").limit()
        return next((limit for limit in own if limit != UNLIMITED), UNLIMITED)

    def limit_of(self, place: Place) -> Limit:
        """Return the limit of a batch of one source."""
        own = self.part(place).limit()
        return super().limit() if own == UNLIMITED else own
