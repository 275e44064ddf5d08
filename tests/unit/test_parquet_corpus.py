"""The public corpus of Parquet files: what our reader gives is what Spark's own reader gives.

What Spark gives is in ``tests/golden/parquet_corpus.json``; see `parquet_corpus`. Each file is
equal, or listed here with the reason and with what our reader gives instead.
"""

import json

import pytest
from parquet_corpus import GOLDEN, find_corpus, link_file, list_files, read_with_ours
from pyspark.sql.types import StructType

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        find_corpus() is None,
        reason="KRISHIV_PARQUET_CORPUS does not name a copy of parquet-testing",
    ),
]

SPARK = json.loads(GOLDEN.read_text())

DAMAGED = {
    "bad_data/ARROW-GH-41317.parquet": "columns of a row group differ in length",
    "bad_data/ARROW-GH-41321.parquet": "bit width of a dictionary",
    "bad_data/ARROW-GH-47662.parquet": "a page is cut off",
    "bad_data/ARROW-RS-GH-6229-LEVELS.parquet": "fewer levels than values",
    "bad_data/PARQUET-1481.parquet": "physical type that there is not",
    # Spark's reader reads these: it checks less.
    "bad_data/ARROW-GH-45185.parquet": "a row that begins within a list",
    "bad_data/ARROW-RS-GH-6229-DICTHEADER.parquet": "header of a dictionary page; 0 rows in Spark",
    "data/datapage_v1-corrupt-checksum.parquet": "checksum of a page",
    "data/rle-dict-uncompressed-corrupt-checksum.parquet": "checksum of a page",
}

MORE = {
    "data/byte_array_decimal.parquet": (24, "Spark 4.3 fails at these decimals"),
    "data/byte_stream_split_extended.gzip.parquet": (200, "FLOAT16"),
    "data/float16_nonzeros_and_nans.parquet": (8, "FLOAT16"),
    "data/float16_zeros_and_nans.parquet": (3, "FLOAT16"),
    "data/floating_orders_nan_count.parquet": (50, "FLOAT16"),
    "data/geospatial/crs-arbitrary-value.parquet": (1, "a reference system unknown to Spark"),
    "data/geospatial/crs-projjson.parquet": (1, "a reference system unknown to Spark"),
    "data/geospatial/crs-srid.parquet": (1, "a reference system unknown to Spark"),
    "data/geospatial/geospatial-with-nan.parquet": (3, "Spark hands over no NaN in a geometry"),
    "data/geospatial/geospatial.parquet": (196, "PySpark cannot convert null geometries"),
    "data/map_no_value.parquet": (3, "a map without values; its README gives the rows"),
    "data/nation.dict-malformed.parquet": (25, "a dictionary without its length"),
    "data/non_hadoop_lz4_compressed.parquet": (4, "LZ4 without Hadoop's frames"),
    "data/unknown-logical-type.parquet": (3, "a type of a later version of the format"),
}
"""Rows of files that Spark's reader refuses, with the reason."""

GEOMETRY = {
    "data/geospatial/crs-default.parquet": 1,
    "data/geospatial/crs-geography.parquet": 1,
    "data/geospatial/geography-lines.parquet": 499,
    "data/geospatial/geography-points.parquet": 500,
    "data/geospatial/geography-polygons.parquet": 500,
}
"""Geometry is the bytes in which it is stored; Python connectors cannot give Spark its type."""


def is_encrypted(name):
    return name.endswith(".encrypted")


def expected(name):
    """Return the rows of this package's reader, or the name of its error."""
    if name in DAMAGED:
        return "BadFileError"
    if is_encrypted(name):
        return "UnsupportedFileError"
    return (MORE.get(name) or (GEOMETRY.get(name),))[0]


def test_the_corpus_is_the_one_that_spark_has_read():
    assert list_files(find_corpus()) == sorted(SPARK)


@pytest.mark.parametrize("name", sorted(name for name in SPARK if "shredded" not in name))
def test_a_file_is_read_as_spark_reads_it_or_is_listed_with_the_reason(tmp_path, name):
    ours = read_with_ours(link_file(find_corpus(), name, tmp_path))
    wanted = expected(name)
    if wanted is None:
        assert ours == SPARK[name]
    elif isinstance(wanted, str):
        assert ours == wanted
    else:
        assert ours["rows"] == wanted
        assert ours != SPARK[name], "it is equal now: take it off the list"


def test_variants_are_those_of_spark_or_refused_by_name_where_they_are_shredded(tmp_path):
    names = [name for name in SPARK if "shredded" in name]
    paths = {name: link_file(find_corpus(), name, tmp_path) for name in names}
    found = {name: read_with_ours(path) for name, path in paths.items()}
    plain = [name for name in names if found[name] != "UnsupportedFileError"]
    assert (len(names), len(plain)) == (137, 36)
    wanted = StructType().add("id", "integer").add("var", "variant")
    for name, path in paths.items():
        given = read_with_ours(path, wanted)
        assert given == (SPARK[name] if name in plain else "UnsupportedFileError"), name


def test_n_of_n():
    """The closing count, for people: how many files are equal, and how many are listed."""
    data = [name for name in SPARK if "shredded" not in name]
    listed = [name for name in data if expected(name) is not None]
    print(f"{len(data) - len(listed)} of {len(data)} files equal, {len(listed)} listed")
    assert len(data) == 95
