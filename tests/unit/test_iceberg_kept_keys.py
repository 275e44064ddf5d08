"""The key columns of upserts are kept with the table, and other ones are refused."""

import logging
import re

import pyarrow as pa
import pytest
from fan_life import Fan, ids_in, into_iceberg
from iceberg_life import IcebergLife, at_next_commit, catalog_of, table_of
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from krishiv_spark.errors import CommitRejected, OptionError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.sinks.base import OutputMode

BY_ID = {"mode": "upsert", "keyColumns": "id"}
BY_K = {"mode": "upsert", "keyColumns": "k"}
BY_BOTH = {"mode": "upsert", "keyColumns": "k,id"}
ALLOWED = {"allowMixedKeys": "true"}
KEY = "krishiv.upsert.key"


def rows(*pairs):
    return pa.table({"id": [id_ for id_, _ in pairs], "k": [k for _, k in pairs]})


def there(folder):
    found = table_of(folder).scan().to_arrow()
    return sorted(zip(found["id"].to_pylist(), found["k"].to_pylist(), strict=True))


def properties(folder):
    return table_of(folder).properties


def forget_keys(folder):
    """The table as an earlier version has left it."""
    with table_of(folder).transaction() as transaction:
        transaction.remove_properties(
            *(name for name in properties(folder) if name.startswith(KEY))
        )


@pytest.fixture
def upserted(tmp_path):
    """A query that has upserted by `id`."""
    IcebergLife(tmp_path, **BY_ID).epoch(0, rows((1, 10), (2, 20)))
    return tmp_path


# --- under one checkpoint


def test_the_table_keeps_the_key_of_upserts_by_the_ids_of_its_columns(upserted):
    number = str(table_of(upserted).schema().find_field("id").field_id)
    assert properties(upserted)[KEY] == properties(upserted)[f"{KEY}.query-1"] == number


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (BY_K, "'keyColumns' = 'k', but table db.rows is upserted by 'id'"),
        (BY_BOTH, "'keyColumns' = 'k,id', but table db.rows is upserted by 'id'"),
        ({}, "db.rows is upserted by 'id', and 'mode' is 'append'"),
    ],
    ids=["other", "more", "append"],
)
def test_another_key_under_a_checkpoint_is_refused_before_any_row(upserted, given, message):
    life, before = IcebergLife(upserted, **given), table_of(upserted).metadata
    with pytest.raises(OptionError, match=re.escape(message)):
        life.plan(rows((3, 10)))
    assert table_of(upserted).metadata == before
    IcebergLife(upserted, **BY_ID).epoch(1, rows((1, 11)))
    assert there(upserted) == [(1, 11), (2, 20)]


def test_columns_in_another_order_are_the_same_key(tmp_path):
    IcebergLife(tmp_path, **BY_BOTH).epoch(0, rows((1, 10)))
    IcebergLife(tmp_path, mode="upsert", keyColumns="id,k").epoch(1, rows((1, 10), (1, 11)))
    assert there(tmp_path) == [(1, 10), (1, 11)]


def test_a_key_column_that_is_renamed_stays_the_key(upserted):
    with table_of(upserted).update_schema() as update:
        update.rename_column("id", "number")
    renamed = pa.table({"number": [1], "k": [11]})
    IcebergLife(upserted, mode="upsert", keyColumns="number").epoch(1, renamed)
    assert table_of(upserted).scan().to_arrow().num_rows == 2
    with pytest.raises(OptionError, match="upserted by 'number'"):
        IcebergLife(upserted, **BY_K).plan(renamed)


def test_a_key_column_that_was_dropped_is_named_by_its_id(upserted):
    with table_of(upserted).update_schema() as update:
        update.delete_column("id")
    with pytest.raises(OptionError, match=re.escape("'a dropped column (1)'")):
        IcebergLife(upserted, **BY_K).plan(pa.table({"k": [11]}))


def test_a_key_is_changed_by_the_option_once(upserted):
    IcebergLife(upserted, **BY_K, **ALLOWED).epoch(1, rows((3, 10)))
    IcebergLife(upserted, **BY_K).epoch(2, rows((4, 10)))
    assert there(upserted) == [(2, 20), (4, 10)]
    with pytest.raises(OptionError, match="upserted by 'k'"):
        IcebergLife(upserted, **BY_ID).plan(rows((1, 1)))


