"""Bad input of tables of Delta under Spark: one line says what is wrong, and no row moves."""

import json
import re

import pytest
from delta_life import DeltaLife, ids, numbered
from pyspark.errors import PySparkException

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ROWS = "SELECT id FROM range(3)"


@pytest.fixture
def table(tmp_path):
    DeltaLife(tmp_path / "table").epoch(0, numbered(100, 2))
    return tmp_path / "table"


def change_metadata(table, change):
    """Rewrite the first version of a table, as another program would have made it."""
    first = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    change({kind: body for action in actions for kind, body in action.items()})
    first.write_text("\n".join(map(json.dumps, actions)))


def set_property(key, value):
    return lambda found: found["metaData"]["configuration"].update({key: value})


def require(feature):
    def change(found):
        found["protocol"].update(
            minReaderVersion=3,
            minWriterVersion=7,
            readerFeatures=[feature],
            writerFeatures=[feature],
        )

    return change


WRITES = [
    ({"partionBy": "id"}, ROWS, None, "did you mean 'partitionBy'"),
    ({"partitionBy": "id"}, ROWS, None, "the table .* is partitioned by no column"),
    ({"mode": "upsert"}, ROWS, None, "upserts are not supported"),
    ({"mode": "scd2"}, ROWS, None, "histories are not supported"),
    ({"mode": "overwrite"}, ROWS, None, r"write df\.write\.mode\('overwrite'\)"),
    ({"changeFormat": "debezium"}, ROWS, None, "no option 'changeformat': change data is not"),
    ({"keyColumns": "id"}, ROWS, None, "no option 'keycolumns': upserts are not supported"),
    ({"opColumn": "op"}, ROWS, None, "delta-spark's MERGE, and 'txnAppId'"),
    ({"mergeSchema": "true"}, ROWS, None, "set 'schemaEvolution' = 'add'"),
    ({"overwriteSchema": "true"}, ROWS, None, "other columns need a new table"),
    ({"replaceWhere": "id > 1"}, ROWS, None, "replaces all rows or none"),
    ({"partitionOverwriteMode": "dynamic"}, ROWS, None, "replaces all rows or none"),
    ({"optimizeWrite": "true"}, ROWS, None, "set 'targetFileSize'"),
    ({"compact": "auto"}, ROWS, None, "OPTIMIZE"),
    ({"epochLog": "/x"}, ROWS, None, "the table has the epochs"),
    ({"compression": "snapy"}, ROWS, None, "did you mean 'snappy'"),
    ({"commitTimeout": "10"}, ROWS, None, "needs a unit of time"),
    ({"txnVersion": "1"}, ROWS, None, "'txnAppId' and 'txnVersion' belong together"),
    ({"schemaEvolution": "merge"}, ROWS, None, "there are none, add"),
    ({"targetFileSize": "big"}, ROWS, None, "number of bytes"),
    ({}, "SELECT id, 'x' AS ID2 FROM range(3)", None, "the table has no column 'ID2'"),
    ({}, "SELECT 'x' AS id", None, "column 'id' is string, but int64 in the table"),
    ({}, "SELECT interval 1 day AS id", None, "'id' is an interval"),
    ({}, ROWS, set_property("delta.constraints.c", "id > 0"), "CHECK constraint 'c'"),
    ({}, ROWS, set_property("delta.columnMapping.mode", "name"), "column mapping"),
    ({}, ROWS, require("variantType"), "the features 'variantType'"),
]
READS = [
    ({"versionAsOf": "first"}, None, "'versionAsOf' = 'first': write a whole number"),
    ({"versionAsOf": "1", "timestampAsOf": "0"}, None, "exclude each other"),
    ({"startingVersion": "1"}, None, "'startingVersion' is for streams"),
    ({"columns": "idd"}, None, "did you mean 'id'"),
    ({"eventTime": "id"}, None, "use Spark's withWatermark"),
    ({}, require("typeWidening"), "the features 'typeWidening'"),
    ({}, set_property("delta.columnMapping.mode", "id"), "column mapping"),
]


def first_line_of(work):
    with pytest.raises(PySparkException) as caught:
        work()
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize(("options", "rows", "harm", "text"), WRITES, ids=[w[3] for w in WRITES])
def test_the_first_line_of_a_write_says_it(spark, table, options, rows, harm, text):
    if harm is not None:
        change_metadata(table, harm)
    writer = spark.sql(rows).write.format("krishiv-delta").mode("append").options(**options)
    line = first_line_of(lambda: writer.save(str(table)))
    assert re.search("(Option|Schema)Error: krishiv-delta: ", line)
    assert re.search(text, line), line
    if harm is None:
        assert ids(table) == [100, 101]


@pytest.mark.parametrize(("options", "harm", "text"), READS, ids=[r[2] for r in READS])
def test_the_first_line_of_a_read_says_it(spark, table, options, harm, text):
    if harm is not None:
        change_metadata(table, harm)
    reader = spark.read.format("krishiv-delta").options(**options)
    line = first_line_of(lambda: reader.load(str(table)).collect())
    assert re.search("(Option|Schema)Error: krishiv-delta: ", line)
    assert re.search(text, line), line
