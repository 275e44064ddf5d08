"""Options that make a table, given for one that is there: refused, or told of."""

from pathlib import Path

import pytest
from duck_iceberg import read_by_duckdb
from iceberg_life import IcebergLife, ids, numbered, table_of

from krishiv_spark.errors import OptionError
from krishiv_spark.runtime import once

MADE = {
    "partitionBy": "bucket(4, id), text",
    "sortBy": "text desc, truncate(2, text)",
    "tableProperty.write.parquet.compression-codec": "gzip",
}


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(once, "_given", set())


@pytest.fixture
def table(tmp_path):
    IcebergLife(tmp_path, **MADE, location=f"{tmp_path}/place").epoch(0, numbered(0))
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("partitionBy", "nonsense((((", "write columns and transforms"),
        ("partitionBy", "region", "region"),
        ("partitionBy", "bucket(8, id), text", r"already and has bucket\(4, id\), text\."),
        ("sortBy", "text sideways", "write 'column'"),
        (
            "sortBy",
            "text desc",
            r"already and has text desc nulls last, truncate\(2, text\) asc nulls",
        ),
        ("location", "/other/place", r"already and has .*/place\."),
        ("location", "s3://bucket/place", r"already and has .*/place\."),
    ],
)
@pytest.mark.parametrize("made", ["ifMissing", "never"])
def test_what_differs_from_the_table_is_refused(table, option, text, said, made):
    life = IcebergLife(table, **{option: text}, createTable=made)
    with pytest.raises(OptionError, match=f"{option}.*{said}"):
        life.plan(numbered(1))
    assert ids(table) == list(range(10))


def test_what_agrees_with_the_table_is_taken(table, caplog):
    same = {
        "partitionBy": "bucket(4,id),identity(text)",
        "sortBy": "text desc nulls last, truncate(2, text)",
        "location": f"file://{table}/place/",
    }
    IcebergLife(table, **{**MADE, **same}).epoch(1, numbered(1))
    assert len(ids(table)) == 20
    assert not [line for line in caplog.messages if "no effect" in line]


def test_a_partition_that_was_dropped_is_none(tmp_path):
    made = {"partitionBy": "text, id", "tableProperty.format-version": "1"}
    IcebergLife(tmp_path, **made).epoch(0, numbered(0))
    with table_of(tmp_path).update_spec() as update:
        update.remove_field("id")
    IcebergLife(tmp_path, partitionBy="text").epoch(1, numbered(1))
    with pytest.raises(OptionError, match="already and has text"):
        IcebergLife(tmp_path, **made).plan(numbered(2))


def test_properties_that_differ_are_told_of_once(table, caplog):
    given = {
        "tableProperty.write.parquet.compression-codec": "snappy",
        "tableProperty.write.target-file-size-bytes": "1000000",
        "tableProperty.format-version": "1",
    }
    for epoch in (1, 2):
        IcebergLife(table, **given).epoch(epoch, numbered(epoch))
    told = [line for line in caplog.messages if "no effect" in line]
    assert len(told) == 3
    assert any("'snappy' has no effect" in line and "has 'gzip'" in line for line in told)
    assert len(ids(table)) == 30


CODEC = "write.metadata.compression-codec"


@pytest.mark.long
def test_metadata_files_are_compressed_as_the_table_wants(tmp_path):
    """The property decides about each file, also if another program changes it."""
    life = IcebergLife(tmp_path, **{f"tableProperty.{CODEC}": "gzip"})
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
        life.epoch(epoch, numbered(epoch))
    for epoch, codec in enumerate(("gzip", "GZIP", "none"), 3):
        with table_of(tmp_path).transaction() as change:
            change.set_properties({CODEC: codec})
        IcebergLife(tmp_path).epoch(epoch, numbered(epoch))
        table = table_of(tmp_path)
        file, there = Path(table.metadata_location), list(range(10 * epoch + 10))
        assert file.name.endswith(".gz.metadata.json") == (codec != "none")
        assert file.read_bytes().startswith(b"\x1f\x8b") == (codec != "none")
        assert ids(tmp_path) == there
        assert sorted(read_by_duckdb(table, "id")) == [(number,) for number in there]


def test_an_unknown_compression_of_metadata_is_refused(tmp_path):
    with pytest.raises(OptionError, match="'zstd': it must be 'gzip' or 'none'"):
        IcebergLife(tmp_path, **{f"tableProperty.{CODEC}": "zstd"}).plan(numbered(0))
    assert not (tmp_path / "db").exists()