def test_an_append_between_upserts_needs_the_option(upserted):
    IcebergLife(upserted, **ALLOWED).epoch(1, rows((3, 30)))
    IcebergLife(upserted, **BY_ID).epoch(2, rows((3, 31)))
    assert there(upserted) == [(1, 10), (2, 20), (3, 31)]


# --- other queries and jobs


def test_a_new_query_with_another_key_or_none_is_refused(upserted):
    for given in (BY_K, {}):
        with pytest.raises(OptionError, match="is upserted by 'id'"):
            IcebergLife(upserted, query="query-2", **given).plan(rows((3, 10)))
    IcebergLife(upserted, query="query-2", **BY_ID).epoch(0, rows((1, 12)))
    assert there(upserted) == [(1, 12), (2, 20)]


def test_a_batch_without_a_number_is_refused_before_any_row(upserted):
    for given in (BY_K, {}):
        life = IcebergLife(upserted, query="batch-1", streaming=False, **given)
        with pytest.raises(OptionError, match="is upserted by 'id'"):
            life.plan(rows((3, 10)))
    IcebergLife(upserted, query="batch-1", streaming=False, **ALLOWED).epoch(0, rows((3, 30)))
    assert there(upserted) == [(1, 10), (2, 20), (3, 30)]


def test_a_batch_without_a_number_records_its_key_in_a_table_of_another_program(tmp_path):
    catalog_of(tmp_path).create_namespace("db")
    catalog_of(tmp_path).create_table("db.rows", rows((1, 1)).schema)
    IcebergLife(tmp_path, query="batch-1", streaming=False, **BY_ID).epoch(0, rows((1, 10)))
    assert [name for name in properties(tmp_path) if name.startswith("krishiv.")] == [KEY]
    assert [*table_of(tmp_path).refs()] == ["main"]
    for given in (BY_K, {}):
        with pytest.raises(OptionError, match="is upserted by 'id'"):
            IcebergLife(tmp_path, query="batch-2", streaming=False, **given).plan(rows((3, 10)))


def test_of_two_first_upserts_by_other_keys_one_is_refused(tmp_path, monkeypatch):
    """The table has no key when both are planned."""
    first, other = (
        IcebergLife(tmp_path, **BY_ID),
        IcebergLife(tmp_path, query="query-2", **BY_K),
    )
    staged = first.stage(0, rows((1, 10)))

    def lose(commit):
        other.epoch(0, rows((2, 10)))
        return commit()

    first.plan(rows((1, 10)))
    other.plan(rows((1, 10)))
    at_next_commit(monkeypatch, lose)
    with pytest.raises(CommitRejected, match="upserted by 'k'"):
        first.publish(0, staged, rows((1, 10)))
    assert there(tmp_path) == [(2, 10)]


# --- what goes on without a new option


def test_a_first_upsert_may_follow_appends(tmp_path):
    IcebergLife(tmp_path, query="batch-1", streaming=False).epoch(0, rows((1, 10)))
    IcebergLife(tmp_path, **BY_ID).epoch(0, rows((1, 11)))
    assert there(tmp_path) == [(1, 11)]


def test_queries_of_an_earlier_version_go_on(upserted, caplog):
    """One upserts by another key, one appends; each has rows in the table already."""
    other = {"by": IcebergLife(upserted, query="by", **BY_K, **ALLOWED)}
    other["add"] = IcebergLife(upserted, query="add", **ALLOWED)
    for number, life in enumerate(other.values(), 3):
        life.epoch(0, rows((number, number * 10)))
    forget_keys(upserted)
    IcebergLife(upserted, **BY_ID).epoch(1, rows((1, 11)))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for number, life in enumerate(other.values(), 5):
            life.options.pop("allowMixedKeys")
            life.epoch(1, rows((number, number * 10)))
            life.epoch(2, rows((number + 2, number * 10 + 2)))
    IcebergLife(upserted, **BY_ID).epoch(2, rows((1, 12)))
    assert there(upserted)[0] == (1, 12)
    assert len(there(upserted)) == 8
    warnings = [one.getMessage() for one in caplog.records if "allowMixedKeys" in one.getMessage()]
    assert [text.split()[2] for text in warnings] == ["by", "add"]


