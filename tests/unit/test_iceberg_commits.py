"""The cached results of commits equal those that PyIceberg reads from the files."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_life import IcebergLife, at_next_commit, ids, numbered, table_of
from pyiceberg.avro.file import AvroFile
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, DataFile, ManifestEntry, write_manifest
from pyiceberg.serializers import FromInputFile
from pyiceberg.types import StringType

from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.file_io import GuardedFileIO
from krishiv_spark.iceberg.metadata_files import MetadataFiles
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.iceberg import epoch_snapshot
from krishiv_spark.sinks.iceberg.maintenance.compaction import Compaction, CompactionRequest

_EPOCHS = 66  # manifests of manifests that were merged are merged


def remembered(life):
    """The table as the sink's own catalog of this process gives it."""
    return open_table(life.writer(numbered(0)).options)


def header(table, path):
    with AvroFile(
        table.io.new_input(path),
        MANIFEST_ENTRY_SCHEMAS[2],
        read_types={-1: ManifestEntry, 2: DataFile},
    ) as file:
        return dict(file.header.meta)


@pytest.mark.long
@pytest.mark.parametrize("version", ["1", "2"])
def test_what_is_remembered_is_what_was_written(tmp_path, version):
    given = {"tableProperty.format-version": version, "partitionBy": "bucket(2, id)"}
    life = IcebergLife(tmp_path, keepSnapshots="5", keepMetadataFiles="3", **given)
    for epoch in range(_EPOCHS):
        life.epoch(epoch, numbered(epoch))
    written = table_of(tmp_path)
    assert remembered(life).metadata == written.metadata
    snapshot = written.current_snapshot()
    listed = epoch_snapshot._LISTS.get(snapshot.manifest_list)
    read = snapshot.manifests(written.io)
    assert [vars_of(manifest) for manifest in listed] == [vars_of(manifest) for manifest in read]
    assert len(read) < 16
    assert ids(tmp_path) == list(range(10 * _EPOCHS))


def vars_of(manifest):
    return [manifest[position] for position in range(len(manifest))]


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_manifest_begins_as_one_of_pyiceberg_s(tmp_path, version):
    life = IcebergLife(tmp_path, **{"tableProperty.format-version": version})
    for epoch in range(2):
        life.epoch(epoch, numbered(epoch))
    table = table_of(tmp_path)
    newest = table.current_snapshot()
    (entry,) = table.inspect.manifests().slice(0, 1)["path"].to_pylist()
    (data_file, *_) = (task.file for task in table.scan().plan_files())
    place = f"{tmp_path}/by-pyiceberg.avro"
    form = (int(version), table.spec(), table.schema(), table.io.new_output(place))
    with write_manifest(*form, newest.snapshot_id, "gzip") as writer:
        writer.add(ManifestEntry.from_args(data_file=data_file))
    assert header(table, entry) == header(table, place)


def test_columns_that_were_added_are_in_the_next_manifest(tmp_path):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    with table_of(tmp_path).update_schema() as update:
        update.add_column("later", StringType())
    life.epoch(1, numbered(1))
    table = table_of(tmp_path)
    texts = [
        header(table, manifest.manifest_path)["schema"]
        for manifest in table.current_snapshot().manifests(table.io)
    ]
    assert ['"later"' in text for text in texts] == [True, False]


def test_a_commit_of_somebody_else_is_seen(tmp_path):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    before = remembered(life).metadata_location
    table_of(tmp_path).append(numbered(7))
    assert remembered(life).metadata_location != before
    life.epoch(1, numbered(1))
    assert ids(tmp_path) == [*range(20), *range(70, 80)]


def test_a_table_keeps_its_metadata_when_another_one_commits(tmp_path):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    table = remembered(life)
    before = table.metadata.model_dump_json()
    life.epoch(1, numbered(1))
    assert table.metadata.model_dump_json() == before


def test_recent_holds_what_was_used_last():
    recent = LruCache(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]
    recent.put("a", 4)
    assert recent.get("a") == 4


def test_recent_holds_no_more_than_a_weight_but_always_the_newest():
    recent = LruCache(10, len)
    for key in "abc":
        recent.put(key, "four")
    assert [recent.get(key) for key in "abc"] == [None, "four", "four"]
    recent.put("b", "sixsix")  # in the place of the other one: ten together
    assert [recent.get(key) for key in "bc"] == ["sixsix", "four"]
    recent.put("d", "more than all of that")
    assert [recent.get(key) for key in "bcd"] == [None, None, "more than all of that"]


def test_recent_is_for_any_thread():
    recent = LruCache(4)

    def use(first):
        for number in range(5_000):
            recent.put((first + number) % 9, number)
            recent.get(number % 9)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))  # raises what they raise
    assert len(recent) == 4


def each_metadata_file(folder):
    table = table_of(folder)
    files = [entry.metadata_file for entry in table.metadata.metadata_log]
    return [table.io.new_input(file) for file in [*files, table.metadata_location]]


@pytest.mark.parametrize("version", ["1", "2"])
def test_metadata_is_read_as_pyiceberg_reads_it_and_old_snapshots_are_not_made_again(
    tmp_path, version
):
    given = {"tableProperty.format-version": version, "partitionBy": "bucket(2, id)"}
    life = IcebergLife(tmp_path, keepSnapshots="5", **given)
    for epoch in range(8):
        life.epoch(epoch, numbered(epoch))
    reader, seen = MetadataFiles(), {}
    for file in each_metadata_file(tmp_path):
        found = reader.read(file)
        assert found == FromInputFile.table_metadata(file)
        # The oldest loses its parent's id when that expires: it is another one from then on.
        again = [each for each in found.snapshots if seen.get(each.snapshot_id) == each]
        assert all(snapshot is seen[snapshot.snapshot_id] for snapshot in again)
        assert len(again) >= min(len(seen), 3)
        seen |= {snapshot.snapshot_id: snapshot for snapshot in found.snapshots}
    assert len(seen) >= 8


