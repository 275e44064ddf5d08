"""Catalogs that refuse table properties, or drop them: a proxy before Iceberg's own REST catalog.

The mark of a query is a table property. Whether the catalog keeps it is found out before the first
row of a query, and once only.
"""

import json
import logging
import re
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from cutting_proxy import CuttingProxy
from iceberg_catalogs import REST
from iceberg_life import IcebergLife, numbered
from pyiceberg.catalog import load_catalog
from sink_life import SCHEMA, Job, Life
from sink_life import rows as rows_of_life

from krishiv_spark.errors import CommitRejected, OptionError
from krishiv_spark.iceberg.catalogs import CatalogFailedError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.sinks.base import CommittedEpoch, OutputMode
from krishiv_spark.sinks.fanout.writer import FanoutWriter
from krishiv_spark.sinks.iceberg.maintenance.rollback import Rollback
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sinks.participant import Replay
from servers.forwarding import Message, forwarding

pytestmark = [
    pytest.mark.long,  # starts the server of a catalog
    pytest.mark.parametrize("place", [REST], indirect=True),
]

UPSERT = {"mode": "upsert", "keyColumns": "id", "orderColumn": "id"}


def properties_in(request):
    """The properties that a request sets, or None if it creates and commits nothing."""
    if request.method != "POST" or "/tables" not in request.path:
        return None
    body = json.loads(request.body)
    updates = [one for one in body.get("updates", ()) if one["action"] == "set-properties"]
    given = [body.get("properties") or {}, *(one["updates"] for one in updates)]
    return {key: text for one in given for key, text in one.items()}


def answer(status, text):
    error = {"message": text, "type": "BadRequestException", "code": status}
    body = json.dumps({"error": error}).encode()
    return Message({"Content-Type": "application/json"}, body, status=status)


def refuses(status, *prefixes):
    """A catalog that answers so to properties that begin with one of these."""

    def change(request):
        keys = sorted(key for key in properties_in(request) or () if key.startswith(prefixes))
        return answer(status, f"prohibited keys: {', '.join(keys)}") if keys else request

    return change


def drops(request):
    """A catalog that takes every request, without the properties."""
    if properties_in(request) is None:
        return request
    body = json.loads(request.body)
    body.pop("properties", None)
    if "updates" in body:
        body["updates"] = [one for one in body["updates"] if one["action"] != "set-properties"]
    text = json.dumps(body).encode()
    headers = {key: value for key, value in request.headers.items() if key != "Content-Length"}
    return Message(
        {**headers, "Content-Length": str(len(text))}, text, request.method, request.path
    )


@contextmanager
def catalog_that(place, change):
    """Options of a user whose catalog is behind a proxy, and the requests that were sent on."""
    sent = []
    with forwarding(place.uri, change, told=lambda request, _: sent.append(request)) as uri:
        yield {**place.options, "catalog.uri": uri}, sent


def data_files(place):
    with place.table() as table:
        folder = Path(table.location().removeprefix("file:"))
        return [path for path in folder.rglob("*") if "data" in path.parts and path.is_file()]


def made_by_another(place):
    with closing(load_catalog("krishiv", type="rest", uri=place.uri)) as catalog:
        catalog.create_namespace(place.name.split(".")[0])
        catalog.create_table(place.name, numbered(0).schema)


ALL = ("",)
NOT_KEPT = "does not keep the properties of table"
KINDS = pytest.mark.parametrize(
    ("change", "text"),
    [
        (refuses(400, *ALL), r"refuses to set the property 'krishiv\.epoch\.query-1'"),
        (refuses(403, *ALL), "refuses to set the property"),
        (refuses(422, *ALL), "refuses to set the property"),
        (refuses(400, "krishiv."), "refuses to set the property"),
        (drops, NOT_KEPT),
    ],
    ids=["400", "403", "422", "only ours", "drops"],
)


@KINDS
def test_upserts_into_a_catalog_that_keeps_no_key_are_refused_before_the_first_row(
    place, change, text
):
    given = UPSERT
    made_by_another(place)
    with catalog_that(place, change) as (options, _):
        life = IcebergLife(place.warehouse, **options, **given)
        for _ in range(2):  # a restart finds the same
            with pytest.raises(OptionError, match=text) as caught:
                life.plan(numbered(0))
            assert "No row was written" in str(caught.value)
            assert "Have the catalog allow" in str(caught.value)
    assert not place.ids()
    assert not data_files(place)
    life = place.life(**given)  # the catalog is put right
    for epoch in (0, 1, 1):
        life.epoch(epoch, numbered(epoch))
    assert place.ids() == list(range(20))


