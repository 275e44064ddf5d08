"""The definition of a view by a user."""

import pytest

import krishiv_spark
from krishiv_spark.errors import OptionError
from krishiv_spark.sinks.iceberg.views.definition import ViewDefinition


def test_what_is_kept_is_kept_once_for_each_column():
    columns = {"a": "SUM( x )", "b": "avg(x)", "c": "min(`y z`)", "d": "max(y z)", "e": "count(*)"}
    view = ViewDefinition.of("g, h", columns)
    assert view.by == ("g", "h")
    assert view.hidden == ["_key", "_rows", "_count_x", "_sum_x", "_values_y z"]
    assert view.text == ViewDefinition.of(["g", "h"], columns).text


@pytest.mark.parametrize(
    ("by", "columns", "advice"),
    [
        ("g", {"a": "summ(x)"}, "its function is unknown; did you mean 'sum'"),
        ("g", {"a": "fold(x)"}, "its function is unknown; known: avg, count, max, min, sum"),
        ("g", {"a": "x"}, "write a function of a column"),
        ("g", {"a": "sum(*)"}, "only count accepts"),
        ("g", {}, "at least one total"),
        ((), {"a": "sum(x)"}, "columns to group by"),
        ("g", {"G": "sum(x)"}, "two columns of the view would be called 'G'"),
        ("g", {"_sum_x": "sum(x)"}, "two columns of the view would be called '_sum_x'"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_a_batch_comes(by, columns, advice):
    with pytest.raises(OptionError, match=advice):
        krishiv_spark.aggregate("db.t", by, columns, warehouse="/tmp/w")


def test_an_option_that_is_misspelt_is_refused_before_a_batch_comes():
    with pytest.raises(OptionError, match="did you mean 'warehouse'"):
        krishiv_spark.aggregate("db.t", "g", {"n": "count(*)"}, warehous="/tmp/w")
