"""What commits remember is what PyIceberg reads from the files."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from iceberg_life import IcebergLife, ids, numbered, table_of
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, DataFile, ManifestEntry, write_manifest
from pyiceberg.types import StringType

from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.lru import LruCache
from krishiv_spark.sinks.iceberg import manifests

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


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_is_remembered_is_what_was_written(tmp_path, version):
    given = {"tableProperty.format-version": version, "partitionBy": "bucket(2, id)"}
    life = IcebergLife(tmp_path, keepSnapshots="5", keepMetadataFiles="3", **given)
    for epoch in range(_EPOCHS):
        life.epoch(epoch, numbered(epoch))
    written = table_of(tmp_path)
    assert remembered(life).metadata == written.metadata
    snapshot = written.current_snapshot()
    listed = manifests._LISTS.get(snapshot.snapshot_id)
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


def test_recent_is_for_any_thread():
    recent = LruCache(4)

    def use(first):
        for number in range(5_000):
            recent.put((first + number) % 9, number)
            recent.get(number % 9)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))  # raises what they raise
    assert len(recent) == 4
