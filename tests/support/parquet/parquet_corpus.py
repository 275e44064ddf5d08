"""The public corpus of Parquet files (apache/parquet-testing), read by Spark's reader and by ours.

    python -m parquet_corpus CORPUS

writes ``tests/golden/parquet_corpus.json``: for each file what Spark's own reader gives, a checksum
of its rows with them, so that our reader can be compared without a Spark.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from parquet_reading import FIRST, UNLIMITED, reader

from krishiv_spark.arrow.schemas import arrow_schema, spark_schema
from krishiv_spark.errors import KrishivError

GOLDEN = Path(__file__).parents[2] / "golden" / "parquet_corpus.json"
FOLDERS = ("data", "data/geospatial", "data/aes256", "bad_data", "shredded_variant")
NO_DATA = (".json", ".md", ".csv", ".bin", ".txt")
TOO_LARGE = "data/large_string_map.brotli.parquet"
"""A map of 2 GiB of text, of which its README says that readers may refuse it."""

FORMS = {"spark.sql.session.timeZone": "UTC", "spark.sql.timeType.enabled": "true"}
"""Settings of the session that Spark's results are of."""


def find_corpus():
    """Return the folder of the corpus; None if it is not configured."""
    found = os.environ.get("KRISHIV_PARQUET_CORPUS")
    return None if not found else Path(found)


def list_files(folder):
    """The names of all files with rows, relative to the corpus."""
    found = (path for part in FOLDERS for path in (Path(folder) / part).iterdir())
    names = (str(path.relative_to(folder)) for path in found if path.is_file())
    data = (name for name in names if ".parquet" in name and not name.endswith(NO_DATA))
    return sorted(name for name in data if name != TOO_LARGE)


def link_file(folder, name, place):
    """A file of the corpus under a name that counts as Parquet's."""
    path = Path(place) / name.replace("/", "__").replace(".encrypted", "")
    if not path.exists():
        path.symlink_to(Path(folder) / name)
    return path


def _numbers(kind):
    """A type whose times are numbers: Python's end with the year 9999."""
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_numbers(kind.key_type), _numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_numbers(kind.value_type))
    return kind


def checksum(table):
    """Of all values, in their order."""
    columns = [
        pa.chunked_array(column.chunks, column.type).cast(_numbers(column.type)).to_pylist()
        for column in table.columns
    ]
    return hashlib.sha256(repr(columns).encode()).hexdigest()[:16]


def summarize(schema, table):
    columns = {field.name: field.dataType.simpleString() for field in schema.fields}
    return {"schema": columns, "rows": table.num_rows, "checksum": checksum(table)}


def read_with_spark(spark, path):
    """Return the rows of Spark's own reader; None if it refuses the file."""
    try:
        frame = spark.read.parquet(str(path))
        return summarize(frame.schema, frame.toArrow())
    except Exception as error:  # noqa: BLE001  Spark's errors have many classes
        print("   ", str(error).splitlines()[0][:150])
        return None


def read_with_ours(path, schema=None):
    """Return the rows of this package's reader, as Spark gets them; an own error by its class."""
    try:
        source = reader(path, schema=None, streaming=False)
        schema = schema or spark_schema(source.infer_schema())
        source.schema = arrow_schema(schema)
        parts = source.plan(FIRST, source.latest(FIRST, UNLIMITED))
        found = [batch for part in parts for batch in source.read(part)]
        return summarize(schema, pa.Table.from_batches(found, source.schema))
    except KrishivError as error:
        return type(error).__name__


def main(folder):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for key, value in FORMS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    place = Path(tempfile.mkdtemp())
    golden = {}
    for name in list_files(folder):
        print(name, flush=True)
        golden[name] = read_with_spark(spark, link_file(folder, name, place))
    lines = (f" {json.dumps(name)}: {json.dumps(found)}" for name, found in golden.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
