"""Mistakes of users about a store, through real queries: an early error, and no lost row.

The texts for each store are in tests/stores/test_bad_input.py.
"""

import time

import pytest
from bad_inputs import check_soon
from pyspark.errors import PySparkException
from store_tables import make_onlooker
from tables import make_input

FILES, ROWS = 4, 10
WITHIN_S = 30  # 8 of them for who does not answer, the rest to start Python
WRONG = [
    ({"storage.s3.endpoint": "http://127.0.0.1:9"}, "no server listens at http://127.0.0.1:9"),
    (
        {"storage.s3.secretAcessKey": "hunter2"},
        "storage.s3: unknown option 'secretacesskey'; did you mean 'secretAccessKey'",
    ),
    pytest.param(
        {"storage.s3.timeout": "soon"},
        "storage.s3: option 'timeout' = 'soon'",
        marks=pytest.mark.long,  # as the one before
    ),
    ({"path": "s3://nowhere/at/all"}, "bucket does not exist"),
]

pytestmark = [
    pytest.mark.once,
    pytest.mark.parametrize("store", ["s3"], indirect=True),
    pytest.mark.parametrize(("wrong", "says"), WRONG),
]


def told(attempt) -> tuple[str, float]:
    """Return the error that a user gets, and the seconds that it took."""
    begun_s = time.monotonic()
    with pytest.raises(PySparkException) as caught:
        attempt()
    took_s = time.monotonic() - begun_s
    assert "hunter2" not in str(caught.value)
    return str(caught.value), took_s


def test_a_stream_into_a_store_moves_no_row_and_goes_on_when_it_is_mended(
    spark, store, tmp_path, wrong, says
):
    make_input(tmp_path / "in", FILES, ROWS)
    table = f"{store.url}/table"

    def copy(**changes):
        rows = spark.readStream.format("krishiv-parquet").load(str(tmp_path / "in"))
        given = {"checkpointLocation": str(tmp_path / "checkpoint"), "path": table}
        writer = rows.writeStream.format("krishiv-parquet")
        query = writer.options(**{**given, **store.options, **changes}).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    text, took_s = told(lambda: copy(**wrong))
    assert says in text
    assert make_onlooker(table, store.options).keys() == []
    begun_s = time.monotonic()
    copy()
    check_soon(took_s, WITHIN_S, time.monotonic() - begun_s)
    assert make_onlooker(table, store.options).ids() == list(range(FILES * ROWS))


def test_a_source_in_a_store_says_it_when_it_is_loaded(spark, store, wrong, says):
    given = {"path": f"{store.url}/in", **store.options, **wrong}
    rows = spark.readStream.format("krishiv-parquet")
    text, took_s = told(lambda: rows.options(**given).load())
    assert says in text
    assert took_s < WITHIN_S
