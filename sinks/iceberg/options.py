"""The options of ``krishiv-iceberg`` as a sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions
from krishiv_spark.options import ByteSize, Duration
from krishiv_spark.options.topic_names import name_by_topic
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sinks.change_options import KeyedChangeOptions
from krishiv_spark.sinks.numbered import JobNumber
from krishiv_spark.sinks.options import PROPERTY_PREFIX, CheckpointOptions, TableProperties

__all__ = ["IcebergSinkOptions"]

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.02, 2.0


def _parse_count_or_all(given: object) -> object:
    if not isinstance(given, str):
        return given
    text = given.strip().lower()
    if text == "all":
        return text
    if not text.isdigit() or not int(text):
        raise ValueError("write a number from 1 on, or 'all'")
    return int(text)


KeepCount = Annotated[int | Literal["all"], BeforeValidator(_parse_count_or_all)]
"""A number of items to keep, or ``all``."""


def _parse_snapshot_or_none(given: object) -> object:
    text = given.strip().lower() if isinstance(given, str) else given
    if text == "none" or not isinstance(text, str):
        return text
    if not text.isdigit():
        raise ValueError("write the id of a snapshot, or 'none'")
    return int(text)


ExpectedSnapshot = Annotated[int | Literal["none"], BeforeValidator(_parse_snapshot_or_none)]
"""The id of the snapshot that must be the newest, or ``none``."""


class IcebergSinkOptions(IcebergOptions, CheckpointOptions, KeyedChangeOptions):
    """Options of the Iceberg sink."""

    may_name_by_topic: ClassVar[bool] = True
    modes_of_changes: ClassVar[str] = "'upsert' or 'scd2'"

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **IcebergOptions.collects_prefixes,
        **CheckpointOptions.collects_prefixes,
        **KeyedChangeOptions.collects_prefixes,
        "table_properties": (PROPERTY_PREFIX,),
    }

    mode: Literal["append", "upsert", "scd2"] = Field(
        default="append",
        description="Append the rows (`append`), replace rows with the same key (`upsert`), or "
        "keep all versions of a row (`scd2`, see [history](history.md)).",
    )
    order_scope: Literal["epoch", "table"] = Field(
        default="epoch",
        description="With `upsert` and `orderColumn`: `table` also compares with the row in the "
        "table, so that an older row of a later epoch changes nothing.",
    )
    time_column: str | None = Field(
        default=None,
        description="With `scd2` and without `changeFormat`: TIMESTAMP or DATE of each change. "
        "Default: `orderColumn`.",
    )
    late_rows: Literal["insert", "ignore", "fail"] = Field(
        default="insert",
        description="With `scd2` and without `changeFormat`: action for a row older than a "
        "version of its key: `insert` a version into the past, `ignore` it, or `fail`.",
    )
    unclear_events: Literal["fail", "apply", "ignore"] = Field(
        default="fail",
        description="With `scd2` and `changeFormat`: action for an event that is neither newer "
        "than the newest version of its row nor known by its position, as after a move to a server "
        "whose clock is behind: `fail`, `apply` it as the newest change, or `ignore` it. See "
        "[another server](history.md#another-server).",
    )
    valid_from_column: str = Field(
        default="valid_from",
        min_length=1,
        description="With `scd2`: name of the column with the start of a version, inclusive.",
    )
    valid_to_column: str = Field(
        default="valid_to",
        min_length=1,
        description="With `scd2`: name of the column with the end of a version, exclusive; null "
        "for the current one.",
    )
    current_column: str = Field(
        default="is_current",
        min_length=1,
        description="With `scd2`: name of the column that is true for the current version.",
    )
    position_column: str = Field(
        default="change_position",
        min_length=1,
        description="With `scd2` and `changeFormat`: name of the column with the position of "
        "the change in the log of the database.",
    )
    upsert_mode: Literal["merge-on-read", "copy-on-write"] | None = Field(
        default=None,
        description="Way in which old rows are replaced: by position deletes (`merge-on-read`), "
        "or new files (`copy-on-write`). Default: the table's property `write.merge.mode`.",
    )
    allow_mixed_keys: bool = Field(
        default=False,
        description="Allow upserts by another key than the table's, and appends to a table of "
        "upserts. A key may then have several rows.",
    )
    txn_app_id: str | None = Field(  # any text, since it becomes part of no path
        default=None,
        min_length=1,
        description="Writer of batches that may be repeated, as in `foreachBatch`. A batch is "
        "skipped if the table has this or a higher `txnVersion` of it.",
    )
    txn_rows: str | None = Field(
        default=None,
        pattern="^[0-9]+:[0-9a-f]{16}$",
        description="Count and checksum of the input, as `12:00f3a9d1c27b6e54`, for rows that "
        "are computed from the table. `txnCompare` compares it instead of the rows.",
    )
    if_snapshot: ExpectedSnapshot | None = Field(
        default=None,
        description="Batch: write only if this is the newest snapshot (`none`: if there is "
        "none). Otherwise the batch fails with `CommitRejected`.",
    )
    create_table: Literal["ifMissing", "never"] = Field(
        default="ifMissing",
        description="Action for a missing table: create it with the columns of the rows "
        "(`ifMissing`), or fail (`never`).",
    )
    partition_by: str = Field(
        default="",
        description="Partitions of a table that is created: `days(ts), bucket(16, id), "
        "truncate(4, name), region`. An existing table must have the same.",
    )
    sort_by: str = Field(
        default="",
        description="Sort order of a table that is created: `ts desc, id`. An existing table must "
        "have the same.",
    )
    location: str | None = Field(
        default=None,
        min_length=1,
        description="Location of a table that is created. An existing table must be there.",
    )
    copied_warehouse: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Action for a warehouse that was copied or moved with its SQLite catalog: "
        "`refuse` it, or `allow` writes to the original folder.",
    )
    table_properties: TableProperties = Field(
        default={},
        validation_alias="tableProperty.*",
        description="Properties of a table that is created: "
        "`tableProperty.write.parquet.compression-codec`. An existing table keeps its own, with "
        "a warning.",
    )
    target_file_size: ByteSize | None = Field(
        default=None,
        gt=0,
        description="Size at which a file is closed, as `512m`. Default: the table's "
        "`write.target-file-size-bytes`.",
    )
    merge_manifests: bool = Field(
        default=True,
        description="Merge small manifests during a commit, by the table's `commit.manifest.*`.",
    )
    compact: Literal["off", "auto"] = Field(
        default="off",
        description="`auto`: rewrite small files, and files with many deleted rows, after every "
        "fourth epoch ([compaction](iceberg-maintenance.md#compaction)).",
    )
    max_compact_size: ByteSize = Field(
        default=256 * 2**20,
        gt=0,
        description="Maximum size that `compact` = `auto` rewrites at once, as `1g`. Larger "
        "files remain for `krishiv-spark iceberg compact`.",
    )
    keep_snapshots: KeepCount | None = Field(
        default=None,
        description="Number of newest snapshots to keep, or `all`; each commit expires the "
        "others. By default, the [table's "
        "properties](iceberg-maintenance.md#months-of-operation) decide.",
    )
    expire_older_than: Duration | None = Field(
        default=None,
        ge=0,
        description="Expire only snapshots older than this, such as `7d`. Without "
        "`keepSnapshots`, the newest one is kept.",
    )
    keep_metadata_files: KeepCount | None = Field(
        default=None,
        description="Number of older metadata files to keep, or `all`: the table's "
        "`write.metadata.previous-versions-max`.",
    )
    commit_timeout: Duration = Field(
        default=60_000,
        gt=0,
        description="Maximum time for retrying a commit.",
    )

    @property
    def job(self) -> JobNumber | None:
        """The number of the batch job, if it has one."""
        found = super().job
        return found and replace(found, rows=self.txn_rows)

    def target_text(self) -> str:
        """See `NumberedJobOptions`."""
        uri = self.catalog.values.get("uri", "").partition("?")[0].rpartition("@")[2]
        return f"{self.warehouse_text or self.catalog_name} {uri} {self.table_name}"

    def of_topic(self, topic: str, keys: tuple[str, ...] = (), *, must_exist: bool = False) -> Self:
        """Return the options of a topic's table, if `table` is an expression over the topic.

        Args:
            topic: Name of the topic.
            keys: Key columns, if its records name them.
            must_exist: True for a table that must not be created.

        Raises:
            OptionError: If the topic has no table.
        """
        try:
            name = name_by_topic(self.table_name, topic)
        except ValueError as error:
            raise OptionError(f"{FORMAT}: {error}") from None
        path = self.path if self.path and "/" in self.path else None
        change: dict[str, object] = {"table": name, "path": path}
        if keys:
            change["key_columns"] = keys
        if must_exist:
            change["create_table"] = "never"
        return self.model_copy(update=change)

    def commit_backoff(self) -> Backoff:
        """Return the pauses between attempts at one commit, within `commit_timeout`."""
        return Backoff(self.commit_timeout / 1000, _MIN_PAUSE_S, _MAX_PAUSE_S)

    @property
    def expires_snapshots(self) -> bool:
        """True if an option of the user expires snapshots; the table's properties do not count."""
        return self.keep_snapshots is not None or self.expire_older_than is not None

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.mode == "scd2" and self.truncate_events == "apply":
            raise ValueError(
                "'truncateEvents' = 'apply' requires 'mode' = 'upsert': write 'fail' or 'ignore'"
            )
        if self.order_scope == "table" and (self.mode != "upsert" or not self.order_column):
            raise ValueError("'orderScope' = 'table' requires 'mode' = 'upsert' and 'orderColumn'")
        self._check_history()
        self._check_by_topic()
        if self.txn_rows is not None and self.txn_app_id is None:
            raise ValueError("'txnRows' requires 'txnAppId' and 'txnVersion'")
        if self.keep_snapshots == "all" and self.expire_older_than is not None:
            raise ValueError("'keepSnapshots' = 'all' contradicts 'expireOlderThan'")
        return self

    def _check_by_topic(self) -> None:
        """Refuse options that contradict a table by topic.

        Raises:
            ValueError: If there is such an option.
        """
        if not self.is_by_topic:
            return
        for name, option, reason in (
            ("location", "location", "all tables would have one location"),
            ("if_snapshot", "ifSnapshot", "it names the snapshot of one table"),
            ("txn_app_id", "txnAppId", "numbered batches have no epoch log in a checkpoint"),
            ("query_id", "queryId", "the epoch log of the tables is in the checkpoint"),
        ):
            if getattr(self, name) is not None:
                raise ValueError(f"{option!r} contradicts 'table' = {self.table_name!r}: {reason}")

    def _check_history(self) -> None:
        """Refuse options that contradict `mode` = `scd2`, or need it.

        Raises:
            ValueError: If there is such an option.
        """
        if self.mode != "scd2":
            columns = ("time", "valid_from", "valid_to", "current", "position")
            for name in ("late_rows", "unclear_events", *(f"{one}_column" for one in columns)):
                if name in self.model_fields_set:
                    first, *rest = name.split("_")
                    option = first + "".join(map(str.title, rest))
                    raise ValueError(f"{option!r} requires 'mode' = 'scd2'")
            return
        if self.upsert_mode == "copy-on-write":
            raise ValueError("'mode' = 'scd2' contradicts 'upsertMode' = 'copy-on-write'")
        if self.change_format is not None and (
            self.time_column or "late_rows" in self.model_fields_set
        ):
            raise ValueError(
                "'timeColumn' and 'lateRows' contradict 'changeFormat', whose events have their "
                "time and their position"
            )
        if self.change_format is None and "unclear_events" in self.model_fields_set:
            raise ValueError("'unclearEvents' requires 'changeFormat'")