def test_the_first_upsert_of_this_version_records_the_key(upserted):
    forget_keys(upserted)
    IcebergLife(upserted, **BY_ID).epoch(1, rows((1, 11)))
    with pytest.raises(OptionError, match="upserted by 'id'"):
        IcebergLife(upserted, **BY_K).plan(rows((1, 1)))


def test_a_table_that_was_emptied_has_no_key(upserted):
    table_of(upserted).delete("id > 0")
    IcebergLife(upserted, **BY_K).epoch(1, rows((3, 30)))
    IcebergLife(upserted, **BY_K).epoch(2, rows((4, 30)))
    assert there(upserted) == [(4, 30)]


def test_a_table_that_is_overwritten_forgets_its_key(upserted):
    replace = {"streaming": False, "output": OutputMode.REPLACE}
    IcebergLife(upserted, query="batch-1", **replace).epoch(0, rows((7, 70)))
    assert not any(name.startswith(KEY) for name in properties(upserted))
    IcebergLife(upserted, query="batch-2", streaming=False).epoch(0, rows((8, 80)))
    assert there(upserted) == [(7, 70), (8, 80)]


# --- identifier fields of other programs


@pytest.fixture
def identified(tmp_path):
    """A table whose identifier field another program has set to `id`, with a row."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "k", LongType()),
        identifier_field_ids=[1],
    )
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("db")
    table = catalog.create_table("db.rows", schema)
    arrow = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("k", pa.int64())])
    table.append(pa.table({"id": [1], "k": [10]}, schema=arrow))
    return tmp_path


def test_identifier_fields_are_the_key_of_a_new_query(identified):
    with pytest.raises(OptionError, match="upserted by 'id'"):
        IcebergLife(identified, **BY_K).plan(required_rows((3, 10)))
    IcebergLife(identified, **BY_ID).epoch(0, required_rows((1, 11)))
    assert there(identified) == [(1, 11)]
    assert list(table_of(identified).schema().identifier_field_ids) == [1]


def test_identifier_fields_alone_refuse_no_append(identified):
    IcebergLife(identified).epoch(0, required_rows((2, 20)))
    assert there(identified) == [(1, 10), (2, 20)]


def required_rows(*pairs):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("k", pa.int64())])
    return rows(*pairs).cast(schema)


def test_a_property_that_is_no_list_of_ids_is_named(upserted):
    with table_of(upserted).transaction() as transaction:
        transaction.set_properties({f"{KEY}.query-1": "id"})
    with pytest.raises(OptionError, match="must be the ids of the key columns"):
        IcebergLife(upserted, **BY_ID).plan(rows((1, 1)))


# --- routes of krishiv-fanout


def refused(fan, number, message):
    with pytest.raises(PlanningFailed, match=message):
        fan.run(number, 20, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "upsert", "keyColumns": "day"}, "'keyColumns' = 'day', but table db.t"),
        ({}, "'mode' is 'append'"),
    ],
    ids=["other", "append"],
)
def test_another_key_of_a_route_is_refused_before_the_log_has_an_owner(tmp_path, given, message):
    upsert = into_iceberg(tmp_path, mode="upsert", keyColumns="id")
    Fan(tmp_path, **upsert).run(0, 0, 10)
    log = sorted((tmp_path / "checkpoint").rglob("*"))
    refused(Fan(tmp_path, **into_iceberg(tmp_path, **given)), 1, message)
    assert [path for path in sorted((tmp_path / "checkpoint").rglob("*")) if path not in log] == [
        tmp_path / "checkpoint" / "offsets" / "1"
    ]
    Fan(tmp_path, **upsert).run(1, 5, 10)
    assert ids_in(tmp_path) == list(range(15))


def test_an_intent_is_finished_by_its_own_key_and_the_next_epoch_is_refused(tmp_path, monkeypatch):
    """The first epoch of all: the table has no key yet when the options change."""
    fan = Fan(tmp_path, **into_iceberg(tmp_path, mode="upsert", keyColumns="id"))
    fan.die_behind_the_intent(monkeypatch, 0, 0, 10)
    other = Fan(tmp_path, **into_iceberg(tmp_path, mode="upsert", keyColumns="day"))
    other.run(0, 0, 10)
    assert ids_in(tmp_path) == list(range(10))
    refused(other, 1, "upserted by 'id'")
