"""Metrics of queries without Spark: from its events to Prometheus and OpenTelemetry."""

import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest
from patience import await_that
from progress_events import AT, QUERY, RUN, SOURCE, ended, idle, progressed, started
from prometheus_client.parser import text_string_to_metric_families

from krishiv_spark import metrics
from krishiv_spark.errors import OptionError
from krishiv_spark.metrics.definitions import METRICS, OF_QUERY, OTHER_TOPICS, topic_shares
from krishiv_spark.metrics.records import QueryRecords
from krishiv_spark.metrics.reporting import RecordingListener
from krishiv_spark.queries import Progress, SourceProgress

OURS = "krishiv_spark.errors.CommitUnknown: the broker did not answer\n at a.b.C"


class Streams:
    """The part of a session that listeners use."""

    def __init__(self):
        self.listeners = []
        self.active = []
        self.running = {}

    def addListener(self, listener):
        self.listeners.append(listener)

    def removeListener(self, listener):
        self.listeners.remove(listener)

    def get(self, query):
        return self.running[query]


class Session:
    def __init__(self):
        self.streams = Streams()
        self.is_stopped = False

    def tell(self, *events):
        for event in events:
            for listener in self.streams.listeners:
                getattr(listener, f"on{type(event).__name__.removesuffix('Event')}")(event)


@pytest.fixture
def session():
    return Session()


def values(text):
    """Samples by name and the values of their own labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            own = [value for label, value in sorted(one.labels.items()) if label not in OF_QUERY]
            found[(one.name, *own)] = one.value
    return found


def scraped(reporting):
    with urllib.request.urlopen(reporting.address) as answer:
        return answer.read().decode()


@pytest.fixture
def served(session):
    with metrics.serve(session, port=0) as reporting:
        yield reporting


# --- Prometheus


def test_a_query_is_served_to_prometheus(session, served):
    session.tell(started(), progressed(0), progressed(1))
    found = values(scraped(served))
    assert found["krishiv_query_state", "running"] == 1
    assert found["krishiv_query_state", "failed"] == 0
    assert found["krishiv_query_epochs_total",] == 2
    assert found["krishiv_query_epoch",] == 1
    assert found["krishiv_query_input_rows_total",] == 30
    assert found["krishiv_query_output_rows_total",] == 30
    assert found["krishiv_query_epoch_duration_seconds",] == 1.5
    assert found["krishiv_query_phase_seconds_total", "addBatch"] == 2
    assert found["krishiv_query_watermark_timestamp_seconds",] == 1357012800
    assert found["krishiv_query_watermark_age_seconds",] > 10 * 365 * 86400
    assert abs(found["krishiv_query_last_seen_timestamp_seconds",] - time.time()) < 60
    assert found["krishiv_source_waiting_offsets", "KafkaV2", "0"] == 2
    assert found["krishiv_topic_waiting_offsets", "0", "0", "orders"] == 2
    assert found["krishiv_topic_position_offsets", "1", "0", "orders"] == 5
    assert 'query_id="0f000000-0000-0000-0000-000000000001",query_name="orders"' in scraped(served)


def test_half_a_character_in_the_name_of_a_query_does_not_end_the_metrics_of_all(session, served):
    hostile = progressed(0, name="\ud800")
    session.tell(started(name="\ud800"), hostile, started("1" * 32, "of another"))
    assert 'query_name="?"' in scraped(served)
    assert 'query_name="of another"' in scraped(served)


def test_a_failed_query_has_its_condition_and_a_new_start_clears_it(session, served):
    session.tell(started(), ended(error=OURS, error_class="STREAM_FAILED"))
    found = values(scraped(served))
    assert found["krishiv_query_state", "failed"] == 1
    assert found["krishiv_query_failures_total", "CommitUnknown"] == 1
    session.tell(started(), ended(error="[X] of somebody else", error_class="X.Y"), started())
    found = values(scraped(served))
    assert found["krishiv_query_failures_total", "X.Y"] == 1
    assert found["krishiv_query_state", "failed"] == 0
    session.tell(idle())
    assert values(scraped(served))["krishiv_query_state", "idle"] == 1
    session.tell(ended())
    assert values(scraped(served))["krishiv_query_state", "stopped"] == 1


def test_an_end_that_is_told_after_the_next_start_is_no_end(session, served):
    session.tell(started(), started(run=RUN.replace("f", "e")), ended(error=OURS))
    found = values(scraped(served))
    assert found["krishiv_query_state", "starting"] == 1
    assert found["krishiv_query_failures_total", "CommitUnknown"] == 1


@pytest.mark.parametrize("late", [progressed(3), idle()])
def test_what_a_run_did_is_no_state_of_the_next_one_though_told_after_its_start(
    session, served, late
):
    then = RUN.replace("f", "e")
    session.tell(started(), started(run=then), late, ended(error=OURS))
    found = values(scraped(served))
    assert found["krishiv_query_state", "starting"] == 1
    assert found["krishiv_query_failures_total", "CommitUnknown"] == 1
    session.tell(idle(run=then))
    assert values(scraped(served))["krishiv_query_state", "idle"] == 1
    session.tell(ended(run=then))
    assert values(scraped(served))["krishiv_query_state", "stopped"] == 1


@pytest.mark.parametrize(("told", "written"), [(-1, None), (0, 0)])
def test_rows_that_a_sink_does_not_count_are_not_0(session, served, told, written):
    """Of foreachBatch and of Spark's files, Spark says -1."""
    session.tell(started(), progressed(sink={"description": "sink", "numOutputRows": told}))
    assert values(scraped(served)).get(("krishiv_query_output_rows_total",)) == written


