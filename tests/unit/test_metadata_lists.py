"""Metadata files are read and written as PyIceberg does it, whatever is known of earlier ones."""

import json
import tempfile
from operator import is_
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.types import LongType, NestedField

from krishiv_spark.iceberg import metadata_lists
from krishiv_spark.iceberg._pyiceberg import apply_updates, search_snapshots_quickly
from krishiv_spark.iceberg.metadata_files import MetadataFiles
from krishiv_spark.iceberg.metadata_lists import ListIntegers, is_extension

IO = PyArrowFileIO()


def new_table(version):
    return new_table_metadata(
        Schema(NestedField(1, "id", LongType(), required=False)),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        "file:///nowhere",
        {"format-version": str(version), "who": 'Jürgen "snapshots":[ \\'},
        UUID(int=7),
    )


def update(metadata, *updates):
    """Return the metadata of a commit, which shares its other snapshots."""
    name = "file:///nowhere/1.metadata.json"
    table = SimpleNamespace(name=lambda: ("t",), metadata=metadata, metadata_location=name)
    return apply_updates(table, updates)


def append(metadata, text):
    """Add a snapshot with a text in its summary."""
    number = max((one.snapshot_id for one in metadata.snapshots), default=10) + 1
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=metadata.current_snapshot_id,
        sequence_number=metadata.next_sequence_number(),
        timestamp_ms=1_700_000_000_000 + number,
        manifest_list=f"file:///nowhere/{number}.avro",
        summary=Summary(operation=Operation.APPEND, text=text),
        schema_id=0,
    )
    main = {"ref-name": "main", "type": "branch", "snapshot-id": number}
    return update(
        metadata, AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(main)
    )


def expire(metadata, count):
    """Remove the oldest snapshots, but never the current one."""
    oldest = [one.snapshot_id for one in metadata.snapshots[:-1]][:count]
    removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": oldest})
    return update(metadata, removal) if oldest else metadata


