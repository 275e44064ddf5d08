"""Catalogs that refuse table properties, or drop them: a proxy before Iceberg's own REST catalog.

The mark of a query is a table property. Whether the catalog keeps it is found out before the first
row of a query, and once only.
"""

import json
import logging
import re
import uuid
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from cutting_proxy import CuttingProxy
from fan_life import Fan
from iceberg_catalogs import REST
from iceberg_life import IcebergLife, numbered
from pyiceberg.catalog import load_catalog
from sink_life import Job, Life
from sink_life import rows as rows_of_life

from krishiv_spark.errors import CommitRejected, OptionError
from krishiv_spark.iceberg.catalogs import CatalogFailedError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.sinks.base import CommittedEpoch, OutputMode
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


def keyed(*pairs):
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64())])
    return pa.Table.from_pylist([{"id": number, "k": k} for number, k in pairs], schema)


def pairs_in(place):
    found = place.rows()
    return sorted(zip(found["id"].to_pylist(), found["k"].to_pylist(), strict=True))


BY_ID, BY_K = ({"mode": "upsert", "keyColumns": name} for name in ("id", "k"))


@pytest.fixture
def keyed_place(place):
    """A table of another program, which has merge on read."""
    with closing(load_catalog("krishiv", type="rest", uri=place.uri)) as catalog:
        catalog.create_namespace(place.name.split(".")[0])
        merge = {"write.merge.mode": "merge-on-read"}
        catalog.create_table(place.name, keyed().schema, properties=merge)
    return place


@KINDS
def test_a_tag_records_the_key_of_upserts_where_the_catalog_keeps_no_property(
    keyed_place, change, text, caplog
):
    """All snapshots without a name expire, and any driver still knows epochs and key."""
    place = keyed_place
    with catalog_that(place, change) as (options, _):
        for epoch in (0, 1, 1, 2):
            life = IcebergLife(place.warehouse, **options, **BY_ID)  # of a new process
            life.epoch(epoch, keyed((1, epoch), (epoch + 10, 0)))
            life.epoch(epoch, keyed((1, epoch), (epoch + 10, 0)))
            expire_others(place)
        assert pairs_in(place) == [(1, 2), (10, 0), (11, 0), (12, 0)]
        with place.table() as table:
            assert not [name for name in table.properties if name.startswith("krishiv.")]
            (number,) = {one.summary["krishiv.upsert.key"] for one in table.snapshots()}
            assert number == str(table.schema().find_field("id").field_id)
        by_k = IcebergLife(place.warehouse, **options, **BY_K)
        of_another = IcebergLife(place.warehouse, **options, **BY_K, query="query-2")
        for life in (by_k, of_another):
            with pytest.raises(OptionError, match=r"'k', but table .* is upserted by 'id'"):
                life.plan(keyed((1, 1)))
        for query in ("query-1", "query-2"):
            life = IcebergLife(place.warehouse, **options, query=query)
            with pytest.raises(OptionError, match="is upserted by 'id', and 'mode' is 'append'"):
                life.plan(keyed((1, 1)))
        second = IcebergLife(place.warehouse, **options, **BY_ID, query="query-2")
        for epoch in (0, 0, 1):
            second.epoch(epoch, keyed((1, 50 + epoch)))
        life = IcebergLife(place.warehouse, **options, **BY_ID)
        life.epoch(2, keyed((1, 2)))
        life.epoch(3, keyed((1, 60)))
    assert pairs_in(place) == [(1, 60), (10, 0), (11, 0), (12, 0)]
    assert re.search(text, caplog.text)


def batch(place, options, **given):
    """A new batch job without a number."""
    query = f"batch-{uuid.uuid4()}"
    return IcebergLife(place.warehouse, **options, **given, query=query, streaming=False)


