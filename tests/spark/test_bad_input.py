"""A start that is refused keeps its place; what else is refused: `test_bad_inputs`."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from tables import look, make_input

FILES, ROWS = 6, 10


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_input(tmp_path / "in", FILES, ROWS)
    return tmp_path / "in"


def copy(spark, source: Path, tmp_path: Path, read=(), write=()):
    rows = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 2)
    rows = rows.options(**dict(read)).load(str(source))
    options = {"checkpointLocation": str(tmp_path / "checkpoint"), **dict(write)}
    writer = rows.writeStream.format("krishiv-parquet").options(**options)
    query = writer.start(str(tmp_path / "out"))
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.long
def test_a_start_from_latest_survives_a_crash_of_the_first_batch(spark, source, tmp_path):
    table = tmp_path / "out"
    table.touch()  # a file where the table has to be: the first batch, the empty one, fails
    with pytest.raises(StreamingQueryException, match="cannot be"):
        copy(spark, source, tmp_path, read={"startingOffsets": "latest"})
    make_input(source, FILES + 2, ROWS)
    table.unlink()
    copy(spark, source, tmp_path, read={"startingOffsets": "latest"})
    assert look(table)[:2] == (2 * ROWS, 2 * ROWS)