def expire_others(place, keep=1):
    """Another engine expires all snapshots that no branch or tag needs."""
    with place.table() as table:
        needed = {reference.snapshot_id for reference in table.refs().values()}
        oldest_first = [one.snapshot_id for one in table.snapshots()]
        expired = [one for one in oldest_first[:-keep] if one not in needed]
        if expired:
            table.maintenance.expire_snapshots().by_ids(expired).commit()


@KINDS
@pytest.mark.parametrize("output", [OutputMode.APPEND, OutputMode.REPLACE], ids=str)
def test_a_tag_records_epochs_where_the_catalog_keeps_no_property(
    place, change, text, output, caplog
):
    """Another program appends, and all snapshots without a name expire: the epoch is known."""
    made_by_another(place)
    with catalog_that(place, change) as (options, sent):
        life = IcebergLife(place.warehouse, **options, output=output)
        for epoch in (0, 1, 1, 2):
            life.epoch(epoch, numbered(epoch))
            life.epoch(epoch, numbered(epoch))
        with place.table() as table:
            table.append(numbered(50))
            table.append(numbered(51))
            assert "krishiv.epoch.query-1" not in table.properties
        expire_others(place)
        sent.clear()
        life.epoch(2, numbered(2))
        assert not [one for one in sent if one.method == "POST"]
        kept = range(30) if output is OutputMode.APPEND else range(20, 30)
        assert place.ids() == [*kept, *range(500, 520)]
        if output is OutputMode.APPEND:
            life.epoch(3, numbered(3))
            assert place.ids() == [*range(40), *range(500, 520)]
        with place.table() as table:
            assert len(table.snapshots()) <= 4
    assert re.search(text, caplog.text)
    assert "the tag 'krishiv.epoch.query-1' of the table records its epochs" in caplog.text


@pytest.mark.parametrize("fault", ["lost answer", "lost request", "cut"])
def test_an_unknown_outcome_is_found_by_the_tag(place, fault):
    made_by_another(place)
    with catalog_that(place, refuses(400, *ALL)) as (options, _):
        life = IcebergLife(place.warehouse, **options)
        life.epoch(0, numbered(0))
        port = int(options["catalog.uri"].rpartition(":")[2])
        with CuttingProxy(port) as proxy:
            there = {**options, "catalog.uri": f"http://127.0.0.1:{proxy.port}"}
            cut = IcebergLife(place.warehouse, **there, commitTimeout="30 s")
            staged = cut.stage(1, numbered(1))
            proxy.cut(place.is_commit, fault)
            cut.publish(1, staged, numbered(1))
            assert proxy.cuts == [fault]
        life.epoch(1, numbered(1))
        life.epoch(2, numbered(2))
    assert place.ids() == list(range(30))


def test_a_replay_is_refused_where_a_tag_records_epochs(place):
    made_by_another(place)
    with catalog_that(place, refuses(400, *ALL)) as (options, _):
        life = IcebergLife(place.warehouse, **options)
        for epoch in (0, 1):
            life.epoch(epoch, numbered(epoch))
        texts = {"table": place.name, **{k: v for k, v in options.items() if k != "path"}}
        rollback = Rollback(IcebergSinkOptions.parse(texts, "krishiv-iceberg"))
        replay = Replay("c", life.query, "r", PlannedOffsets(epoch=0, begins="a", ends="b"))
        with pytest.raises(OptionError, match="such epochs cannot be undone"):
            rollback.lines(replay)


def test_a_property_that_another_program_removes_leaves_a_tag_that_is_moved_on(place):
    """The next epoch sets both. If the property is removed once more, the tag is enough."""
    life, name = place.life(), "krishiv.epoch.query-1"
    for epoch in (0, 1):
        life.epoch(epoch, numbered(epoch))
    for epoch in (2, 3, 4):
        with place.table() as table:
            assert (name in table.properties) == (epoch < 4)
            if name in table.properties:
                with table.transaction() as change:
                    change.remove_properties(name)
            table.append(numbered(50 + epoch))
        if epoch > 2:
            expire_others(place)
        life.epoch(epoch - 1, numbered(epoch - 1))
        life.epoch(epoch, numbered(epoch))
        life.epoch(epoch, numbered(epoch))
    assert place.ids() == [*range(50), *range(520, 550)]


def test_the_planner_of_spark_refuses_it_and_runs_no_task(place):
    with catalog_that(place, drops) as (options, _):
        options |= {"warehouse": str(place.warehouse), **UPSERT}
        life = Life(IcebergWriter, options, "query-1", OutputMode.APPEND)
        with pytest.raises(PlanningFailed, match=NOT_KEPT):
            life.plan()


