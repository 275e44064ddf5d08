"""Dead letters without Spark: options, columns, the limit, and a full disk."""

import errno
import json
import os
import re
from collections import Counter
from contextlib import suppress

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from iceberg_life import table_of
from letter_life import COLUMNS, LetterLife, column_of, into_folders, mixed
from numbered_jobs import make_job_options, run_job
from small_disks import fill

from krishiv_spark.cli import main
from krishiv_spark.errors import (
    CheckpointMismatch,
    CommitUnknown,
    OptionError,
    SchemaError,
    StorageError,
)
from krishiv_spark.formats import IcebergDataSource, ParquetDataSource, find_format
from krishiv_spark.lifecycle import resumption
from krishiv_spark.lifecycle.errors import explain_disk_full
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.dead_letter_options import BadRecordLimit, DeadLetterOptions
from krishiv_spark.sinks.fanout.dead_letters import LetterColumns, TooManyBadRecords, add_counts


@pytest.fixture(autouse=True)
def fresh():
    """Each test is a driver of its own."""
    restart()


def restart():
    resumption._described = LruCache(64)


def writer(options, columns=COLUMNS, mode=OutputMode.APPEND, *, streaming=True):
    kind, parsed = find_format("krishiv-parquet").open_sink(options)
    return kind(parsed, columns, mode, streaming=streaming)


# --- options


WRONG = {
    "no target": ({"maxBadRecords": "1%"}, "need a target: set 'deadLetters.format'"),
    "a path alone": ({"deadLetters.path": "/x"}, "need a target: set 'deadLetters.format'"),
    "one target": (
        {"deadLetters.format": "krishiv-parquet", "deadLetters.path": "/rows"},
        "name the target of the rows",
    ),
    "a format that cannot": ({"deadLetters.format": "krishiv-memory"}, "deadLetters: .*be a route"),
    "a misspelt option": ({"deadLetters.pahtt": "x"}, "deadLetters: .*unknown option 'pahtt'"),
    "an option of the rows": ({"pathh": "x"}, r"^krishiv-parquet: unknown option 'pathh'"),
    "an option of the whole": ({"deadLetters.epochLog": "/x"}, "deadLetters: .*one epoch log"),
    "no number": ({"maxBadRecords": "few"}, "'maxBadRecords' = 'few': write a number"),
    "a part of a record": ({"maxBadRecords": "1.5"}, "write a number"),
    "too large a share": ({"maxBadRecords": "101%"}, "a share is 100% at most"),
    "another option of fan-outs": ({"unrouted": "drop"}, "unknown option 'unrouted'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_are_wrong_are_one_line(case, tmp_path):
    given_options, said = WRONG[case]
    right = {"path": "/rows"}
    if "target" not in case and "alone" not in case:
        right |= {"deadLetters.format": "krishiv-parquet", "deadLetters.path": str(tmp_path)}
    with pytest.raises(OptionError, match=said) as error:
        writer({**right, **given_options}).check_start()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "dead"),
    [
        ("/rows", "/rows/"),
        ("/rows", "file:///rows"),
        ("file:/rows", "/rows"),
        ("/rows", "/x/../rows"),
        ("/rows", "/rows/dead"),
        ("/all/rows", "/all"),
        ("s3://b/rows", "s3://b/rows/dead"),
    ],
)
def test_one_folder_written_in_two_ways_is_one_target(rows, dead):
    options = {"path": rows, "deadLetters.format": "Krishiv-Parquet", "deadLetters.path": dead}
    with pytest.raises(OptionError, match="name the target of the rows"):
        writer(options)
    options["deadLetters.path"] = dead.replace("rows", "rows2").replace("/all", "/al")
    writer(options)


