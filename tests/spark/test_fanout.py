"""``krishiv-fanout`` in real queries: each epoch in all targets, or in none."""

import pytest
from click.testing import CliRunner
from iceberg_life import ids
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as sql
from tables import look, make_input
from three_targets import kill_again_and_again

import krishiv_spark
from krishiv_spark.cli import main

FILES, ROWS = 6, 10
TOTAL = FILES * ROWS


class Copy:
    """A stream of numbered rows: good ones into a folder, others into a table."""

    def __init__(self, spark, folder):
        make_input(folder / "in", FILES, ROWS)
        self._spark, self.folder = spark, folder
        self.routes = {"good": "id % 3 > 0", "bad": "id % 3 = 0"}
        self.options = {
            "checkpointLocation": str(folder / "checkpoint"),
            "route.good.format": "krishiv-parquet",
            "route.good.path": str(folder / "good"),
            "route.bad.format": "krishiv-iceberg",
            "route.bad.path": "db.rows",
            "route.bad.warehouse": str(folder / "bad"),
        }

    def rows(self, folder="in", **options):
        read = self._spark.readStream.format("krishiv-parquet").options(**options)
        return read.load(str(self.folder / folder))

    def start(self):
        rows = krishiv_spark.routed(self.rows(maxFilesPerTrigger=2), **self.routes)
        return rows.writeStream.format("krishiv-fanout").options(**self.options).start()

    def run(self):
        query = self.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()


@pytest.fixture
def copy(spark, tmp_path):
    return Copy(spark, tmp_path)


@pytest.mark.core
def test_rows_go_where_their_conditions_say(copy):
    copy.run()
    assert look(copy.folder / "good")[:2] == (40, 40)
    assert ids(copy.folder / "bad") == list(range(0, TOTAL, 3))


def test_a_source_follows_a_folder_that_is_one_of_several_targets(copy, spark):
    copy.run()
    rows = copy.rows("good", maxFilesPerTrigger=1).writeStream
    query = rows.format("memory").queryName("followed").outputMode("append").start()
    query.processAllAvailable()
    make_input(copy.folder / "in", FILES + 2, ROWS)
    copy.run()
    query.processAllAvailable()
    query.stop()
    found = sorted(row.id for row in spark.table("followed").collect())
    assert found == [n for n in range(TOTAL + 2 * ROWS) if n % 3]


def test_in_mode_complete_each_epoch_takes_the_place_of_the_one_before(copy):
    counts = copy.rows(maxFilesPerTrigger=2).groupBy((sql.col("id") % 3).alias("id")).count()
    rows = krishiv_spark.routed(counts, **copy.routes)
    writer = rows.writeStream.format("krishiv-fanout").outputMode("complete")
    query = writer.options(**copy.options).start()
    query.processAllAvailable()
    query.stop()
    assert look(copy.folder / "good") == (2, 2, 3)
    assert ids(copy.folder / "bad") == [0]


def test_rows_without_a_route_are_an_error_and_none_is_lost_by_it(copy):
    copy.routes["bad"] = "id % 3 = 0 AND id <> 30"
    with pytest.raises(StreamingQueryException, match=r"1 of \d+ rows have no route"):
        copy.run()
    assert look(copy.folder / "good")[0] == len(set(range(20)) - set(range(0, 20, 3)))
    copy.routes["bad"] = "id % 3 = 0"
    copy.run()
    assert ids(copy.folder / "bad") == list(range(0, TOTAL, 3))


def test_rows_without_a_route_may_be_dropped(copy):
    copy.routes["bad"] = "id = 30"
    copy.options["unrouted"] = "drop"
    copy.run()
    assert ids(copy.folder / "bad") == [30]


def test_another_target_is_refused_until_an_operator_says_so(copy):
    copy.run()
    copy.options["route.good.path"] = str(copy.folder / "elsewhere")
    make_input(copy.folder / "in", FILES + 1, ROWS)
    with pytest.raises(StreamingQueryException, match="and would now be written to"):
        copy.run()
    given = [f"{key}={text}" for key, text in copy.options.items() if key.startswith("route")]
    place = ["--format", "fanout", "--checkpoint", copy.options["checkpointLocation"]]
    words = [word for text in given for word in ("-o", text)]
    told = CliRunner().invoke(main, ["log", "show", *place, *words])
    assert "good: Parquet table" in told.output, told.output
    done = CliRunner().invoke(
        main, ["log", "adopt", *place, *words, "--newest", "unpublished"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    copy.run()
    assert look(copy.folder / "elsewhere")[:2] == (6, 6)


WRONG = {
    "another column": ({"route.bad.format": None, "route.bda.format": "krishiv-iceberg"}, "bda"),
    "no format": ({"route.bad.format": None}, "route 'bad': option 'format' is required"),
    "a format that cannot": ({"route.bad.format": "krishiv-memory"}, "cannot be a route"),
    "a misspelt option": ({"route.good.pahtt": "x"}, "route 'good': .*unknown option 'pahtt'"),
    "a log of its own": ({"route.good.epochLog": "/x"}, "all routes have one epoch log"),
    "at least once": ({"route.bad.format": "krishiv-kafka"}, "route 'bad'"),
    "no name": ({"route.path": "x"}, "write 'route.<name>.<option>'"),
}


@pytest.mark.parametrize("change", WRONG)
def test_what_is_wrong_is_said_before_a_row_moves(copy, change):
    changes, said = WRONG[change]
    merged = {**copy.options, **changes}
    copy.options = {key: text for key, text in merged.items() if text is not None}
    with pytest.raises(PySparkException, match=said):
        copy.run()
    assert look(copy.folder / "good")[0] == 0


def test_a_batch_write_says_what_to_do_instead(copy, spark):
    rows = krishiv_spark.routed(spark.read.parquet(str(copy.folder / "in")), **copy.routes)
    with pytest.raises(PySparkException, match=r"trigger\(availableNow=True\)"):
        rows.write.format("krishiv-fanout").mode("append").options(**copy.options).save()


# --- kills


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # a minute; what dies without Spark is in tests/kit
@pytest.mark.timeout(2400)
def test_kills_lose_and_repeat_no_row_of_three_targets(two_topics, tmp_path):
    kill_again_and_again("fanout_copy.py", two_topics.bootstrap, tmp_path, 800, 4)


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_tens_of_kills_lose_and_repeat_no_row_of_three_targets(two_topics, tmp_path):
    kill_again_and_again("fanout_copy.py", two_topics.bootstrap, tmp_path, 4000, 30)
