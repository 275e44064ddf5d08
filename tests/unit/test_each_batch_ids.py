"""Ids of queries in ``foreachBatch``, whose driver reads another checkpoint than Spark, or none.

A port on which nothing listens is an HDFS that cannot be reached from here.
"""

import json
import shutil
import socket
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.sinks.each_batch import BatchQuery
from krishiv_spark.spark.checkpoint import QUERY_ID_PROPERTY


def batch_of(query):
    """A batch, as far as the id of its query is read from it."""
    context = SimpleNamespace(getLocalProperty={QUERY_ID_PROPERTY: query}.get)
    return SimpleNamespace(sparkSession=SimpleNamespace(_sc=context))


def id_of_query(batch, caller, checkpoint) -> str:
    return BatchQuery.of(batch, caller, None, checkpoint).name


def make_checkpoint(folder: Path, query: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    return str(folder)


def stored(folder: Path) -> bool:
    return (folder / "krishiv" / "query-id.json").exists()


def test_a_lost_id_is_noticed_in_a_process_that_has_stored_the_old_one(tmp_path):
    place = make_checkpoint(tmp_path / "c", "old")
    assert id_of_query(batch_of("old"), "each_batch", place) == "old"
    assert stored(tmp_path / "c")
    make_checkpoint(tmp_path / "c", "new")
    with pytest.raises(CheckpointMismatch, match="to query old"):
        id_of_query(batch_of("new"), "each_batch", place)


def test_queries_that_name_the_folder_around_their_checkpoints_all_go_on(tmp_path, caplog):
    for name in ("a", "b"):
        make_checkpoint(tmp_path / name, name)
        for _ in range(2):  # batches
            assert id_of_query(batch_of(name), "each_batch", str(tmp_path)) == name
    assert caplog.text.count("cannot be read here") == 2
    assert not stored(tmp_path)


def test_a_query_that_names_the_checkpoint_of_another_stores_nothing_there(tmp_path, caplog):
    place = make_checkpoint(tmp_path / "a", "a")
    assert id_of_query(batch_of("b"), "each_batch", place) == "b"
    assert "names query a, and this one is b" in caplog.text
    assert id_of_query(batch_of("a"), "each_batch", place) == "a"
    assert stored(tmp_path / "a")


def test_a_path_that_spark_has_in_another_file_system_is_not_made_on_the_drivers_disk(tmp_path):
    place = tmp_path / "orders"
    for query in ("first", "after-a-full-refresh"):
        assert id_of_query(batch_of(query), "each_batch", str(place)) == query
    assert not place.exists()


def test_a_checkpoint_that_was_removed_and_made_again_is_another_query(tmp_path):
    for query in ("old", "new"):
        place = make_checkpoint(tmp_path / "c", query)
        assert id_of_query(batch_of(query), "each_batch", place) == query
        assert stored(tmp_path / "c")
        shutil.rmtree(place)


@pytest.mark.long
def test_a_store_that_does_not_answer_is_asked_once_and_not_for_each_batch(caplog):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    # It is closed now: nothing listens there.
    place = f"hdfs://127.0.0.1:{port}/{uuid.uuid4()}"
    id_of_query(batch_of("q"), "each_batch", place)
    begun_s = time.monotonic()
    for _ in range(100):
        assert id_of_query(batch_of("q"), "each_batch", place) == "q"
    assert time.monotonic() - begun_s < 10
    assert caplog.text.count("cannot be read here") == 1


def test_a_named_query_keeps_spark_s_id_and_outlives_what_it_cannot_read(tmp_path):
    place = make_checkpoint(tmp_path / "c", "old")
    given = BatchQuery.of(batch_of("old"), "each_batch", "orders", place).options(3, output="o")
    assert given["txnAppId"] == "orders-o"
    assert (given["txnQueryId"], given["txnCheckpoint"]) == ("old", place)
    assert not stored(tmp_path / "c")
    away = BatchQuery.of(batch_of("old"), "each_batch", "orders", str(tmp_path / "away"))
    assert "txnCheckpoint" not in away.options(3)


def test_a_query_without_an_id_goes_on_by_its_name():
    """As under Spark Connect without a checkpoint."""
    given = BatchQuery.of(batch_of(None), "each_batch", "orders", None).options(3)
    assert given == {"txnAppId": "orders", "txnVersion": "3", "txnRepeats": "newest"}
