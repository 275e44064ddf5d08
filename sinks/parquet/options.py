"""Options of the sink."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from krishiv_spark.options import ByteSize, Names
from krishiv_spark.sinks.options import CheckpointOptions
from krishiv_spark.sinks.parquet.staging import FileLayout

__all__ = ["ParquetSinkOptions"]


class ParquetSinkOptions(CheckpointOptions):
    """Options of the sink."""

    path: str = Field(
        validation_alias=AliasChoices("path", "parquet.path"),
        description="Folder of the table on a file system that every worker shares, in a bucket "
        "or on HDFS.",
    )
    partition_by: Names = Field(
        default=(), description="Columns that become folders, separated by commas."
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
    epoch_log: str | None = Field(
        default=None,
        description="Another location for the epoch log: a path or URL; [storage.md](storage.md).",
    )

    @property
    def epoch_logs(self) -> tuple[str, ...]:
        """Locations of logs that are read even if a pointer names another store."""
        return () if self.epoch_log is None else (self.epoch_log,)

    def file_layout(self) -> FileLayout:
        """Return the layout of files."""
        plain = self.compression in {"none", "uncompressed"}
        codec = "none" if plain else self.compression
        return FileLayout(
            self.partition_by, codec, self.max_records_per_file, self.target_file_size
        )