def test_no_words_of_errors_or_sources_are_shown(session, served):
    source = {**SOURCE, "description": "Files[s3a://key:secret@bucket]"}
    session.tell(started(), progressed(sources=[source]), ended(error=OURS))
    assert "secret" not in scraped(served)
    assert "broker" not in scraped(served)


def test_every_metric_has_a_name_by_the_conventions(session, served):
    session.tell(started(), progressed())
    text = scraped(served)
    for metric in METRICS:
        kind = "counter" if metric.counts else "gauge"
        assert f"# TYPE {metric.full_name} {kind}" in text
        assert metric.says.endswith(".")
    assert len({metric.full_name for metric in METRICS}) == len(METRICS)


def test_what_is_not_understood_hurts_nobody(session, served, caplog):
    session.tell(progressed(durationMs={"addBatch": "soon"}), progressed(numInputRows="many"))
    broken = {**SOURCE, "endOffset": {"orders": {"0": None}}, "latestOffset": "[["}
    session.tell(progressed(5, sources=[broken], eventTime={"watermark": "never"}))
    session.streams.listeners[0].onQueryTerminated(object())
    assert values(scraped(served))["krishiv_query_epochs_total",] >= 1
    assert "cannot be parsed" in caplog.text


def test_a_port_that_is_taken_is_said_and_leaves_no_listener(served):
    port = int(served.address.split(":")[2].partition("/")[0])
    other = Session()
    with pytest.raises(OptionError, match=f"127.0.0.1:{port}.*or 0 for any"):
        metrics.serve(other, port=port)
    assert other.streams.listeners == []


def test_a_port_that_is_none_is_said_and_leaves_no_listener(session):
    with pytest.raises(OptionError, match=r"127\.0\.0\.1:70000: .*0-65535"):
        metrics.serve(session, port=70000)
    assert session.streams.listeners == []


def test_the_address_of_a_host_of_the_newer_protocol_is_one(session):
    try:
        reporting = metrics.serve(session, port=0, host="::1")
    except OptionError:
        pytest.skip("this machine has no ::1")
    with reporting as served:
        assert served.address.startswith("http://[::1]:")
        assert "krishiv_query_epochs" in scraped(served)


def test_after_the_end_nobody_listens(session):
    with metrics.serve(session, port=0) as served:
        assert served.address.startswith("http://127.0.0.1:")
    served.stop()
    assert session.streams.listeners == []
    with pytest.raises(OSError, match="refused"):
        scraped(served)


def test_a_file_for_node_exporter(session, tmp_path):
    place = tmp_path / "krishiv.prom"
    with metrics.write_file(session, place, every=0.01):
        session.tell(started(), progressed())
        session.streams.active = [SimpleNamespace(id=QUERY, name="orders", runId=RUN)]
        await_that(lambda: "krishiv_query_epochs_total{" in place.read_text(), "it is written")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match="cannot be written to"):
        metrics.write_file(session, tmp_path / "nowhere" / "krishiv.prom")
    assert session.streams.listeners == []


def test_a_file_that_tells_of_a_failed_query_is_left_to_be_read(session, tmp_path):
    place = tmp_path / "krishiv.prom"
    with metrics.write_file(session, place, every=60):
        session.tell(started(), progressed(), ended(error=OURS))
    told = values(place.read_text())
    assert told["krishiv_query_state", "failed"] == 1
    assert told["krishiv_query_failures_total", "CommitUnknown"] == 1