@pytest.mark.parametrize(
    "change",
    [refuses(400, *ALL), refuses(403, *ALL), refuses(422, *ALL), refuses(400, "krishiv.")],
    ids=["400", "403", "422", "only ours"],
)
def test_a_batch_without_a_number_records_its_key_by_a_tag_of_its_own(keyed_place, change):
    """Its snapshot loses its name only to the next batch, so the key outlives every expiry."""
    place, asked = keyed_place, []

    def count(request):
        asked.extend(properties_in(request) or ())
        return change(request)

    with catalog_that(place, count) as (options, _):
        for k in (1, 2):
            batch(place, options, **BY_ID).epoch(0, keyed((1, k)))
            expire_others(place)
        assert asked == ["krishiv.upsert.key"]  # not by the second batch
        with place.table() as table:
            assert [*table.refs()] == ["main", "krishiv.upsert.key"]
            assert len(table.snapshots()) == 1
            table.append(keyed((5, 5)))
        expire_others(place)
        by_k, appends = batch(place, options, **BY_K), batch(place, options)
        of_stream = IcebergLife(place.warehouse, **options, **BY_K)
        for life in (by_k, appends, of_stream):
            with pytest.raises(OptionError, match="is upserted by 'id'"):
                life.plan(keyed((1, 1)))
        IcebergLife(place.warehouse, **options, **BY_ID).epoch(0, keyed((5, 6)))
    assert pairs_in(place) == [(1, 2), (5, 6)]


def test_a_batch_without_a_number_that_replaces_all_rows_forgets_the_key_of_the_tag(keyed_place):
    place = keyed_place
    with catalog_that(place, refuses(400, *ALL)) as (options, _):
        IcebergLife(place.warehouse, **options, **BY_ID).epoch(0, keyed((1, 1)))
        batch(place, options, output=OutputMode.REPLACE).epoch(0, keyed((2, 1)))
        expire_others(place)
        batch(place, options, **BY_K).epoch(0, keyed((3, 1)))
        with pytest.raises(OptionError, match="is upserted by 'k'"):
            batch(place, options, **BY_ID).plan(keyed((1, 1)))
    assert pairs_in(place) == [(3, 1)]


def test_a_key_of_a_batch_that_the_catalog_drops_is_said(keyed_place, caplog):
    place = keyed_place
    with catalog_that(place, drops) as (options, _):
        batch(place, options, **BY_ID).epoch(0, keyed((1, 1)))
        assert "the key of this batch, 'id', is not recorded" in caplog.text
        given = {**options, "txnAppId": "nightly", "txnVersion": "1"}
        IcebergLife(place.warehouse, **given, **BY_ID, query="nightly").epoch(1, keyed((1, 2)))
        with pytest.raises(OptionError, match="is upserted by 'id'"):
            batch(place, options, **BY_K).plan(keyed((1, 1)))
    assert pairs_in(place) == [(1, 2)]


def test_two_first_upserts_by_different_keys_race_for_the_tag(keyed_place):
    """Neither finds a key when it plans; the second commit finds that of the first."""
    place = keyed_place
    with catalog_that(place, refuses(400, *ALL)) as (options, _):
        lives = [
            IcebergLife(place.warehouse, **options, **given, query=query)
            for query, given in (("a", BY_ID), ("b", BY_K))
        ]
        staged = [life.stage(0, keyed((1, 1))) for life in lives]
        lives[0].publish(0, staged[0], keyed((1, 1)))
        with pytest.raises((CommitRejected, OptionError), match="is upserted by 'id'"):
            lives[1].publish(0, staged[1], keyed((1, 1)))
    assert pairs_in(place) == [(1, 1)]


