"""Dead letters in real queries: each record is in exactly one of two targets, also after kills."""

import json
from collections import Counter
from contextlib import closing

import duckdb
import pytest
from click.testing import CliRunner
from iceberg_life import table_of
from kafka_topics import Onlooker, produce
from killers import Killer, assert_each_once

import krishiv_spark
from krishiv_spark.cli import main
from krishiv_spark.errors import QueryFailed
from krishiv_spark.queries import start

BAD = 5
"""Each fifth value is no JSON object."""


def value(number):
    return b"broken %d" % number if number % BAD == 0 else b'{"id": %d}' % number


def letters_of(folder):
    found = duckdb.sql(f"SELECT * FROM read_parquet('{folder}/*.parquet')")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


class Copy:
    """A stream of values from a topic into a table, with dead letters."""

    def __init__(self, spark, cluster, folder):
        self._spark, self.cluster, self.folder = spark, cluster, folder
        self.rules = {}
        self.options = {
            "checkpointLocation": str(folder / "checkpoint"),
            "path": str(folder / "rows"),
            "deadLetters.format": "krishiv-parquet",
            "deadLetters.path": str(folder / "dead"),
        }

    def run(self):
        rows = (
            self._spark.readStream.format("krishiv-kafka")
            .option("kafka.bootstrap.servers", self.cluster.bootstrap)
            .options(subscribe="source", startingOffsets="earliest")
            .options(valueFormat="json", valueSchema="id BIGINT", badRecords="divert")
            .options(columns="id, _raw, _error, _source")
            .load()
        )
        if self.rules:
            rows = krishiv_spark.with_rules(rows, **self.rules)
        query = start(rows.writeStream.format("krishiv-parquet").options(**self.options))
        try:
            query.process_all_available()
            return query.progress
        finally:
            query.stop()

    def ids(self):
        found = duckdb.sql(f"SELECT id FROM read_parquet('{self.folder}/rows/*.parquet')")
        return sorted(n for (n,) in found.fetchall())


@pytest.fixture
def copy(spark, two_topics, tmp_path):
    produce(two_topics.bootstrap, "source", [value(n) for n in range(20)])
    return Copy(spark, two_topics, tmp_path)


def test_bad_records_and_broken_rules_are_dead_letters(copy):
    copy.rules = {"small": "id < 18", "odd": "id % 2 = 1 OR id < 9"}
    copy.options["maxBadRecords"] = "50%"
    counted = [told.dead_letters for told in copy.run() if told.rows]
    assert counted == [{"small": 2, "odd": 3, "(bad record)": 4}]
    good = [n for n in range(18) if n % BAD and (n % 2 or n < 9)]
    assert copy.ids() == good
    letters = letters_of(copy.folder / "dead")
    assert len(letters) == 20 - len(good)
    assert {each["topic"] for each in letters} == {"source"}
    assert len({(each["partition"], each["offset"]) for each in letters}) == len(letters)
    by_rule = Counter(each["rule"] for each in letters)
    assert by_rule == {None: 4, "small": 2, "odd": 3}
    (nineteen,) = [each for each in letters if each["value"] == b'{"id":19}']
    assert nineteen["reason"] == "the rule small is not true: id < 18"
    broken = {each["value"] for each in letters if each["rule"] is None}
    assert broken == {value(n) for n in range(0, 20, BAD)}


def test_a_query_beyond_the_limit_fails_and_goes_on_with_a_higher_one(copy):
    copy.options["maxBadRecords"] = "1"
    said = r"4 of the 20 rows of epoch 0 are bad records, and 'maxBadRecords' = '1'"
    with pytest.raises(QueryFailed, match=said):
        copy.run()
    assert not [*copy.folder.glob("rows/*.parquet")]
    copy.options["maxBadRecords"] = "20%"
    copy.run()
    assert copy.ids() == [n for n in range(20) if n % BAD]
    assert len(letters_of(copy.folder / "dead")) == 4


def test_the_command_reads_letters_of_a_topic(copy):
    bootstrap = copy.cluster.bootstrap
    copy.options = {
        **{key: text for key, text in copy.options.items() if "deadLetters" not in key},
        "deadLetters.format": "krishiv-kafka",
        "deadLetters.topic": "target",
        "deadLetters.kafka.bootstrap.servers": bootstrap,
    }
    copy.run()
    words = ["--format", "kafka", "-o", f"kafka.bootstrap.servers={bootstrap}"]
    done = CliRunner().invoke(main, ["dead-letters", "show", *words, "-o", "subscribe=target"])
    assert done.output.startswith("4 dead letters\n        4  the JSON value is not valid JSON")
    assert "for example topic source, partition " in done.output


# --- kills