def test_an_error_that_spark_tells_listeners_later_is_waited_for(session, tmp_path):
    place = tmp_path / "krishiv.prom"
    reporting = metrics.write_file(session, place, every=60)
    session.tell(started())
    threading.Timer(0.1, session.tell, [ended(error=OURS)]).start()
    reporting.stop()
    assert values(place.read_text())["krishiv_query_state", "failed"] == 1


def test_a_session_that_was_stopped_has_no_running_query(session):
    with metrics.serve(session, port=0) as served:
        session.tell(started(), progressed())
        assert values(scraped(served))["krishiv_query_state", "running"] == 1
        session.is_stopped = True
        assert values(scraped(served))["krishiv_query_state", "stopped"] == 1
        assert values(scraped(served))["krishiv_query_state", "running"] == 0


def test_a_file_that_cannot_be_removed_hides_no_error_of_the_query(session, tmp_path, caplog):
    folder = tmp_path / "metrics"
    folder.mkdir()

    def fails():
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("no folder any more")
        raise ZeroDivisionError

    reporting = metrics.write_file(session, folder / "krishiv.prom", every=60)
    with pytest.raises(ZeroDivisionError), reporting:
        fails()
    assert session.streams.listeners == []
    assert "are left at" in caplog.text


@pytest.mark.long
def test_without_the_library_it_is_said_what_to_install():
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from krishiv_spark import metrics\n"
        "assert not [name for name in sys.modules if 'opentelemetry' in name]\n"
        "metrics.serve(None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "krishiv-spark[metrics]"' in done.stderr


def idle_look(**newest):
    """A query whose newest progress, of Spark's, is that of a look that found nothing to do."""
    told = progressed(9, numInputRows=0).progress
    sources = [{**SOURCE, "numInputRows": 0, "latestOffset": newest}]
    return SimpleNamespace(lastProgress={**told, "sources": sources, "runId": RUN})


@pytest.mark.parametrize("epochs", [0, 1])
def test_what_is_held_back_is_seen_while_there_is_nothing_to_do(session, served, epochs):
    session.tell(started(), *map(progressed, range(epochs)), idle())
    assert ("krishiv_source_held_back_offsets", "KafkaV2", "0") not in values(scraped(served))
    session.streams.running[QUERY] = idle_look(offsets_held_back=2005, offsets_waiting=0)
    session.tell(idle())
    found = values(scraped(served))
    assert found["krishiv_source_held_back_offsets", "KafkaV2", "0"] == 2005
    assert found["krishiv_source_input_rows_total", "KafkaV2", "0"] == 15 * epochs
    assert found.get(("krishiv_query_epoch",)) == (0 if epochs else None)
    assert found["krishiv_query_epochs_total",] == epochs
    session.tell(progressed(epochs))
    assert ("krishiv_source_held_back_offsets", "KafkaV2", "0") not in values(scraped(served))


# --- OpenTelemetry


@pytest.fixture
def reader():
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    from opentelemetry.sdk.metrics import MeterProvider

    return MeterProvider([reader])


def exported(reader):
    """Return the exported metrics by name."""
    data = reader.get_metrics_data()
    scopes = data.resource_metrics[0].scope_metrics if data else []
    return {one.name: one for scope in scopes for one in scope.metrics}


def epochs(reader):
    found = exported(reader).get("krishiv.query.epochs")
    points = [] if found is None else found.data.data_points
    return {point.attributes["query_name"]: point.value for point in points}


def test_the_same_is_exported_to_opentelemetry(session, reader, provider):
    reporting = metrics.export(session, provider)
    session.tell(started(), progressed())
    rows = exported(reader)["krishiv.query.input_rows"]
    assert rows.data.is_monotonic
    (point,) = rows.data.data_points
    assert (point.value, point.attributes["query_name"]) == (15, "orders")
    assert exported(reader)["krishiv.query.epoch_duration"].unit == "s"
    assert exported(reader)["krishiv.query.state_memory"].unit == "By"
    reporting.stop()
    assert exported(reader) == {}


def test_a_provider_is_given_the_queries_of_all_sessions_and_again_after_a_stop(
    session, reader, provider
):
    other, second = Session(), QUERY.replace("1", "2")
    with metrics.export(session, provider), metrics.export(other, provider):
        session.tell(started(), progressed())
        other.tell(started(second, "second"), progressed(0, second, name="second"))
        with metrics.export(session, provider):
            session.tell(progressed())
            assert epochs(reader) == {"orders": 2, "second": 1}
    assert epochs(reader) == {}
    with metrics.export(session, provider):
        session.tell(started(), progressed())
        assert epochs(reader) == {"orders": 1}


