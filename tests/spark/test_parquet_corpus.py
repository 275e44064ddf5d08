"""The public corpus of Parquet files through Spark: our source beside Spark's own reader.

What our reader gives without a Spark is compared in ``tests/unit/test_parquet_corpus.py``, for each
file; here is shown that Spark hands the same on, and that the recorded results are Spark's.
"""

import json

import pytest
from parquet_corpus import (
    FORMS,
    GOLDEN,
    find_corpus,
    link_file,
    list_files,
    read_with_spark,
    summarize,
)

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        find_corpus() is None,
        reason="KRISHIV_PARQUET_CORPUS does not name a copy of parquet-testing",
    ),
]

SOME = [
    "data/alltypes_plain.parquet",
    "data/incorrect_map_schema.parquet",
    "data/int96_from_spark.parquet",
    "data/nested_maps.snappy.parquet",
    "data/null_list.parquet",
    "data/old_list_structure.parquet",
    "data/repeated_no_annotation.parquet",
]


@pytest.fixture
def session(spark):
    before = {name: spark.conf.get(name) for name in FORMS}
    for name, value in FORMS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def test_spark_gets_from_our_source_what_its_own_reader_gives(session, tmp_path):
    for name in SOME:
        path = link_file(find_corpus(), name, tmp_path)
        frame = session.read.format("krishiv-parquet").load(str(path))
        assert summarize(frame.schema, frame.toArrow()) == read_with_spark(session, path), name


@pytest.mark.long
def test_the_recorded_results_are_those_of_spark(session, tmp_path):
    golden = json.loads(GOLDEN.read_text())
    for name in list_files(find_corpus()):
        assert read_with_spark(session, link_file(find_corpus(), name, tmp_path)) == golden[name], (
            name
        )