def kill_again_and_again(cluster, folder, rows, kills, **job):
    produce(cluster.bootstrap, "source", [value(n) for n in range(rows)])
    places = {"bootstrap": cluster.bootstrap, "folder": str(folder), "source": "source"}
    killer = Killer("letters_copy.py", {**places, "rows": rows // 20, **job})
    killer.run(kills)
    assert killer.kills["driver"], "everything was copied before anything was killed"


def numbers(values):
    return Counter(int(text.removeprefix(b"broken ")) for text in values)


def records_of(cluster, topic):
    with closing(Onlooker(cluster.bootstrap)) as onlooker:
        return [record.value for record in onlooker.committed(topic)]


def kill_a_table_with_letters_in_a_topic(cluster, folder, rows, kills):
    options = {
        "path": "db.rows",
        "warehouse": str(folder / "warehouse"),
        "deadLetters.format": "krishiv-kafka",
        "deadLetters.topic": "target",
        "deadLetters.kafka.bootstrap.servers": cluster.bootstrap,
        "maxBadRecords": "90%",
    }
    kill_again_and_again(cluster, folder, rows, kills, format="krishiv-iceberg", options=options)
    found = Counter(table_of(folder / "warehouse").scan().to_arrow()["id"].to_pylist())
    assert_each_once(found, [n for n in range(rows) if n % BAD], "Iceberg")
    assert_each_once(numbers(records_of(cluster, "target")), range(0, rows, BAD), "dead letters")


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # a minute; what dies without Spark is in tests/unit and tests/kit
@pytest.mark.timeout(2400)
def test_kills_lose_and_repeat_no_row_of_a_table_nor_its_letters_in_a_topic(two_topics, tmp_path):
    kill_a_table_with_letters_in_a_topic(two_topics, tmp_path, 1000, 5)


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_tens_of_kills_lose_and_repeat_no_dead_letter(two_topics, tmp_path):
    kill_a_table_with_letters_in_a_topic(two_topics, tmp_path, 4000, 30)


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # a minute, as the one before
@pytest.mark.timeout(2400)
def test_kills_lose_and_repeat_no_record_of_a_topic_nor_its_letters_in_a_folder(
    two_topics, tmp_path
):
    options = {
        "topic": "target",
        "kafka.bootstrap.servers": two_topics.bootstrap,
        "deadLetters.format": "krishiv-parquet",
        "deadLetters.path": str(tmp_path / "dead"),
    }
    select = ["CAST(id AS STRING) AS value", "_raw", "_error", "_source"]
    job = {"format": "krishiv-kafka", "options": options, "select": select}
    kill_again_and_again(two_topics, tmp_path, 1000, 5, **job)
    good = [n for n in range(1000) if n % BAD]
    assert_each_once(numbers(records_of(two_topics, "target")), good, "Kafka")
    letters = letters_of(tmp_path / "dead")
    assert_each_once(numbers(each["value"] for each in letters), range(0, 1000, BAD), "letters")


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # a minute, as the two before
@pytest.mark.timeout(2400)
def test_kills_lose_and_repeat_no_row_of_a_mirror_nor_its_letters(two_topics, tmp_path):
    options = {
        "path": "db.rows",
        "warehouse": str(tmp_path / "warehouse"),
        "mode": "upsert",
        "changeFormat": "debezium",
        "keyColumns": "id",
        "tableSchema": "id BIGINT",
        "deadLetters.format": "krishiv-parquet",
        "deadLetters.path": str(tmp_path / "dead"),
    }
    job = {"format": "krishiv-iceberg", "options": options, "decoding": {}}
    kill_again_and_again(two_topics, tmp_path, 1000, 5, **job)
    found = Counter(table_of(tmp_path / "warehouse").scan().to_arrow()["id"].to_pylist())
    assert_each_once(found, [n for n in range(1000) if n % BAD], "Iceberg")
    letters = letters_of(tmp_path / "dead")
    assert_each_once(numbers(each["value"] for each in letters), range(0, 1000, BAD), "letters")


def test_a_rule_is_evaluated_once_for_each_row(spark):
    """With more evaluations, a rule with a random number makes letters without value or rule."""
    rows = krishiv_spark.with_rules(spark.range(1000), coin="rand() < 0.5").collect()
    letters = [row for row in rows if row["_error"] is not None]
    assert 350 < len(letters) < 650
    assert {row["_rule"] for row in letters} == {"coin"}
    assert all(row["_raw"] == b'{"id":%d}' % row["id"] for row in letters)
    good = [row for row in rows if row["_error"] is None]
    assert {(row["_raw"], row["_rule"]) for row in good} == {(None, None)}


def test_a_kept_row_has_its_microseconds_and_nulls(spark):
    frame = spark.sql(
        "SELECT 1 AS id, TIMESTAMP_NTZ '2026-01-02 03:04:05.123456' AS at, "
        "timestamp_micros(1234567) AS made, CAST(NULL AS STRING) AS name"
    )
    (row,) = krishiv_spark.with_rules(frame, never="id > 1").collect()
    found = json.loads(row["_raw"])
    assert (found["id"], found["at"], found["name"]) == (1, "2026-01-02T03:04:05.123456", None)
    assert found["made"].partition(".")[2].startswith("234567")