def test_what_is_said_of_a_snapshot_counts_and_not_its_id(tmp_path):
    life = IcebergLife(tmp_path)
    for epoch in range(2):
        life.epoch(epoch, numbered(epoch))
    file, reader = each_metadata_file(tmp_path)[-1], MetadataFiles()
    reader.read(file)
    path = Path(file.location.removeprefix("file://"))
    text = path.read_text()
    path.write_text(text.replace('"total-records":"20"', '"total-records":"21"'))
    assert path.read_text() != text
    assert reader.read(file) == FromInputFile.table_metadata(file)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"table-uuid": 1}', "\ufeff{"])
def test_a_damaged_metadata_file_is_told_of_by_pyiceberg(tmp_path, text):
    path = tmp_path / "v1.metadata.json"
    path.write_text(text)
    file = PyArrowFileIO().new_input(str(path))
    with pytest.raises(ValidationError):
        FromInputFile.table_metadata(file)
    with pytest.raises(ValidationError):
        MetadataFiles().read(file)


# --- attempts after a lost race


class Written:
    """The manifests and lists that are written, apart by attempt."""

    def __init__(self, monkeypatch):
        self.attempts = [[]]
        real = GuardedFileIO.new_output

        def new_output(io, location):
            if location.endswith(".avro"):
                self.attempts[-1].append(location)
            return real(io, location)

        monkeypatch.setattr(GuardedFileIO, "new_output", new_output)

    def lists(self, attempt):
        return [path for path in self.attempts[attempt] if "/snap-" in path]


def assert_only_listed_manifests(folder):
    table = table_of(folder)
    listed = {
        manifest.manifest_path
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
    }
    there = {str(path) for path in folder.glob("**/*-m*.avro")}
    assert there == {path.removeprefix("file://") for path in listed}


@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"mode": "upsert", "keyColumns": "id", "upsertMode": "copy-on-write"},
        {"mode": "upsert", "keyColumns": "id", "upsertMode": "merge-on-read"},
    ],
    ids=["append", "copy-on-write", "merge-on-read"],
)
@pytest.mark.parametrize("branch", ["other", "main"])
def test_an_attempt_after_a_lost_race_writes_only_its_list(tmp_path, monkeypatch, mode, branch):
    """Also where it merges manifests, and writes those of files that are removed or remain."""
    life = IcebergLife(tmp_path, **mode)
    for epoch in range(7):  # with the next one, there are eight manifests to merge
        life.epoch(epoch, numbered(epoch))
    table = table_of(tmp_path)
    if branch == "other":
        head = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(head, "other").commit()
    written = Written(monkeypatch)

    def other_is_faster(commit):
        table_of(tmp_path).append(numbered(90, 1), branch=branch)
        written.attempts.append([])
        commit()

    at_next_commit(monkeypatch, other_is_faster)
    changed = pa.table({"id": [3, 77], "text": ["new", "new"]})
    life.epoch(7, changed)
    first, second = written.attempts[0], written.attempts[1]
    assert len(written.lists(0)) == len(written.lists(1)) == 1
    assert len(first) > 2  # among them the merged one
    limit = 0 if branch == "other" else 1  # it merges the other program's manifest, too
    assert len(second) - 1 <= limit, second
    assert_only_listed_manifests(tmp_path)
    assert_numbered_as_committed(table_of(tmp_path))
    rows = table_of(tmp_path).scan().to_arrow()["id"].to_pylist()
    expected = [*range(70), 77] if mode else [*range(70), 3, 77]
    assert sorted(rows) == sorted([*expected, *([90] if branch == "main" else [])])


def assert_numbered_as_committed(table):
    """The files of the newest snapshot have its number: an equality delete from before spares them.

    PyIceberg and Iceberg-Java read the number from the list of manifests.
    """
    snapshot = table.current_snapshot()
    listed = snapshot.manifests(table.io)
    own = [one for one in listed if one.added_snapshot_id == snapshot.snapshot_id]
    assert own
    assert {one.sequence_number for one in own} == {snapshot.sequence_number}
    for manifest in own:
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.snapshot_id == snapshot.snapshot_id:
                assert entry.sequence_number == snapshot.sequence_number


@pytest.mark.long
@pytest.mark.parametrize("branch", ["other", "main"])
def test_a_compaction_after_a_lost_race_writes_only_its_list(tmp_path, monkeypatch, branch):
    life = IcebergLife(tmp_path, mode="upsert", keyColumns="id", upsertMode="merge-on-read")
    for epoch in range(5):
        life.epoch(epoch, numbered(epoch))
    life.epoch(5, pa.table({"id": [3, 23], "text": ["new", "new"]}))
    table = table_of(tmp_path)
    if branch == "other":
        head = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(head, "other").commit()
    options = life.writer(numbered(0)).options
    groups = CompactionRequest().find_groups(open_table(options), options)
    written = Written(monkeypatch)

    def other_is_faster(commit):
        table_of(tmp_path).append(numbered(90, 1), branch=branch)
        written.attempts.append([])
        commit()

    at_next_commit(monkeypatch, other_is_faster)
    done = Compaction(options).run(open_table(options), groups)
    assert (done.groups, done.dropped) == (len(groups), 0)
    assert len(written.attempts[0]) > 2
    assert written.attempts[1] == written.lists(1)
    assert_only_listed_manifests(tmp_path)
    assert_numbered_as_committed(table_of(tmp_path))
    rows = table_of(tmp_path).scan().to_arrow()["id"].to_pylist()
    assert sorted(rows) == [*range(50), *([90] if branch == "main" else [])]