def test_a_batch_with_a_number_needs_a_mark_and_one_without_does_not(place):
    with catalog_that(place, drops) as (options, sent):
        options["warehouse"] = str(place.warehouse)
        job = Job(IcebergWriter, options)
        job.plan()
        job.commit(0, [job.task(0, 0, rows_of_life(0, 5))])
        assert place.ids() == list(range(5))
        commits = [one for one in sent if one.path.endswith("/tables/rows") and one.body]
        assert len(commits) == 1  # nothing but its rows
        numbers = {**options, **UPSERT, "txnAppId": "nightly", "txnVersion": "7"}
        life = Life(IcebergWriter, numbers, "nightly", OutputMode.APPEND)
        with pytest.raises(PlanningFailed, match=r"(?s)does not keep.*'krishiv\.epoch\.nightly'"):
            life.plan()


def test_a_route_of_a_fan_out_is_refused_before_its_log_has_an_owner(place, tmp_path):
    with catalog_that(place, drops) as (options, _):
        given = {
            **{f"route.a.{key}": text for key, text in options.items()},
            "route.a.format": "krishiv-iceberg",
            "route.a.warehouse": str(place.warehouse),
            **{f"route.a.{key}": text for key, text in UPSERT.items()},
            "route.b.format": "krishiv-parquet",
            "route.b.path": str(tmp_path / "b"),
            "epochLog": str(tmp_path / "log"),
        }
        columns = pa.schema([(route, pa.struct(list(SCHEMA))) for route in "ab"])
        life = Life(FanoutWriter, given, "q1", OutputMode.APPEND)
        parsed = FanoutWriter.options_type.parse(given, "krishiv-fanout")
        life._make = lambda: FanoutWriter(parsed, columns, OutputMode.APPEND)
        with pytest.raises(PlanningFailed, match=NOT_KEPT):
            life.plan()
    assert not list((tmp_path / "log").rglob("*.json"))


def test_a_new_table_goes_without_the_sinks_own_properties_where_they_are_forbidden(place, caplog):
    given = {"tableProperty.owner": "me", "tableProperty.krishiv.own": "1"}
    with catalog_that(place, refuses(400, "write.", "history.")) as (options, _):
        life = IcebergLife(place.warehouse, **options, **given)
        with caplog.at_level(logging.WARNING):
            for epoch in (0, 1, 1, 2):
                life.epoch(epoch, numbered(epoch))
    assert place.ids() == list(range(30))
    with place.table() as table:
        kept = {key: text for key, text in table.properties.items() if "epoch" not in key}
        assert given.keys() == {f"tableProperty.{key}" for key in kept if "compress" not in key}
    (warning,) = [one.getMessage() for one in caplog.records if one.name.startswith("krishiv")]
    assert "was created without them" in warning
    assert "prohibited keys: history.expire.max-snapshot-age-ms" in warning
    assert "keepSnapshots" in warning


def test_a_catalog_that_forbids_the_mode_of_upserts_leaves_the_bounds_of_history(place, caplog):
    with catalog_that(place, refuses(400, "write.merge.mode")) as (options, _):
        life = IcebergLife(place.warehouse, **options, **UPSERT)
        with caplog.at_level(logging.WARNING):
            for epoch in (0, 1):
                life.epoch(epoch, numbered(epoch))
    assert place.ids() == list(range(20))
    with place.table() as table:
        assert table.properties["krishiv.history.expire.max-snapshots-to-keep"] == "10000"
        assert table.properties["write.metadata.previous-versions-max"] == "20"
        assert "write.merge.mode" not in table.properties
    said = [one.getMessage() for one in caplog.records if one.name.startswith("krishiv")]
    assert any("without them (write.merge.mode)" in one and "'upsertMode'" in one for one in said)


def test_a_property_of_the_user_that_is_forbidden_is_never_left_out(place):
    given = {"tableProperty.write.parquet.compression-codec": "zstd"}
    with catalog_that(place, refuses(400, "write.", "history.")) as (options, _):
        life = IcebergLife(place.warehouse, **options, **given)
        with pytest.raises(CatalogFailedError) as caught:
            life.plan(numbered(0))
    assert "prohibited keys: write.parquet.compression-codec" in str(caught.value)
    assert "history." not in str(caught.value)
    assert place.rows() == []