class Files:
    """The metadata files of one table, in the order of their writing."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.count = 0

    def next(self):
        self.count += 1
        return str(self.folder / f"{self.count:05}.metadata.json")

    def write_text(self, text):
        path = self.next()
        Path(path).write_text(text, encoding="utf-8")
        return path


def write_as_pyiceberg(files, metadata):
    ToOutputFile.table_metadata(metadata, IO.new_output(path := files.next()))
    return path


def rewrite(text, how, draw):
    """Return the text of a metadata file as another writer could have written it."""
    found = json.loads(text)
    if how == "edited" and found["snapshots"]:
        draw.choice(found["snapshots"])["summary"]["text"] = "edited"
    if how == "reordered":
        draw.shuffle(found["snapshots"])
    if how == "keys":
        found = dict(draw.sample(sorted(found.items()), len(found)))
    if how == "unknown":
        found = {"later": {"snapshots": [{"snapshot-id": 1}], "snapshot-log": []}, **found}
    if how == "absent" and not found["snapshots"]:
        found = {key: value for key, value in found.items() if not key.startswith("snapshot")}
    indent = 2 if how == "indented" else None
    return json.dumps(found, indent=indent, ensure_ascii=how != "unicode")


STEPS = st.sampled_from(
    ["append", "expire", "edited", "reordered", "keys", "unknown", "absent", "indented", "unicode"]
)


def test_summaries_share_their_keys(tmp_path):
    """A table keeps up to 10 000 of them."""
    metadata = append(append(new_table(2), "a"), "b")
    path = write_as_pyiceberg(Files(tmp_path), metadata)
    read = MetadataFiles().read(IO.new_input(path))
    one, other = (sorted(each.summary.additional_properties) for each in read.snapshots)
    assert one
    assert all(key is same for key, same in zip(one, other, strict=True))


@pytest.mark.long
@given(st.sampled_from([1, 2]), st.lists(STEPS, max_size=10), st.randoms(use_true_random=False))
def test_files_are_read_and_written_as_pyiceberg_does_it(version, steps, draw):
    with tempfile.TemporaryDirectory() as folder:
        files, metadata = Files(folder), new_table(version)
        # Of a planner, a committer, and a process that begins with each file.
        planner, committer = MetadataFiles(), MetadataFiles()
        for step in ["append", "append", "append", *steps]:
            if step == "append":
                for _ in range(draw.randint(1, 3)):
                    metadata = append(metadata, draw.choice(["Ü", "x" * 5000, "", '{"a":[1,2]}']))
            elif step == "expire":
                metadata = expire(metadata, draw.randint(1, 3))
            else:
                text = Path(write_as_pyiceberg(files, metadata)).read_text(encoding="utf-8")
                path = files.write_text(rewrite(text, step, draw))
                expected = FromInputFile.table_metadata(IO.new_input(path))
                assert planner.read(IO.new_input(path)) == expected
                metadata = committer.read(IO.new_input(path))
                assert metadata == expected
            committer.write(metadata, IO.new_output(path := files.next()))
            theirs = write_as_pyiceberg(files, metadata)
            assert json.loads(Path(path).read_bytes()) == json.loads(Path(theirs).read_bytes())
            for reader in (planner, MetadataFiles()):
                assert reader.read(IO.new_input(path)) == metadata


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def make(count, version=2):
    metadata = new_table(version)
    for _ in range(count):
        metadata = append(metadata, "")
    return metadata


def count_decoded(monkeypatch):
    decoded, real = [], metadata_lists._decode_at

    def decode(text, at):
        decoded.append(at)
        return real(text, at)

    monkeypatch.setattr(metadata_lists, "_decode_at", decode)
    return decoded


def test_only_new_items_are_parsed(files, monkeypatch):
    metadata, reader = make(50), MetadataFiles()
    reader.read(IO.new_input(write_as_pyiceberg(files, metadata)))
    decoded = count_decoded(monkeypatch)
    metadata = append(metadata, "new")
    assert reader.read(IO.new_input(write_as_pyiceberg(files, metadata))) == metadata
    assert len(decoded) == 2  # the snapshot and its log entry
    decoded.clear()
    metadata = expire(append(metadata, "new"), 20)
    assert reader.read(IO.new_input(write_as_pyiceberg(files, metadata))) == metadata
    # The oldest snapshot, which lost its parent's id, the oldest log entry, and two new items.
    assert len(decoded) == 4
    decoded.clear()
    text = Path(write_as_pyiceberg(files, metadata)).read_text()
    before = '40.avro","summary":{"operation":"append"'
    text = text.replace(before, before.replace("append", "delete"))
    found = reader.read(IO.new_input(files.write_text(text)))
    (edited,) = [one for one in found.snapshots if one.summary.operation is Operation.DELETE]
    assert (edited.snapshot_id, len(decoded)) == (40, 1)


@pytest.mark.parametrize("version", [1, 2])
def test_only_new_items_are_serialized(files, monkeypatch, version):
    metadata, writer = make(50, version), MetadataFiles()
    writer.write(metadata, IO.new_output(files.next()))
    dumped, real = [], Snapshot.model_dump_json
    monkeypatch.setattr(
        Snapshot, "model_dump_json", lambda self: dumped.append(self.snapshot_id) or real(self)
    )
    metadata = append(expire(metadata, 20), "new")
    writer.write(metadata, IO.new_output(path := files.next()))
    assert dumped == [31, 61]
    assert FromInputFile.table_metadata(IO.new_input(path)) == metadata


def test_a_list_that_only_grew_is_recognized_without_comparing_its_models():
    known = [object() for _ in range(5)]
    assert is_extension([*known, object()], known)
    others = [known, known[:4], known[1:], [*known[:3], object(), *known[3:], object()], []]
    assert not any(is_extension(items, known) for items in others)
    assert not is_extension(known, [])


def test_a_snapshot_is_found_after_each_change_of_the_list():
    search_snapshots_quickly()
    metadata = make(5)
    damaged = metadata.snapshots[2].model_copy(update={"snapshot_id": 2**70})
    replaced = [*metadata.snapshots[:2], damaged, *metadata.snapshots[3:]]
    shorter = expire(metadata, 2)
    changed = [metadata, append(metadata, "new"), shorter, append(shorter, "other")]
    for one in (*changed, metadata.model_copy(update={"snapshots": replaced}), metadata):
        found = [one.snapshot_by_id(each.snapshot_id) for each in one.snapshots]
        assert all(map(is_, found, one.snapshots))
        there = {each.snapshot_id for each in one.snapshots}
        assert not any(map(one.snapshot_by_id, {7, 2**71, *range(200)} - there))
    assert metadata.model_copy(update={"snapshots": []}).snapshot_by_id(7) is None


def test_an_integer_is_read_once_of_each_model():
    read = []
    integers = ListIntegers(lambda model: read.append(model) or len(model))
    items = ["a", "bb"]
    assert integers.get("table", items).tolist() == [1, 2]
    assert integers.get("table", [*items, "ccc"]).tolist() == [1, 2, 3]
    assert read == ["a", "bb", "ccc"]
    assert integers.get("other", items[1:]).tolist() == [2]
    assert integers.get("table", ["dddd", *items]).tolist() == [4, 1, 2]


def test_an_upgraded_table_gets_the_sequence_numbers_of_its_snapshots(files):
    metadata, writer = make(3, 1), MetadataFiles()
    writer.write(metadata, IO.new_output(path := files.next()))
    assert "sequence-number" not in Path(path).read_text()
    upgraded = metadata.to_v2().model_copy(update={"snapshots": metadata.snapshots})
    writer.write(upgraded, IO.new_output(path := files.next()))
    assert Path(path).read_text().count('"sequence-number":0') == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('}],"snapshot-log"', '},],"snapshot-log"'),
        lambda text: text.replace('},{"snapshot-id"', '}{"snapshot-id"', 1),
        lambda text: text.replace('"snapshots":[', '"snapshots":7,['),
        lambda text: text[: text.index('"snapshot-log"') - 20],
        lambda text: text + "]",
        lambda text: text.replace('"snapshots":[{', '"snapshots":[7,{'),
    ],
    ids=["comma", "no comma", "no list", "cut off", "longer", "number"],
)
def test_a_damaged_list_is_refused_as_by_pyiceberg(files, change):
    metadata, reader = make(3), MetadataFiles()
    text = Path(path := write_as_pyiceberg(files, metadata)).read_text()
    assert change(text) != text
    reader.read(IO.new_input(path))
    damaged = IO.new_input(files.write_text(change(text)))
    for read in (FromInputFile.table_metadata, reader.read, MetadataFiles().read):
        with pytest.raises(ValidationError):
            read(damaged)


@pytest.mark.parametrize("empty", ["[]", "[ ]", "null"])
def test_keys_that_are_repeated_count_as_for_pyiceberg(files, empty):
    text = Path(write_as_pyiceberg(files, make(3))).read_text()
    path = files.write_text(f'{text[:-1]},"snapshots":{empty}}}')
    outcomes = []
    for read in (FromInputFile.table_metadata, MetadataFiles().read):
        try:
            outcomes.append(read(IO.new_input(path)))
        except ValidationError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]