def test_single_secrets_of_a_target_are_known_and_not_shown():
    options = {
        "path": "/rows",
        "deadLetters.format": "krishiv-kafka",
        "deadLetters.topic": "dead",
        "deadLetters.kafka.bootstrap.servers": "h:1",
        "deadLetters.kafka.security.protocol": "SASL_PLAINTEXT",
        "deadLetters.kafka.sasl.mechanism": "PLAIN",
        "deadLetters.kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain."
        'PlainLoginModule required username="u" password="hunter1";',
    }
    _, parsed = find_format("krishiv-parquet").open_sink(options)
    assert "hunter1" in parsed.secrets()
    assert "hunter1" not in repr(parsed)


@pytest.mark.parametrize("name", ["memory", "console", "fanout"])
def test_sinks_that_cannot_have_dead_letters_are_named(name):
    with pytest.raises(OptionError, match=f"krishiv-{name}: .*are for krishiv-delta, krishiv-i"):
        find_format(f"krishiv-{name}").open_sink({"deadLetters.format": "krishiv-parquet"})


def test_another_mode_than_append_is_refused(tmp_path):
    with pytest.raises(OptionError, match="need the output mode append"):
        writer(into_folders(tmp_path), mode=OutputMode.REPLACE).check()


def test_a_batch_without_a_number_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"trigger\(availableNow=True\)"):
        writer(into_folders(tmp_path), streaming=False).check()


def test_mistakes_are_found_without_a_sink_with_the_names_that_were_given(tmp_path):
    given_options = into_folders(tmp_path, **{"deadLetters.pth": "x", "partitonBy": "y"})
    found = DeadLetterOptions.find_errors(given_options, "krishiv-parquet")
    assert {fault.key for fault in found} == {"deadLetters.pth", "partitonBy"}
    assert not DeadLetterOptions.find_errors(into_folders(tmp_path), "krishiv-parquet")


def test_secrets_of_both_targets_are_known(monkeypatch):
    monkeypatch.setenv("DEAD_SECRET", "hunter2")
    options = {
        "kafka.bootstrap.servers": "h:1",
        "topic": "rows",
        "kafka.sasl.jaas.config": 'a required username="u" password="hunter1";',
        "deadLetters.format": "krishiv-kafka",
        "deadLetters.topic": "dead",
        "deadLetters.kafka.bootstrap.servers": "h:1",
        "deadLetters.kafka.sasl.jaas.config": "${env:DEAD_SECRET}",
    }
    source = find_format("krishiv-kafka")
    assert {"hunter2", options["kafka.sasl.jaas.config"]} <= source(options).known_secrets()
    assert "deadLetters.kafka.sasl.jaas.config" in DeadLetterOptions.secret_keys(options)


# --- columns


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("id", pa.int64()), ("_error", pa.string())], "needs a column _raw BINARY or STRING"),
        ([("id", pa.int64()), ("_raw", pa.binary())], "needs a column _error STRING"),
        ([("_raw", pa.binary()), ("_error", pa.string())], "no column besides"),
        (
            [("id", pa.int64()), ("_raw", pa.binary()), ("_error", pa.int64())],
            "'_error' is int64, but must be STRING",
        ),
        ([*[*COLUMNS][:3], pa.field("_source", pa.string())], "'_source' is string"),
        ([*COLUMNS, pa.field("_ERROR", pa.string())], "'_error' and '_ERROR' have one name"),
        ([*COLUMNS, pa.field("_error", pa.string())], "'_error' and '_error' have one name"),
        ([*COLUMNS, pa.field("_RAW", pa.binary())], "'_raw' and '_RAW' have one name"),
        ([*COLUMNS, pa.field("ID", pa.int64())], "'id' and 'ID' have one name"),
        ([*[*COLUMNS][:3], pa.field("_source", pa.struct([("tpic", pa.string())]))], "'_source'"),
    ],
)
def test_frames_without_the_columns_are_refused(columns, said, tmp_path):
    with pytest.raises(SchemaError, match=said):
        writer(into_folders(tmp_path), pa.schema(columns)).check()


