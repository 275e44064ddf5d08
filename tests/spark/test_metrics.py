"""Metrics of real queries, scraped by a real Prometheus where it is installed."""

import urllib.request

import pyspark
import pytest
from patience import PATIENCE, await_that
from prometheus import prometheus_server, query_prometheus, rules
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import functions as sql
from tables import make_input

from krishiv_spark import metrics, queries
from krishiv_spark.errors import QueryFailed

FILES, ROWS = 3, 10
KNOWS_NEWEST = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)


@pytest.fixture
def stream(spark, tmp_path):
    """Rows of files, one file in each epoch."""
    make_input(tmp_path / "in", FILES, ROWS)
    read = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 1)
    return read.load(str(tmp_path / "in"))


def started(frame, folder, name):
    to = frame.writeStream.format("krishiv-parquet").option("path", str(folder / name))
    to = to.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
    # Unasked: a query that starts, and fails with its first epoch, is what is looked at.
    return queries.start(to.queryName(name), check=False)


def look(reporting, query):
    """The samples of a query, by name."""
    with urllib.request.urlopen(reporting.address) as answer:
        text = answer.read().decode()
    return {
        (one.name, one.labels.get("state") or one.labels.get("condition") or ""): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.labels["query_id"] == query.id
    }


def test_what_queries_do_is_what_is_served(spark, stream, tmp_path):
    with started(stream, tmp_path, "earlier") as earlier:
        with metrics.serve(spark, port=0) as served, started(stream, tmp_path, "out") as query:
            assert look(served, query)["krishiv_query_state", "failed"] == 0
            query.process_all_available()
            await_that(
                lambda: (
                    look(served, query).get(("krishiv_query_input_rows_total", "")) == FILES * ROWS
                )
            )
            found = look(served, query)
            assert ("krishiv_query_state", "running") in look(served, earlier)
        assert found["krishiv_query_output_rows_total", ""] == FILES * ROWS
        assert found["krishiv_query_epochs_total", ""] == FILES
        assert found["krishiv_query_epoch", ""] == FILES - 1
        assert found["krishiv_query_phase_seconds_total", ""] > 0
        assert (("krishiv_source_waiting_files", "") in found) is KNOWS_NEWEST


def test_a_failure_is_served_with_its_condition(spark, stream, tmp_path):
    (tmp_path / "bad").write_text("no folder")
    broken = stream.withColumn("id", sql.raise_error(sql.lit("no such order")).cast("long"))
    with metrics.serve(spark, port=0) as served:
        for frame, name, condition in ((stream, "bad", "OptionError"), (broken, "broken", None)):
            query = started(frame, tmp_path, name)
            with pytest.raises(QueryFailed):
                query.await_termination(PATIENCE)
            await_that(lambda q=query: look(served, q)["krishiv_query_state", "failed"] == 1)
            conditions = [
                key[1] for key in look(served, query) if key[0] == "krishiv_query_failures_total"
            ]
            assert len(conditions) == 1
            assert condition in {None, conditions[0]}


def test_a_program_that_ends_with_the_error_of_its_query_leaves_it_to_be_read(
    spark, stream, tmp_path
):
    (tmp_path / "bad").write_text("no folder")
    place = tmp_path / "krishiv.prom"
    with metrics.write_file(spark, place, every=600):
        query = started(stream, tmp_path, "bad")
        with pytest.raises(QueryFailed):
            query.await_termination(PATIENCE)
    assert 'state="failed"} 1.0' in place.read_text()


def test_a_real_prometheus_scrapes_it_and_has_the_alerts(spark, stream, tmp_path):
    (tmp_path / "prometheus").mkdir()
    with metrics.serve(spark, port=0) as served, started(stream, tmp_path, "seen") as query:
        target = served.address.removeprefix("http://").removesuffix("/metrics")
        with prometheus_server(tmp_path / "prometheus", target) as url:
            query.process_all_available()
            rows = f'krishiv_query_output_rows_total{{query_id="{query.id}"}}'
            await_that(
                lambda: (
                    [one["value"][1] for one in query_prometheus(url, rows)] == [str(FILES * ROWS)]
                )
            )
            assert {rule["health"] for rule in rules(url)} <= {"ok", "unknown"}
            assert len(rules(url)) == 9
            (up,) = query_prometheus(url, 'up{job="krishiv-spark"}')
            assert up["value"][1] == "1"