def test_a_property_of_the_user_that_is_dropped_is_said(place, caplog):
    given = {"tableProperty.owner": "me"}
    with catalog_that(place, drops) as (options, _), caplog.at_level(logging.WARNING):
        IcebergLife(place.warehouse, **options, **given).writer(numbered(0)).plan(None)
    assert "'tableProperty.owner' = 'me' has no effect" in caplog.text


def test_the_mark_is_asked_for_once_in_the_life_of_a_query(place):
    with catalog_that(place, lambda request: request) as (options, sent):
        life = IcebergLife(place.warehouse, **options)
        counts = []
        for epoch in range(4):
            before = len(sent)
            life.epoch(epoch, numbered(epoch))
            counts.append(len(sent) - before)
        marks = [properties_in(one) for one in sent if b"set-properties" in one.body]
    assert [one["krishiv.epoch.query-1"] for one in marks] == ["none", "0", "1", "2", "3"]
    assert counts[1] == counts[2] == counts[3]


def test_a_driver_that_dies_after_the_mark_was_asked_for_is_a_new_query(place):
    life = place.life()
    life.plan(numbered(0))
    with place.table() as table:
        assert table.properties["krishiv.epoch.query-1"] == "none"
        assert not table.snapshots()
    _, held = life.plan(numbered(0))
    assert held is None
    for epoch in (0, 1, 1):
        life.epoch(epoch, numbered(epoch))
    assert place.ids() == list(range(20))


def test_the_answer_is_lost_and_the_mark_is_found(place):
    made_by_another(place)
    with place.behind_proxy() as (proxy, given):
        life = IcebergLife(place.warehouse, **given, commitTimeout="30 s")
        proxy.cut(place.is_commit, "lost answer", "lost request")
        life.plan(numbered(0))
        assert proxy.cuts[:1] == ["lost answer"]
    with place.table() as table:
        assert table.properties["krishiv.epoch.query-1"] == "none"


def test_a_late_request_does_not_overwrite_the_mark_of_a_faster_driver(place):
    made_by_another(place)
    faster = place.life()

    def overtake(request):
        is_probe = (properties_in(request) or {}).get("krishiv.epoch.query-1") == "none"
        if is_probe and not len(place.rows()):
            faster.epoch(0, numbered(0))
        return request

    with catalog_that(place, overtake) as (options, sent):
        life = IcebergLife(place.warehouse, **options)
        committer = life.writer(numbered(0)).committer()
        assert committer.last_committed("query-1") == CommittedEpoch(0)
    assert any(b"set-properties" in one.body for one in sent)
    with place.table() as table:
        assert table.properties["krishiv.epoch.query-1"] == "0"


def test_a_catalog_that_begins_to_drop_properties_is_noticed_before_rows_come_again(place):
    life = place.life()
    life.epoch(0, numbered(0))
    with catalog_that(place, drops) as (options, _):
        later = IcebergLife(place.warehouse, **options)
        later.epoch(1, numbered(1))
        for epoch in (1, 2):  # after a crash, or the next one
            with pytest.raises(Exception, match="the table has the rows of epoch 1 of the query"):
                later.epoch(epoch, numbered(epoch))
    assert place.ids() == list(range(20))


def forbids_expiry(request):
    """A catalog that expires snapshots itself."""
    if request.method == "POST" and b'"remove-snapshots"' in request.body:
        return answer(403, "snapshots are removed by the service")
    return request


EXPIRES = {
    "tableProperty.krishiv.history.expire.max-snapshots-to-keep": "2",
    "tableProperty.history.expire.min-snapshots-to-keep": "1",
}


def test_rows_go_on_where_the_catalog_forbids_to_expire_snapshots(place, caplog):
    with catalog_that(place, forbids_expiry) as (options, sent):
        life = IcebergLife(place.warehouse, **options, **EXPIRES)
        with caplog.at_level(logging.WARNING):
            for epoch in (*range(24), 23):
                life.epoch(epoch, numbered(epoch, 1))
    assert place.ids() == list(range(24))
    with place.table() as table:
        assert len(table.snapshots()) == 24
    (text,) = [one.getMessage() for one in caplog.records if "expires snapshots" in one.message]
    assert "snapshots are removed by the service" in text
    assert not any(b'"remove-snapshots"' in one.body for one in sent)


def test_an_option_that_the_catalog_forbids_is_an_error(place):
    with catalog_that(place, forbids_expiry) as (options, _):
        life = IcebergLife(place.warehouse, **options, keepSnapshots="1")
        life.epoch(0, numbered(0))
        with pytest.raises(CommitRejected, match="snapshots are removed by the service"):
            life.epoch(1, numbered(1))
    assert place.ids() == list(range(10))
