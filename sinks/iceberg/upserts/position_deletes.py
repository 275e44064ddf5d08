"""Files that delete rows of data files by their positions (Iceberg spec, "Position Delete Files").

PyIceberg reads such files and writes none. A file has the deleted rows of one partition, with the
partition and the partition spec of the data files: readers apply it to no others.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from krishiv_spark.arrow.compute import sort_distinct
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.iceberg.task_table import TaskTableSpec, file_name_prefix

__all__ = ["DeletedRows", "Positions", "choose_to_merge", "write_position_deletes"]

Positions: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Positions of rows in a data file, from 0, ascending."""

_PATH, _POSITION = 2147483546, 2147483545
"""Iceberg spec, "Reserved Field IDs"; other engines find the columns by them."""

_NAMES = pa.dictionary(pa.int32(), pa.string())
_FANOUT = 8
"""Delete files of one size that are merged."""

_ID = "PARQUET:field_id"
_SCHEMA = pa.schema(
    [
        pa.field("file_path", _NAMES, nullable=False, metadata={_ID: str(_PATH)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={_ID: str(_POSITION)}),
    ]
)


class DeletedRows:
    """The deleted rows of the data files of one partition.

    Args:
        file: A data file of the partition.
    """

    def __init__(self, file: DataFile) -> None:
        self.spec_id = file.spec_id
        self.partition = file.partition
        self._positions: dict[str, Positions] = {}

    @staticmethod
    def group_of(file: DataFile) -> tuple[int, Record]:
        """Return a key that data files have in common whose deletes may be in one file."""
        return file.spec_id, file.partition

    def add(self, path: str, positions: Positions) -> None:
        """Add deleted rows of one data file."""
        known = self._positions.get(path)
        self._positions[path] = (
            positions if known is None else sort_distinct(np.concatenate([known, positions]))
        )

    def __len__(self) -> int:
        return sum(map(len, self._positions.values()))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DeletedRows)
            and self.spec_id == other.spec_id
            and self.partition == other.partition
            and len(self.files) == len(other.files)
            and all(map(_are_equal, self.files, other.files))
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def files(self) -> Sequence[tuple[str, Positions]]:
        """The data files by path, ascending, each with the positions of its deleted rows."""
        return sorted(self._positions.items(), key=lambda pair: pair[0].encode())

    def to_table(self) -> pa.Table:
        """Return the rows of the delete file: sorted by path, then by position, as Iceberg asks."""
        paths = pa.array([path for path, _ in self.files])
        counts = [len(rows) for _, rows in self.files]
        indices = pa.array(np.repeat(np.arange(len(counts), dtype=np.int32), counts))
        positions = pa.array(np.concatenate([rows for _, rows in self.files]))
        # As a dictionary: the paths of ten million rows would exceed the 2 GB of an array.
        named = pa.DictionaryArray.from_arrays(indices, paths)
        return pa.table([named, positions], schema=_SCHEMA)


def _are_equal(one: tuple[str, Positions], other: tuple[str, Positions]) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1])


def choose_to_merge(rows: int, files: Sequence[DataFile]) -> Sequence[DataFile]:
    """Return the delete files whose rows a new delete file of their partition contains too.

    Without it, a data file would get one more delete file with each epoch. Eight files of similar
    size become one, so that the entry of a deleted row is written once for each power of eight.

    Args:
        rows: Number of rows of the new file.
        files: Delete files of the table in the partition, in Parquet.
    """
    tiers: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        tiers[_level_of(file.record_count)].append(file)
    chosen: list[DataFile] = []
    for level in sorted(tiers):
        if level <= _level_of(rows) and len(tiers[level]) >= _FANOUT - 1:
            chosen += tiers[level]
            rows += sum(file.record_count for file in tiers[level])
    return chosen


def _level_of(rows: int) -> int:
    """Return how often a delete file of this size has been merged, about."""
    return (max(rows, 1).bit_length() - 1) // (_FANOUT.bit_length() - 1)


def write_position_deletes(target: TaskTableSpec, rows: DeletedRows, task: Task) -> DataFile:
    """Write a file of deleted rows; no file remains if that fails.

    Args:
        target: The table.
        rows: The deleted rows; at least one.
        task: The attempt whose nonce makes the file's name unique.
    """
    table = rows.to_table()
    name = f"{file_name_prefix(target, task)}-00000-deletes.parquet"
    path = target.locations.new_data_location(name)
    output = target.io.new_output(path)
    try:
        with output.create() as stream:
            few_values: Any = ["file_path"]  # type checkers know no names here
            # Without Arrow's own schema, which would name a dictionary instead of a string.
            pq.write_table(
                table, stream, compression="zstd", use_dictionary=few_values, store_schema=False
            )
        size = len(output)
    except BaseException:
        with contextlib.suppress(Exception):  # best effort: vacuum finds it
            target.io.delete(path)
        raise
    return _describe_file(path, size, table, rows)


def _describe_file(path: str, size: int, table: pa.Table, rows: DeletedRows) -> DataFile:
    """Return the entry of a delete file for manifests.

    Readers skip the file for a data file whose path is not within its bounds.
    """
    paths = [name.encode() for name, _ in rows.files]
    positions = table["pos"].to_numpy()
    ends = [int(end).to_bytes(8, "little") for end in (positions.min(), positions.max())]
    counts = dict.fromkeys((_PATH, _POSITION), table.num_rows)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=rows.partition,
        record_count=table.num_rows,
        file_size_in_bytes=size,
        value_counts=counts,
        null_value_counts=dict.fromkeys(counts, 0),
        lower_bounds={_PATH: paths[0], _POSITION: ends[0]},
        upper_bounds={_PATH: paths[-1], _POSITION: ends[1]},
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = rows.spec_id
    return file