# --- bounds


def test_of_queries_that_have_ended_the_newest_are_kept():
    records = QueryRecords()
    listener = RecordingListener(records)
    for number in range(300):
        query = f"0f000000-0000-0000-0000-{number:012}"
        listener.onQueryStarted(started(query, None))
        listener.onQueryTerminated(ended(query))
    assert len(records.all()) == 100
    assert records.all()[-1][0].query.endswith("299")


def test_a_new_checkpoint_under_the_same_name_replaces_what_has_ended():
    records = QueryRecords()
    listener = RecordingListener(records)
    other = QUERY.replace("1", "2")
    for event in (started(), ended()):
        getattr(listener, f"on{type(event).__name__.removesuffix('Event')}")(event)
    listener.onQueryStarted(started(other))
    assert [record.query for record, _ in records.all()] == [other]


def test_it_does_so_too_if_the_end_is_told_after_the_new_start(session, served):
    other = QUERY.replace("1", "2")
    session.tell(started(), started(other), ended(error=OURS))
    text = scraped(served)
    assert QUERY not in text
    assert values(text)["krishiv_query_state", "failed"] == 0


def topics(topics, partitions):
    offset = {f"t{n:03}": {str(p): 10 for p in range(partitions)} for n in range(topics)}
    newest = {name: {p: n + 1 for p, n in each.items()} for name, each in offset.items()}
    return SourceProgress.of({**SOURCE, "endOffset": offset, "latestOffset": newest})


@pytest.mark.parametrize(
    ("partitions", "names"),
    [
        (1, ["0"]),
        (10, [str(n) for n in range(10)]),
        (11, ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11"]),
        (10_000, [f"{n * 1000}-{n * 1000 + 999}" for n in range(10)]),
    ],
)
def test_partitions_are_told_in_ten_groups_at_most(partitions, names):
    shares = topic_shares(topics(1, partitions))
    assert [share.partitions for share in shares] == names
    assert sum(share.waiting for share in shares) == partitions
    assert sum(share.position for share in shares) == 10 * partitions


def test_topics_after_the_twentieth_are_told_together():
    shares = topic_shares(topics(50, 100))
    assert len(shares) == 20 * 10 + 1
    assert (shares[-1].topic, shares[-1].waiting) == (OTHER_TOPICS, 30 * 100)


def test_dead_letters_are_counted_by_rule(session, served):
    counts = {"small": 2, "odd": 0, "(bad record)": 4}
    observed = {"krishiv_dead_letters_1": counts, "krishiv_dead_letters_2": {"small": 1}}
    observed["of a user"] = {"small": 100}
    session.tell(started(), progressed(0, observedMetrics=observed), progressed(1))
    session.tell(progressed(2, observedMetrics=observed))
    found = values(scraped(served))
    name = "krishiv_query_dead_letters_total"
    assert {key[1]: found[key] for key in found if key[0] == name} == {
        "small": 6,
        "(bad record)": 8,
    }
    assert Progress.of(progressed(0, observedMetrics=observed).progress).dead_letters == {
        "small": 3,
        "(bad record)": 4,
    }


def test_our_own_form_of_offsets():
    told = {
        **SOURCE,
        "endOffset": {
            "kind": "kafka",
            "v": 2,
            "topics": {"a": {"0": 7}},
            "watermark": {"ms": 5000},
        },
        "latestOffset": {"latest": {"a": {"0": 9}}, "lag": {"a": {"0": 2}}, "offsets_waiting": 2},
    }
    source = SourceProgress.of(told)
    (share,) = topic_shares(source)
    assert (share.topic, share.partitions, share.position, share.waiting) == ("a", "0", 7, 2)
    assert (source.kind, source.watermark.timestamp(), source.lag) == ("kafka", 5, 2)


def test_a_listener_costs_microseconds():
    """A trigger of a tenth of a second may be held up by a hundredth: here it is a thousandth."""
    listener = RecordingListener(QueryRecords())
    partitions = {str(n): 10**9 for n in range(1000)}
    source = {**SOURCE, "endOffset": {"orders": partitions}, "latestOffset": {"orders": partitions}}
    event = progressed(sources=[source, SOURCE], timestamp=AT)
    times = []
    for _ in range(200):
        begun = time.perf_counter()
        listener.onQueryProgress(event)
        times.append(time.perf_counter() - begun)
    assert sorted(times)[len(times) // 2] < 0.000_100
