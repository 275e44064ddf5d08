"""The imports of Spark's processes by role, counted: each query starts a dozen of them."""

import json
import pickle
import subprocess
import sys

import pyarrow as pa
import pytest

from krishiv_spark.formats import every_format
from krishiv_spark.lifecycle.read import RowSchema, stream_read
from krishiv_spark.sinks.base import OutputMode

COLUMNS = pa.schema([("value", pa.string())])
# Beyond PySpark and PyArrow: what a connection, a kernel, a catalog or a store is made with.
HEAVY = ["kafka", "numba", "pyiceberg", "obstore", "boto3", "azure", "sqlalchemy", "requests"]
HEAVY += ["pyarrow.compute", "yaml", "click", "pytest"]
COUNT = """
import json, pickle, sys
loaded = pickle.load(sys.stdin.buffer)
built = len(loaded) > 1 and type(loaded[1]).__pydantic_complete__
print(json.dumps([sorted(sys.modules), built]))
"""
READ = [source for source in every_format() if source.reader_type]
WRITTEN = [source for source in every_format() if source.writer_type]


def imported_for(*values):
    """Modules of a new interpreter that has unpickled some values.

    And whether the model of its options, which are the second, was built: that takes longer than
    many an import.
    """
    done = subprocess.run(
        [sys.executable, "-c", COUNT],
        input=pickle.dumps(values),
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def unchecked(model):
    return model.model_construct(**dict.fromkeys({"path"} & {*model.model_fields}, "/nowhere"))


def heavy_in(modules):
    return [name for name in HEAVY if name in modules]


def side_in(modules, side):
    return [name for name in modules if name.startswith(f"krishiv_spark.{side}.")]


@pytest.mark.long
@pytest.mark.parametrize("source", READ, ids=lambda source: source.format_name)
def test_a_task_that_reads_imports_no_sink_and_nothing_heavy(source):
    options = unchecked(source.reader_type.options_type)
    reader = source.reader_type(options, COLUMNS, streaming=True)
    # As PySpark's read function holds them (`plan_data_source_read`).
    task = stream_read(reader, RowSchema(COLUMNS, COLUMNS, options))
    modules, built = imported_for(task, options, source)
    assert heavy_in(modules) == []
    assert side_in(modules, "sinks") == []
    # Of the sources, that of Parquet reads the logs of tables.
    has_log = "krishiv_spark.offsets.epoch_log" in modules
    assert has_log is (source.format_name == "krishiv-parquet")
    assert not built


@pytest.mark.long
@pytest.mark.parametrize("source", WRITTEN, ids=lambda source: source.format_name)
def test_a_task_that_writes_imports_no_source_and_nothing_heavy(source):
    options = unchecked(source.writer_type.options_type)
    writer = source.writer_type(options, COLUMNS, OutputMode.APPEND, streaming=True)
    modules, built = imported_for(writer, options, source)
    assert heavy_in(modules) == []
    assert side_in(modules, "sources") == []
    assert not built


@pytest.mark.long
def test_a_format_by_its_name_imports_neither_side():
    for source in every_format():
        modules, _ = imported_for(source)
        assert side_in(modules, "sinks") + side_in(modules, "sources") == []