@pytest.mark.parametrize("name", ["_raw_key", "_RAW_KEY"])
def test_a_bad_key_whose_value_would_be_lost_is_refused(tmp_path, name):
    columns = COLUMNS.append(pa.field(name, pa.binary()))
    with pytest.raises(SchemaError, match=r"select 'coalesce\(_raw, value\) AS _raw'"):
        writer(into_folders(tmp_path), columns).check()


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 5), st.booleans())
def test_each_row_is_in_one_of_both(flags, start, as_records):
    bad = [n for n, flag in enumerate(flags) if flag]
    batch = mixed(0, len(flags), bad).slice(start)
    counts = Counter()
    found = LetterColumns(COLUMNS, as_records=as_records).split(batch, counts)
    rows, letters = (column.to_pylist() for column in found.columns)
    for n, row, letter in zip(range(start, len(flags)), rows, letters, strict=True):
        assert row == (None if n in bad else {"id": n})
        assert (letter is not None) == (n in bad)
        assert n not in bad or letter["value"] == b"value %d" % n
    assert counts.total() == len([n for n in bad if n >= start])


def test_a_letter_has_its_position_reason_and_rule():
    batch = mixed(6, 2, [6])
    split = LetterColumns(COLUMNS, as_records=False).split(batch, Counter())
    assert split.column("dead_letters")[0].as_py() == {
        "key": None,
        "value": b"value 6",
        "topic": "t",
        "partition": 1,
        "offset": 6,
        "timestamp": None,
        "reason": "is wrong at 6",
        "rule": "small",
    }
    split = LetterColumns(COLUMNS, as_records=True).split(batch, Counter())
    letter = split.column("dead_letters")[0].as_py()
    assert (letter["key"], letter["value"]) == (None, b"value 6")
    headers = {header["key"]: header["value"].decode() for header in letter["headers"]}
    wanted = {"reason": "is wrong at 6", "rule": "small", "topic": "t", "partition": "1"}
    assert headers == {**wanted, "offset": "6"}


def test_counts_have_a_bounded_number_of_reasons():
    counts = add_counts([{f"r{n:03d}": 1 for n in range(80)}, {"r079": 5, "(others)": 7}])
    assert len(counts) == 51
    assert (counts["r079"], counts["(others)"]) == (6, 37)
    assert sum(counts.values()) == 92


# --- epochs


def letters(life, number, first, count, bad=(), **more):
    half = count // 2
    parts = mixed(first, half, bad), mixed(first + half, count - half, bad)
    life.run(number, *parts, **more)


def test_rows_and_letters_go_to_their_targets(tmp_path):
    life = LetterLife(tmp_path, **into_folders(tmp_path))
    life.check_start()
    letters(life, 0, 0, 10, [2, 7])
    letters(life, 1, 10, 10)
    letters(life, 1, 10, 10)  # the same epoch after a crash
    letters(life, 2, 20, 4, [20, 21, 22, 23])
    assert column_of(tmp_path / "rows", "id") == [n for n in range(20) if n not in {2, 7}]
    assert column_of(tmp_path / "dead", '"offset"') == [2, 7, 20, 21, 22, 23]
    names = duckdb.sql(f"DESCRIBE FROM read_parquet('{tmp_path}/rows/*.parquet')").fetchall()
    assert [name for name, *_ in names] == ["id"]


def test_one_intent_names_both_and_counts_reasons(tmp_path):
    life = LetterLife(tmp_path, **into_folders(tmp_path))
    letters(life, 0, 0, 10, [2, 3, 7])
    entries = (tmp_path / "checkpoint/krishiv").glob("0*.json")
    intents = [e for e in map(json.loads, (p.read_text() for p in entries)) if "staged" in e]
    (staged,) = intents[-1]["staged"]
    assert set(staged["parts"]) == {"rows", "dead_letters"}
    assert (staged["rows"], staged["bad"]) == (10, {"is wrong at N": 2, "small": 1})


# --- the limit


