"""Results in memory whose rows take the place of others."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_jobs import make_job_options, run_job

from krishiv_spark import memory_clear, memory_table
from krishiv_spark.errors import OptionError
from krishiv_spark.formats import MemoryDataSource
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.memory.entry import decode, encode
from krishiv_spark.memory.results import upsert

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])
ROWS = st.lists(st.tuples(st.none() | st.sampled_from("abc"), st.integers(0, 99)), max_size=8)


def body(rows, schema=SCHEMA):
    columns = zip(*rows, strict=True) if rows else [[], []]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return encode([pa.record_batch(arrays, schema=schema)], schema).body


def rows_of(encoded):
    found = [tuple(row.values()) for batch in decode(encoded.body) for row in batch.to_pylist()]
    assert encoded.count == len(found)
    return found


@given(st.lists(ROWS, max_size=4), st.lists(ROWS, max_size=3))
def test_of_each_key_the_last_row_stays(held, staged):
    found = upsert(map(body, held), map(body, staged), ["key"], SCHEMA)
    wanted = {key: (key, n) for part in (*held, *staged) for key, n in part}
    assert sorted(rows_of(found), key=repr) == sorted(wanted.values(), key=repr)


def test_a_column_that_is_new_is_null_in_older_rows():
    wider = pa.schema([*SCHEMA, ("m", pa.int64())])
    new = encode([pa.record_batch([["b"], [2], [3]], schema=wider)], wider).body
    found = upsert([body([("a", 1)])], [new], ["key"], wider)
    assert rows_of(found) == [("a", 1, None), ("b", 2, 3)]


def job(number, numbers, **options):
    given = {"path": options.pop("path"), "mode": "upsert", "keyColumns": "id"}
    run_job(MemoryDataSource, {**given, **make_job_options("load", number), **options}, numbers)


def test_a_batch_is_upserted_once():
    name = f"r-{uuid.uuid4()}"
    for number, rows in [(0, range(6)), (1, range(4, 9)), (1, range(4, 9)), (2, [0])]:
        job(number, rows, path=name)
    assert sorted(memory_table(name)["id"].to_pylist()) == list(range(9))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keyColumns": "text"}, "is upserted by 'id', and this query upserts by 'text'"),
        ({"mode": "append"}, "is upserted by 'id', and this query appends"),
    ],
    ids=["other", "append"],
)
def test_another_key_is_refused_unless_it_is_allowed(options, said):
    name = f"r-{uuid.uuid4()}"
    job(0, range(6), path=name)
    with pytest.raises(PlanningFailed, match=said):
        job(1, range(3), path=name, **options)
    job(1, range(4, 9), path=name)
    job(2, [20], path=name, allowMixedKeys="true", **options)
    assert sorted(memory_table(name)["id"].to_pylist()) == [*range(9), 20]


def test_a_first_upsert_may_follow_appends():
    name = f"r-{uuid.uuid4()}"
    job(0, range(6), path=name, mode="append")
    job(1, range(4, 9), path=name)
    assert sorted(memory_table(name)["id"].to_pylist()) == list(range(9))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keyColumns": ""}, "needs the option 'keyColumns'"),
        ({"keyColumns": "idd"}, "names 'idd', but there are id, text"),
        ({"mode": "upsrt"}, "mode"),
    ],
)
def test_what_cannot_be_upserted_is_refused(options, said):
    with pytest.raises((PlanningFailed, OptionError), match=said):
        job(0, range(3), path="x", **options)


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("first", [make_job_options("other", 7), {}], ids=["numbered", "plain"])
def test_rows_of_others_are_not_taken_away(first, mode):
    name = f"r-{uuid.uuid4()}"
    run_job(MemoryDataSource, {"path": name, **first}, range(3))
    with pytest.raises(PlanningFailed, match=f"'{name}' has rows of .* 'load' cannot be added to"):
        job(0, range(3, 5), path=name, mode=mode)
    assert sorted(memory_table(name)["id"].to_pylist()) == list(range(3))
    memory_clear(name)
    job(0, range(3, 5), path=name, mode=mode)
    job(1, range(5, 7), path=name, mode=mode)
    assert sorted(memory_table(name)["id"].to_pylist()) == list(range(3, 7))


def test_batches_without_a_number_are_refused():
    options = {"path": "x", "mode": "upsert", "keyColumns": "id"}
    with pytest.raises(PlanningFailed, match="need numbers"):
        run_job(MemoryDataSource, options, range(3))
