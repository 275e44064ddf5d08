"""The content of file names."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.parquet.file_end import read_file_status
from krishiv_spark.parquet.layout import (
    DataFile,
    is_data,
    name_with_count,
    staged_name,
    visible_files,
)

OLD = "part-0000000012-00003-000-0123456789ab-ba9876543210.parquet"

numbers = st.integers(0, 10**12)
hexes = st.text("0123456789abcdef", min_size=12, max_size=12)


@given(numbers, numbers, numbers, hexes, hexes, st.integers(1, 10**6))
def test_a_name_is_read_back_with_and_without_the_number_of_files(epoch, part, index, tag, n, of):
    staged = DataFile(epoch, part, index, tag, n)
    final = name_with_count(str(staged), of, of + 1)
    assert DataFile.parse(str(staged)) == staged
    assert DataFile.parse(final) == replace(staged, number=of, total=of + 1)
    assert str(DataFile.parse(final)) == final
    assert staged_name(final) == staged_name(str(staged)) == f"{staged}.staged"


def test_names_of_earlier_versions_still_parse():
    assert DataFile.parse(OLD) == DataFile(12, 3, 0, "0123456789ab", "ba9876543210")
    assert str(DataFile.parse(OLD)) == OLD


@pytest.mark.parametrize(
    "name",
    [
        *("a.parquet", "b.PARQUET", "c.parq", "d.pq", "000000_0", "000000_0_copy_1"),
        *("e.parquet.snappy", "e.snappy.parquet", "1-2_data.0.parq", "f.PQ.zstd", "20240101_x"),
    ],
)
def test_names_that_programs_give_to_parquet_files_count(name):
    assert is_data(name)


@pytest.mark.parametrize(
    "name",
    [
        *("a.parquet.tmp", "a.parquet._COPYING_", "a.parquet.part", "a.parquet.crc", "a.csv"),
        *("a.parquet.snappy.tmp", "a.parquetx", "part.staged", "x.snappy", "a.gz"),
    ],
)
def test_other_names_do_not(name):
    assert not is_data(name)


def parquet(path: Path) -> Path:
    pq.write_table(pa.table({"n": [1]}), path)
    return path


def test_a_file_is_whole_when_its_footer_is_there(tmp_path):
    path = parquet(tmp_path / "a.parquet")
    content = path.read_bytes()
    status = path.stat()
    assert read_file_status(path) == (len(content), status.st_mtime_ns, True)
    for size in (0, 3, 4, 8, 11, len(content) // 2, len(content) - 8, len(content) - 1):
        path.write_bytes(content[:size])
        assert not read_file_status(path).whole, size
    for tail in (b"\0\0\0\0PAR1", b"\xff\xff\xff\xffPAR1", b"\x01\0\0\0PAR2"):
        path.write_bytes(content[:-8] + tail)
        assert not read_file_status(path).whole, tail
    path.write_bytes(content[:-4] + b"PARE")
    assert read_file_status(path).whole


def test_an_overwrite_replaces_what_other_programs_call_parquet_and_no_readme(tmp_path):
    for name in ("000000_0", "part-0.parq", "B.PARQUET"):
        parquet(tmp_path / name)
    (tmp_path / "README").write_text("what this is")
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkdir(tmp_path / "_x")
    parquet(tmp_path / "_x" / "a.parquet")
    names = {path.name for path in visible_files(tmp_path)}
    assert names == {"000000_0", "part-0.parq", "B.PARQUET"}