@pytest.mark.parametrize(
    ("text", "bad", "rows", "is_allowed"),
    [
        ("0", 0, 10, True),
        ("0", 1, 10, False),
        ("3", 3, 3, True),
        ("3", 4, 1000, False),
        ("1%", 10, 1000, True),
        ("1%", 11, 1000, False),
        ("0.5 %", 6, 1000, False),
        ("10%", 0, 0, True),
        ("100%", 5, 5, True),
        ("29%", 29, 100, True),  # 0.29 * 100 < 29
        ("0.7%", 7, 1000, True),
        ("29%", 30, 100, False),
    ],
)
def test_limits_are_inclusive(text, bad, rows, is_allowed):
    assert BadRecordLimit.parse(text).allows(bad, rows) is is_allowed


@pytest.mark.parametrize("limit", ["2", "25%"])
def test_an_epoch_beyond_the_limit_publishes_nothing_and_comes_again(tmp_path, limit):
    life = LetterLife(tmp_path, **into_folders(tmp_path, maxBadRecords=limit))
    letters(life, 0, 0, 10, [5, 6])
    said = re.compile(
        r"krishiv-parquet: 3 of the 10 rows of epoch 1 are bad records, and 'maxBadRecords' = "
        rf"'{limit}' allows fewer: is wrong at N \(2\); small \(1\)\. Nothing"
    )
    for _ in range(2):
        with pytest.raises(TooManyBadRecords, match=said) as error:
            letters(life, 1, 10, 10, [10, 11, 12])
        assert "\n" not in str(error.value)
    assert column_of(tmp_path / "rows", "id") == [n for n in range(10) if n not in {5, 6}]
    assert not [name for name in staged_in(tmp_path) if name.endswith(".staged")]
    life.options["maxBadRecords"] = "3"
    letters(life, 1, 10, 10, [10, 11, 12])
    assert len(column_of(tmp_path / "rows", "id")) == 15
    assert column_of(tmp_path / "dead", '"offset"') == [5, 6, 10, 11, 12]


def staged_in(place):
    return [name for _, _, names in os.walk(place) for name in names]


# --- one checkpoint, with and without dead letters


def without_letters(place, name):
    plain = pa.schema([("id", pa.int64())])
    if name == "krishiv-iceberg":
        return LetterLife(place, name, plain, **into_tables(place, letters=False))
    return LetterLife(place, name, plain, path=str(place / "rows"))


def into_tables(place, *, letters=True):
    dead = {key: text for key, text in into_folders(place).items() if key != "path"}
    return {"path": "db.rows", "warehouse": str(place / "wh"), **(dead if letters else {})}


def with_letters(place, name):
    options = into_tables(place) if name == "krishiv-iceberg" else into_folders(place)
    return LetterLife(place, name, **options)


def plain_rows(first, count):
    return pa.record_batch([pa.array(range(first, first + count))], names=["id"])


def rows_of(place, name):
    if name == "krishiv-iceberg":
        return sorted(table_of(place / "wh").scan().to_arrow()["id"].to_pylist())
    return column_of(place / "rows", "id")


@pytest.mark.long
@pytest.mark.parametrize("is_logged", [True, False])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("name", ["krishiv-parquet", "krishiv-iceberg"])
def test_a_query_that_gains_dead_letters_is_refused(tmp_path, name, epochs, is_logged):
    """Its last epoch is in the table, and Spark may not know that."""
    life = without_letters(tmp_path, name)
    for number in range(epochs):
        life.run(number, plain_rows(10 * number, 10), is_logged=is_logged)
    restart()
    gained = with_letters(tmp_path, name)
    with pytest.raises(CheckpointMismatch, match="checkpoint copy"):
        gained.check_start()
    again = epochs if is_logged else epochs - 1
    with pytest.raises(PlanningFailed, match="would now write with 'deadLetters"):
        gained.run(again, mixed(10 * again, 10))
    assert rows_of(tmp_path, name) == [*range(10 * epochs)]
    without_letters(tmp_path, name).run(again, plain_rows(10 * again, 10))  # as before
    assert rows_of(tmp_path, name) == [*range(10 * again + 10)]


