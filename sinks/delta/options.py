"""The options of ``krishiv-delta`` as a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from krishiv_spark.delta.options import DeltaOptions
from krishiv_spark.options import ByteSize, DistinctNames, Duration
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sinks.options import PROPERTY_PREFIX, CheckpointOptions, TableProperties

__all__ = ["DeltaSinkOptions"]

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.01, 2.0


_UPSERTS = (
    "deltalake merges rows in one process, outside of the commit that checks the mark. Use "
    "foreachBatch with delta-spark's MERGE, and 'txnAppId' and 'txnVersion', or krishiv-iceberg"
)
_REPLACED = (
    "an epoch or a batch replaces all rows or none: use delta-spark for it in foreachBatch, with "
    "'txnAppId' and 'txnVersion'"
)
_MAINTENANCE = "run delta-spark's OPTIMIZE, or deltalake's, beside the query"


class DeltaSinkOptions(DeltaOptions, CheckpointOptions):
    """Options of the sink."""

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **CheckpointOptions.collects_prefixes,
        "table_properties": (PROPERTY_PREFIX,),
    }

    foreign: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("keycolumns", "opcolumn", "ordercolumn", "orderscope", "upsertmode"),
            f"upserts are not supported: {_UPSERTS}",
        ),
        **dict.fromkeys(
            ("changeformat", "truncateevents", "missingvalues", "tableschema"),
            f"change data is not applied: {_UPSERTS}",
        ),
        "mergeschema": "set 'schemaEvolution' = 'add'",
        "overwriteschema": "other columns need a new table, or ALTER TABLE in delta-spark",
        "replacewhere": _REPLACED,
        "partitionoverwritemode": _REPLACED,
        "dynamicpartitionoverwrite": _REPLACED,
        "optimizewrite": "set 'targetFileSize', and repartition the rows by the partition columns",
        "autocompact": _MAINTENANCE,
        "compact": _MAINTENANCE,
        "epochlog": "the table has the epochs itself; leave the option out",
        "datachange": "each row counts as new: use delta-spark to rewrite rows",
        "clusterby": "create the table with delta-spark, which also clusters it (OPTIMIZE)",
    }

    mode: Literal["append"] = Field(
        default="append",
        description="Rows are appended; for upserts, see [delta.md](delta.md#limits).",
    )
    partition_by: DistinctNames = Field(
        default=(),
        description="Partition columns of a table that is created, separated by commas. An "
        "existing table must have the same.",
    )
    create_table: Literal["ifMissing", "never"] = Field(
        default="ifMissing",
        description="Action for a missing table: create it with the columns of the rows "
        "(`ifMissing`), or fail (`never`).",
    )
    table_properties: TableProperties = Field(
        default={},
        validation_alias="tableProperty.*",
        description="Properties of a table that is created: "
        "`tableProperty.delta.logRetentionDuration`. An existing table keeps its own.",
    )
    schema_evolution: Literal["none", "add"] = Field(
        default="none",
        description="Action for columns that the table does not have: fail, or `add` them.",
    )
    compression: Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none", "uncompressed"] = Field(
        default="snappy", description="Compression codec of the files."
    )
    max_records_per_file: int | None = Field(
        default=None, gt=0, description="Maximum number of rows in a file."
    )
    target_file_size: ByteSize | None = Field(
        default=None, gt=0, description="Size at which a file is closed, as `512m`."
    )
    txn_app_id: str | None = Field(  # any text, since it becomes part of no path
        default=None,
        min_length=1,
        description="Writer of batches that may be repeated, as in `foreachBatch`: delta-spark's "
        "own option. A batch is skipped if the table has this or a higher `txnVersion` of it, "
        "whichever of the two connectors has written that.",
    )
    user_metadata: str | None = Field(
        default=None,
        description="Text that each commit records, as delta-spark's option of this name.",
    )
    commit_timeout: Duration = Field(
        default=60_000,
        gt=0,
        description="Maximum time for retrying a commit that meets faster writers, or a store "
        "that does not respond.",
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _refuse_upserts(cls, given: object) -> object:
        if str(given).lower() in {"upsert", "merge", "update"}:
            raise ValueError(f"upserts are not supported: {_UPSERTS}")
        if str(given).lower() == "scd2":
            raise ValueError("histories are not supported: use krishiv-iceberg")
        if str(given).lower() in {"overwrite", "complete"}:
            raise ValueError("write df.write.mode('overwrite'), or outputMode('complete')")
        return given

    def commit_backoff(self) -> Backoff:
        """Return the pauses between attempts at one commit, within `commit_timeout`."""
        return Backoff(self.commit_timeout / 1000, _MIN_PAUSE_S, _MAX_PAUSE_S)
