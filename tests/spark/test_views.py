"""Views that are kept by changes: what they show, what they refuse, who may keep them."""

import datetime as dt
from decimal import Decimal

import pytest
from iceberg_tables import catalog, compact, newest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import krishiv_spark
from krishiv_spark.errors import BatchMismatch, CheckpointMismatch, OptionError, SchemaError

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

SCHEMA = "g string, day timestamp, x bigint, d decimal(12,2), e double, _weight int"
COLUMNS = {
    "n": "count(*)",
    "some": "count(x)",
    "total": "sum(x)",
    "mean": "avg(x)",
    "money": "sum(d)",
    "price": "avg(d)",
    "first": "min(x)",
    "dearest": "max(d)",
    "lowest": "min(e)",
    "latest": "max(day)",
}
BY = ("g", "day")
AT = dt.datetime(2013, 1, 1, 12, tzinfo=dt.timezone.utc)


class View:
    """A table ``db.t``, whose batches a test brings by hand."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        self.options = {"by": BY, "columns": COLUMNS, "warehouse": str(folder), "query": "q"}

    def keeper(self, **given):
        return krishiv_spark.aggregate("db.t", **{**self.options, **given})

    def bring(self, number, *rows, **given):
        self.keeper(**given)(self.changes(*rows), number)

    def changes(self, *rows):
        return self.spark.createDataFrame(list(rows), SCHEMA)

    def shown(self):
        reader = self.spark.read.format("krishiv-iceberg").option("warehouse", str(self.folder))
        return reader.load("db.t").select(*BY, *COLUMNS)

    def numbers(self):
        """Of each group that has rows."""
        rows = catalog(self.folder).load_table("db.t").scan().to_arrow().to_pylist()
        return {row["g"]: row["n"] for row in rows}


@pytest.fixture
def view(spark, tmp_path):
    return View(spark, tmp_path)


def row(g, x=1, d="1.00", weight=1, e=0.5):
    return (g, AT, x, None if d is None else Decimal(d), e, weight)


# --- what it shows

OLD = [row("a", 1, "0.10"), row("a", None, "0.25"), row("b", 2, None, e=float("nan")), row(None, 7)]
MORE = [row("a", -5, "3.33", e=-1.5), row("a", 2**40, "0.01"), row("b", None, None, e=None)]
GONE = [OLD[0], OLD[3]]


@pytest.mark.long  # 36 s; test_view_crash.py compares each snapshot with a recomputation
def test_it_shows_what_spark_s_own_sql_gives(view):
    view.bring(0, *OLD)
    view.bring(1, *MORE, *[(*one[:-1], -1) for one in GONE])
    left = view.changes(*[one for one in OLD if one not in GONE], *MORE)
    expected = left.groupBy(*BY).agg(*(f.expr(text).alias(name) for name, text in COLUMNS.items()))
    assert [(c.name, c.dataType) for c in view.shown().schema] == [
        (c.name, c.dataType) for c in expected.schema
    ]
    assert sorted(map(repr, view.shown().collect())) == sorted(map(repr, expected.collect()))


def test_a_group_goes_with_its_last_row(view):
    view.bring(0, row("a"), row(None))
    view.bring(1, row("a", weight=-1), row("b"))
    assert view.numbers() == {None: 1, "b": 1}
    view.bring(2, row("b", weight=-1), row(None, weight=-1))
    assert view.numbers() == {}


def test_decimals_of_all_digits_are_added_exactly(view):
    kind = f.col("x").cast("decimal(38,20)") + f.expr("0.00000000000000000001BD")
    given = {"by": "g", "columns": {"total": "sum(x)"}}
    for number in range(2):
        rows = view.changes(row("a", 10**17)).withColumn("x", kind.cast("decimal(38,20)"))
        view.keeper(**given)(rows, number)
    (total,) = catalog(view.folder).load_table("db.t").scan().to_arrow()["total"].to_pylist()
    assert total == 2 * (10**17 + Decimal("1e-20"))


def test_a_group_keeps_its_key_whatever_the_session_writes_of_decimals(view):
    kind, columns = f.expr("x * 0.00000001BD").cast("decimal(18,8)"), {"n": "count(*)"}
    rows = view.changes(row("a", 0), row("a", -12), row("a", 10**9)).withColumn("x", kind)
    for number, ansi in enumerate(["true", "false"]):
        view.spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            view.keeper(by="x", columns=columns)(rows.select("*"), number)
        finally:
            view.spark.conf.unset("spark.sql.ansi.enabled")
    found = catalog(view.folder).load_table("db.t").scan().to_arrow().to_pylist()
    assert sorted((float(row["x"]), row["n"]) for row in found) == [(-1.2e-7, 2), (0, 2), (10, 2)]


def test_values_of_any_type_are_counted(view):
    some = f.when(f.col("x") > 1, f.create_map("g", "x"))
    rows = view.changes(row("a", 1), row("a", 2)).withColumn("x", some)
    view.keeper(columns={"n": "count(x)"})(rows, 0)
    assert view.numbers() == {"a": 1}


# --- once


def test_a_batch_that_comes_again_is_skipped(view):
    for number in (0, 0, 1, 1):
        view.bring(number, row("a"))
    assert view.numbers() == {"a": 2}


@pytest.mark.parametrize("others", [[row("a"), row("b")], [row("a", 2)], [row("a", None)], []])
def test_a_batch_of_its_number_with_other_changes_is_not_skipped(view, others):
    view.bring(0, row("a"))
    with pytest.raises(BatchMismatch, match=f"batch 0 of q .* other rows: {len(others)} now"):
        view.bring(0, *others)
    view.bring(0, *others, txnCompare="false")
    assert view.numbers() == {"a": 1}


def test_an_empty_batch_is_a_batch(view):
    view.bring(0)
    view.bring(1, row("a"))
    view.bring(2)
    view.bring(3, row("a"))
    assert view.numbers() == {"a": 2}


def meanwhile(view, monkeypatch, *events):
    """Each event happens once, between a look at the old totals and the commit of new ones."""
    kind, waiting = type(view.keeper()), list(events)
    write = kind._write

    def _write(self, changes, job, base):
        if waiting:
            waiting.pop(0)()
        write(self, changes, job, base)

    monkeypatch.setattr(kind, "_write", _write)


def test_totals_that_somebody_else_s_snapshot_outdates_are_worked_out_again(view, monkeypatch):
    view.bring(0, row("a"), row("b"))
    meanwhile(view, monkeypatch, lambda: compact(view.folder), lambda: compact(view.folder))
    view.bring(1, row("a"))
    assert view.numbers() == {"a": 2, "b": 1}


def test_of_two_drivers_with_one_batch_one_brings_it(view, monkeypatch):
    view.bring(0, row("a"))
    meanwhile(view, monkeypatch, lambda: view.bring(1, row("a")))
    view.bring(1, row("a"))
    assert view.numbers() == {"a": 2}


def test_of_two_new_queries_on_one_table_one_is_refused(view, monkeypatch):
    meanwhile(view, monkeypatch, lambda: view.bring(0, row("a")))
    with pytest.raises(
        CheckpointMismatch, match="maintained by another query or checkpoint than other"
    ):
        view.bring(0, row("a"), query="other")
    assert view.numbers() == {"a": 1}


# --- what is refused


def test_a_table_that_lacks_batches_is_refused(view):
    view.bring(0, row("a"))
    catalog(view.folder).drop_table("db.t")
    with pytest.raises(CheckpointMismatch, match=r"batch 1 of q does not follow .* new checkpoint"):
        view.bring(1, row("a"))


def test_a_table_that_was_rolled_back_is_refused(view):
    for number in range(2):
        view.bring(number, row("a"))
    table = catalog(view.folder).load_table("db.t")
    table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()
    with pytest.raises(CheckpointMismatch, match=r"does not follow the newest batch in db\.t, 0: "):
        view.bring(2, row("a"))


def test_a_table_that_was_rolled_back_to_a_compaction_is_refused_when_all_before_has_expired(view):
    view.bring(0, row("a"))
    first, kept = newest(view.folder), compact(view.folder)
    view.bring(1, row("a"))
    table = catalog(view.folder).load_table("db.t")
    table.maintenance.expire_snapshots().by_id(first).commit()
    view.bring(2, row("a"))  # nothing of the query is missing
    table.refresh().manage_snapshots().rollback_to_snapshot(kept).commit()
    with pytest.raises(CheckpointMismatch, match=r"does not follow .* rolled back"):
        view.bring(3, row("a"))


def test_a_checkpoint_that_was_rolled_back_is_refused(view):
    for number in range(2):
        view.bring(number, row("a"))
    with pytest.raises(CheckpointMismatch, match="batch 0 of q comes after batch 1"):
        view.bring(0, row("a"))


@pytest.mark.parametrize(
    ("given", "kind", "advice"),
    [
        ({"by": "gg"}, OptionError, "'by' names 'gg', an unknown column; did you mean 'g'"),
        ({"columns": {"a": "sum(X)"}}, OptionError, r"'a' = 'sum\(X\)' names 'X', an unknown"),
        ({"by": "e"}, SchemaError, "'by': 'e' is double; cast it"),
        ({"columns": {"a": "avg(e)"}}, SchemaError, "'e' is double; sums are exact: cast it to"),
        ({"columns": {"a": "sum(g)"}}, SchemaError, "'g' is string; sums are exact"),
    ],
)
def test_what_does_not_fit_the_changes_is_refused(view, given, kind, advice):
    with pytest.raises(kind, match=advice):
        view.bring(0, row("a"), **given)
    assert not (view.folder / "catalog.db").exists()


def test_rows_without_a_weight_are_refused(view):
    with pytest.raises(OptionError, match=r"no column '_weight', .* 'readChanges' = 'true'"):
        view.keeper()(view.changes(row("a")).drop("_weight"), 0)


def test_another_table_is_refused(view):
    view.bring(0, row("a"))
    with pytest.raises(OptionError, match=r"db.t is the view {.*}, and cannot become the view {"):
        view.bring(1, row("a"), columns={"n": "count(*)"})
    rows = view.changes(row("a")).write.format("krishiv-iceberg").mode("append")
    rows.option("warehouse", str(view.folder)).save("db.other")
    with pytest.raises(OptionError, match=r"db.other was not made by this function, and cannot"):
        krishiv_spark.aggregate("db.other", **view.options)(view.changes(row("a")), 0)


@pytest.mark.parametrize(
    ("rows", "advice"),
    [
        ([row("a", weight=-1)], "more rows of group 1:a.* were deleted than inserted"),
        (
            [row("a", 1), row("a", 2), row("a", 3, weight=-1)],
            "more rows of group .* were deleted than",
        ),
        ([row("a", weight=2)], "a change has _weight = 2, which must be 1 or -1"),
        ([row("a", 2**63 - 1), row("a", 1)], r"'total' = 'sum\(x\)' of .* more digits than bigint"),
    ],
)
def test_changes_that_do_not_add_up_fail_their_batch(view, rows, advice):
    # PySpark 4.0 hands on as it is an error that names itself as its cause.
    with pytest.raises((PySparkException, Py4JJavaError), match=advice):
        view.bring(0, *rows)
    assert catalog(view.folder).load_table("db.t").current_snapshot() is None