@pytest.mark.parametrize("is_logged", [True, False])
@pytest.mark.parametrize("name", ["krishiv-parquet", "krishiv-iceberg"])
def test_a_query_that_drops_dead_letters_is_refused(tmp_path, name, is_logged):
    life = with_letters(tmp_path, name)
    for number in range(2):
        life.run(number, mixed(10 * number, 10), is_logged=is_logged)
    restart()
    again = 2 if is_logged else 1
    with pytest.raises(CheckpointMismatch, match="would now write without 'deadLetters"):
        without_letters(tmp_path, name).check_start()
    with pytest.raises(PlanningFailed, match="would now write without 'deadLetters"):
        without_letters(tmp_path, name).run(again, plain_rows(10 * again, 10))
    assert rows_of(tmp_path, name) == [*range(20)]
    with_letters(tmp_path, name).run(again, mixed(10 * again, 10))
    assert rows_of(tmp_path, name) == [*range(10 * again + 10)]


@pytest.mark.parametrize("name", ["krishiv-parquet", "krishiv-iceberg"])
def test_a_copied_checkpoint_gains_dead_letters(tmp_path, name):
    life = without_letters(tmp_path, name)
    for number in range(2):
        life.run(number, plain_rows(10 * number, 10))
    words = ["checkpoint", "copy", str(tmp_path / "checkpoint"), str(tmp_path / "new")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    place = tmp_path / "new"
    gained = with_letters(tmp_path, name)
    gained.checkpoint = place
    gained.options["checkpointLocation"] = str(place)
    gained._query = json.loads((place / "metadata").read_text())["id"]
    letters(gained, 2, 20, 10, [25])
    assert rows_of(tmp_path, name) == [n for n in range(30) if n != 25]
    assert column_of(tmp_path / "dead", '"offset"') == [25]


# --- one name of numbered batches, with and without dead letters


def run_batch(place, name, number, first, *, letters, **more):
    """A batch of ten rows, of which the first is a dead letter if there may be some."""
    restart()
    open_log.cache_clear()
    if name == "krishiv-iceberg":
        source, options = IcebergDataSource, into_tables(place, letters=letters)
    else:
        source = ParquetDataSource
        options = into_folders(place) if letters else {"path": str(place / "rows")}
    options |= {"checkpointLocation": str(place / "checkpoint")}
    numbers = [*range(first, first + 10)]

    def to_row(n):
        return (n, b"value", "bad" if n == first else None) if letters else (n,)

    columns = [("id", pa.int64()), ("_raw", pa.binary()), ("_error", pa.string())]
    schema = pa.schema(columns if letters else columns[:1])
    options |= {**make_job_options("load", number), **more}
    run_job(source, options, numbers, schema=schema, row=to_row)


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("gains", [True, False])
@pytest.mark.parametrize("name", ["krishiv-parquet", "krishiv-iceberg"])
def test_a_numbered_batch_that_gains_or_drops_dead_letters_is_refused(
    tmp_path, name, gains, number
):
    """The target knows the batch by another id, and may be asked for it again after a crash."""
    run_batch(tmp_path, name, 1, 10, letters=not gains)
    before = rows_of(tmp_path, name)
    said = f"would be written {'with' if gains else 'without'} them"
    with pytest.raises(PlanningFailed, match=f"CheckpointMismatch: .*{said}"):
        run_batch(tmp_path, name, number, 10 * number, letters=gains)
    assert rows_of(tmp_path, name) == before
    for again in (1, 2, 2, 3):  # as before
        run_batch(tmp_path, name, again, 10 * again, letters=not gains)
    lacking = set() if gains else {10, 20, 30}
    assert rows_of(tmp_path, name) == [n for n in range(10, 40) if n not in lacking]
    run_batch(tmp_path, name, 4, 40, letters=gains, txnAppId="other")
    assert len(rows_of(tmp_path, name)) == (39 if gains else 37)


# --- the command line


def show(*words):
    done = CliRunner().invoke(main, ["dead-letters", "show", *map(str, words)])
    return done.exit_code, done.output


def test_a_command_counts_letters_by_reason(tmp_path):
    life = LetterLife(tmp_path, **into_folders(tmp_path))
    letters(life, 0, 0, 10, [2, 3, 7])
    letters(life, 1, 10, 4, [11])
    code, text = show(tmp_path / "checkpoint", "--values", 1)
    assert code == 0
    assert text.splitlines() == [
        "4 dead letters",
        "        3  is wrong at N",
        "           for example topic t, partition 1, offset 2: is wrong at 2",
        "           value 2",
        "        1  small",
        "           for example topic t, partition 1, offset 3: is wrong at 3",
        "           value 3",
    ]
    code, text = show(tmp_path / "dead", "--json")
    assert [(each["name"], each["count"]) for each in json.loads(text)] == [
        ("is wrong at N", 3),
        ("small", 1),
    ]


def test_status_counts_letters_of_all_epochs(tmp_path):
    life = LetterLife(tmp_path, **into_folders(tmp_path))
    letters(life, 0, 0, 10, [2, 3, 7])
    letters(life, 1, 10, 10, [10, 11])
    letters(life, 1, 10, 10, [10, 11], is_logged=False)  # again, and counted once
    letters(life, 2, 20, 4)
    done = CliRunner().invoke(main, ["status", str(tmp_path / "checkpoint")])
    lines = done.output.splitlines()
    at = lines.index("dead        0 of the 4 rows of the newest epoch, 5 of all epochs")
    assert lines[at + 1 : at + 3] == ["            4  is wrong at N", "            1  small"]
    done = CliRunner().invoke(main, ["status", str(tmp_path / "checkpoint"), "--json"])
    assert json.loads(done.output)["log"]["letters"] == {
        "rows": 4,
        "bad": {},
        "total": {"is wrong at N": 4, "small": 1},
    }


def test_a_command_for_a_query_without_letters_is_one_line(tmp_path):
    life = without_letters(tmp_path, "krishiv-parquet")
    life.run(0, plain_rows(0, 10))
    code, text = show(tmp_path / "checkpoint")
    assert (code, text.count("\n")) == (1, 1)
    assert "has written no dead letters" in text
    code, text = show(tmp_path / "rows")
    assert "the rows are no dead letters: they have the columns id" in text
    assert show()[0] == 2


# --- a dead-letter target that fails


@pytest.mark.parametrize("pages", range(5))
def test_a_full_disk_of_the_dead_letters_loses_and_repeats_nothing(disk, tmp_path, pages):
    """The room ends at the start of the epoch, in a task, or at a rename."""
    small = disk("size=1m")
    options = into_folders(tmp_path) | {"deadLetters.path": f"{small.folder}/dead"}
    life = LetterLife(tmp_path, **options)
    letters(life, 0, 0, 10, [1])
    fill(small, pages=pages)
    for _ in range(2):  # the second start is as full as the first
        with suppress(PlanningFailed, CommitUnknown, OSError):
            letters(life, 1, 10, 10, [12, 13])
        rows = column_of(tmp_path / "rows", "id")
        dead = column_of(small.folder / "dead", '"offset"')
        assert (len(rows), len(dead)) in {(9, 1), (17, 3)}, "one of two targets has the epoch"
    (small.folder / "filler").unlink()
    for number in (1, 2):
        letters(life, number, 10 * number, 10, [12, 13])
    assert column_of(tmp_path / "rows", "id") == [n for n in range(30) if n not in {1, 12, 13}]
    assert column_of(small.folder / "dead", '"offset"') == [1, 12, 13]


def test_a_full_disk_is_named_by_the_option_of_the_dead_letters(tmp_path):
    _, parsed = find_format("krishiv-parquet").open_sink(into_folders(tmp_path))
    said = rf"'path' \({tmp_path}/rows\).*'deadLetters.path' \({tmp_path}/dead\)"
    with pytest.raises(StorageError, match=said), explain_disk_full(parsed):
        raise OSError(errno.ENOSPC, "full")