def test_an_epoch_that_replaces_all_rows_forgets_the_key_of_the_tag(keyed_place):
    place = keyed_place
    with catalog_that(place, refuses(400, *ALL)) as (options, _):
        IcebergLife(place.warehouse, **options, **BY_ID).epoch(0, keyed((1, 1)))
        replacing = IcebergLife(place.warehouse, **options, query="all", output=OutputMode.REPLACE)
        for epoch in (0, 1):
            replacing.epoch(epoch, keyed((2, epoch)))
            expire_others(place)
        by_k = IcebergLife(place.warehouse, **options, **BY_K, query="query-2")
        by_k.epoch(0, keyed((3, 1)))
        with pytest.raises(OptionError, match="is upserted by 'k'"):
            IcebergLife(place.warehouse, **options, **BY_ID, query="query-3").plan(keyed((1, 1)))
    assert pairs_in(place) == [(3, 1)]


def test_appends_that_are_allowed_between_upserts_leave_the_key(keyed_place):
    place = keyed_place
    with catalog_that(place, refuses(400, *ALL)) as (options, _):
        IcebergLife(place.warehouse, **options, **BY_ID).epoch(0, keyed((1, 1)))
        mixed = IcebergLife(place.warehouse, **options, allowMixedKeys="true")
        for epoch in (1, 2):
            mixed.epoch(epoch, keyed((epoch + 1, 1)))
            expire_others(place)
        with pytest.raises(OptionError, match="is upserted by 'id'"):
            IcebergLife(place.warehouse, **options).plan(keyed((1, 1)))
        IcebergLife(place.warehouse, **options, **BY_ID).epoch(3, keyed((3, 7)))
    assert pairs_in(place) == [(1, 1), (2, 1), (3, 7)]


def test_a_summary_that_is_no_list_of_ids_is_named(keyed_place):
    place = keyed_place
    with place.table() as table:
        table.append(keyed((1, 1)), snapshot_properties={"krishiv.upsert.key": "id"})
        snapshot = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_tag(snapshot, "krishiv.epoch.other").commit()
    with pytest.raises(OptionError, match=r"of tag 'krishiv\.epoch\.other' is 'id'"):
        place.life(**BY_ID).plan(keyed((1, 1)))


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


def test_a_batch_with_a_number_gets_a_tag_and_one_without_does_not(place):
    with catalog_that(place, drops) as (options, sent):
        options["warehouse"] = str(place.warehouse)
        job = Job(IcebergWriter, options)
        job.plan()
        job.commit(0, [job.task(0, 0, rows_of_life(0, 5))])
        assert place.ids() == list(range(5))
        commits = [one for one in sent if one.path.endswith("/tables/rows") and one.body]
        assert len(commits) == 1  # nothing but its rows
        with place.table() as table:
            assert [*table.refs()] == ["main"]
        numbers = {"txnAppId": "nightly", "txnVersion": "7"}
        for _ in range(2):
            numbered_job = Life(IcebergWriter, {**options, **numbers}, "nightly", OutputMode.APPEND)
            numbered_job.epoch(7, rows_of_life(5, 5))
        assert place.ids() == list(range(10))
        with place.table() as table:
            assert "krishiv.epoch.nightly" in table.refs()


def test_a_route_of_a_fan_out_upserts_where_a_tag_records_its_epochs(place, tmp_path, monkeypatch):
    with catalog_that(place, drops) as (options, _):
        table = {key: text for key, text in options.items() if key != "path"}
        route = {"format": "krishiv-iceberg", "table": place.name, **table, **BY_ID}
        fan = Fan(tmp_path / "fan", warehouse=str(place.warehouse), **route)
        fan.run(0, 0, 5)
        fan.die_behind_the_intent(monkeypatch, 1, 3, 5)
        for epoch, first in ((1, 3), (1, 3), (2, 6)):
            fan.run(epoch, first, 5)
        assert place.ids() == list(range(11))
        with place.table() as found:
            assert "krishiv.epoch.q1-b" in found.refs()
            assert not [name for name in found.properties if name.startswith("krishiv.epoch")]
        other = Fan(
            tmp_path / "other",
            query="q2",
            warehouse=str(place.warehouse),
            **{**route, "keyColumns": "day"},
        )
        with pytest.raises(PlanningFailed, match="is upserted by 'id'"):
            other.run(0, 0, 5)


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
