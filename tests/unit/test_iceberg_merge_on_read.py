"""Upserts that delete rows by position: compared with a dictionary, read by PyIceberg and by us."""

import itertools
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_life import IcebergLife, at_next_commit
from iceberg_reading import batch
from iceberg_tables import NAME, append, compact, delete_rows, make_table, paths, table_in
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform

from krishiv_spark.errors import CommitRejected, OptionError
from krishiv_spark.iceberg.file_io import GuardedFileIO
from krishiv_spark.iceberg.property_keys import MERGE_MODE
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.iceberg.epoch_updates import check_fits
from krishiv_spark.sinks.iceberg.upserts import replaced_rows
from krishiv_spark.sinks.iceberg.upserts.key_index import CachedKeys
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import RowLookup

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
MERGE = {
    "path": NAME,
    "mode": "upsert",
    "keyColumns": "id",
    "opColumn": "op",
    "upsertMode": "merge-on-read",
}


class Merging(IcebergLife):
    """A query that upserts into ``db.t`` by position deletes; it knows what the table must have."""

    def __init__(self, folder, **more):
        super().__init__(folder, **{**MERGE, **more})
        self.folder, self.next, self.expected = Path(folder), 0, {}

    def __call__(self, *changes):
        rows = to_changes(changes)
        self.epoch(self.next, rows)
        self.next += 1
        self.apply(changes)

    def apply(self, changes):
        for key, text, op in changes:
            if op == "d":
                self.expected.pop(key, None)
            else:
                self.expected[key] = text

    def check(self):
        found = table_in(self.folder).scan().to_arrow()
        assert Counter(pairs(found)) == Counter(self.expected.items())
        assert Counter(pairs(batch(self.folder))) == Counter(self.expected.items())
        check_totals(self.folder)


def to_changes(changes):
    ids, texts, ops = zip(*changes, strict=True)
    columns = [pa.array(ids, pa.int64()), pa.array(texts, pa.string()), pa.array(ops)]
    return pa.table(columns, names=["id", "text", "op"])


def pairs(table):
    return list(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


def entries(folder, content):
    """The entries of the newest snapshot's manifests of one kind."""
    table = table_in(folder)
    return [
        entry
        for manifest in table.current_snapshot().manifests(table.io)
        if manifest.content == content
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def data_files(folder):
    return [entry.data_file for entry in entries(folder, ManifestContent.DATA)]


def delete_files(folder):
    return [entry.data_file for entry in entries(folder, ManifestContent.DELETES)]


def check_totals(folder):
    """Compare the totals of the newest summary with the manifests."""
    data, deletes = data_files(folder), delete_files(folder)
    assert all(file.content == DataFileContent.POSITION_DELETES for file in deletes)
    summary = table_in(folder).current_snapshot().summary
    counted = {
        "total-data-files": len(data),
        "total-records": sum(file.record_count for file in data),
        "total-delete-files": len(deletes),
        "total-position-deletes": sum(file.record_count for file in deletes),
        "total-equality-deletes": 0,
        "total-files-size": sum(file.file_size_in_bytes for file in (*data, *deletes)),
    }
    assert {name: int(summary[name]) for name in counted} == counted


@pytest.fixture
def folder(tmp_path):
    make_table(tmp_path, SCHEMA)
    return tmp_path


def fresh(*keys):
    return pa.table([pa.array(keys, pa.int64()), pa.array(["x"] * len(keys))], schema=SCHEMA)


# --- one snapshot


def test_an_epoch_deletes_rows_by_position_and_leaves_their_files_unchanged(folder):
    append(folder, fresh(1, 2, 3, 4))
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys((1, 2, 3, 4), "x")
    before = paths(folder)
    upsert((2, "b", "u"), (3, None, "d"), (9, "i", "c"))
    upsert.check()
    table = table_in(folder)
    assert set(before) < set(paths(folder))
    assert table.current_snapshot().summary.operation is Operation.OVERWRITE
    assert table.properties["krishiv.epoch.query-1"] == "0"
    assert len(table.snapshots()) == 2
    (file,) = delete_files(folder)
    assert pq.read_table(file.file_path).to_pydict() == {"file_path": before * 2, "pos": [1, 2]}
    assert file.sort_order_id is None


def test_changes_of_one_key_in_one_epoch(folder):
    append(folder, fresh(1, 2))
    upsert = Merging(folder)
    upsert.expected = {1: "x", 2: "x"}
    upsert((1, "a", "u"), (1, "b", "u"), (7, "new", "c"), (7, None, "d"), (2, None, "d"))
    upsert((2, None, "d"), (2, "again", "c"))
    upsert.check()
    assert upsert.expected == {1: "b", 2: "again"}


def test_an_epoch_of_new_keys_is_an_append_and_one_of_deletes_a_delete(folder):
    upsert = Merging(folder)
    upsert((1, "a", "c"), (2, "b", "c"), (3, "c", "c"))
    upsert((4, "d", "c"))
    upsert((2, None, "d"))
    upsert((77, None, "d"))  # which is in no file
    upsert.check()
    found = [one.summary.operation for one in table_in(folder).snapshots()]
    kinds = [Operation.APPEND, Operation.APPEND, Operation.DELETE, Operation.APPEND]
    assert found == kinds


def test_a_file_without_remaining_rows_leaves_the_table(folder):
    upsert = Merging(folder)
    upsert((1, "a", "c"), (2, "b", "c"), (3, "c", "c"))
    upsert((1, "A", "u"))
    upsert((2, "B", "u"))
    upsert((3, "C", "u"), (1, "AA", "u"))
    upsert.check()
    assert [file.record_count for file in data_files(folder)] == [2, 1]


def test_rows_that_others_deleted_are_not_deleted_again(folder):
    append(folder, fresh(1, 2, 3))
    delete_rows(folder, {paths(folder)[0]: [0, 1]})
    upsert = Merging(folder)
    upsert.expected = {3: "x"}
    upsert((1, "a", "u"), (2, None, "d"))
    assert len(delete_files(folder)) == 1  # that of the other program
    upsert((3, "c", "u"))
    upsert.expected = {1: "a", 3: "c"}
    assert dict(pairs(batch(folder))) == upsert.expected


def test_rows_of_one_key_all_go(folder):
    """Rows that were appended may have one key."""
    append(folder, fresh(1, 1, 2))
    append(folder, fresh(1, 3))
    upsert = Merging(folder)
    upsert((1, "one", "u"))
    upsert.expected = {1: "one", 2: "x", 3: "x"}
    upsert.check()


def change_five_of_a_hundred(folder):
    append(folder, fresh(*range(100)))
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys(range(100), "x")
    upsert(*((key, f"{key}", "u") for key in (0, 6, 7, 50, 99)))
    upsert.check()


def test_files_of_many_chunks(folder, monkeypatch):
    monkeypatch.setattr(replaced_rows, "_CHUNK_ROWS", 7)
    change_five_of_a_hundred(folder)


# --- random histories


@pytest.mark.long  # 5 s
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "given",
    [{}, {"partitionBy": "bucket(3, id)"}, {"sortBy": "text"}],
    ids=["plain", "buckets", "sorted"],
)
def test_random_histories_equal_a_dictionary(tmp_path, seed, given):
    pick, upsert = random.Random(seed), Merging(tmp_path, **given)
    upsert((0, "first", "c"))
    numbers = itertools.count(1000)
    for step in range(14):
        kind = pick.choice(["upsert", "upsert", "upsert", "append", "compact"])
        if kind == "append" and not given:
            keys = [next(numbers) for _ in range(pick.randint(1, 5))]
            append(tmp_path, fresh(*keys))
            upsert.expected |= dict.fromkeys(keys, "x")
        elif kind == "compact" and not given:
            compact(tmp_path)
        else:
            keys = [*range(12), *upsert.expected]
            count = pick.randint(1, 8)
            upsert(*((pick.choice(keys), f"{step}", pick.choice("uucd")) for _ in range(count)))
        if step % 4 == 3:
            upsert.check() if kind != "compact" else None
    upsert((0, "last", "u"))
    upsert.check()


@pytest.mark.long  # 3 s
def test_manifests_of_deletes_are_merged_too(tmp_path):
    upsert = Merging(tmp_path)
    upsert(*((key, "", "c") for key in range(100)))
    for epoch in range(30):
        upsert((epoch, f"{epoch}", "u"), (50 + epoch, f"{epoch}", "u"))
    upsert.check()
    table = table_in(tmp_path)
    assert len(table.current_snapshot().manifests(table.io)) <= 20


@pytest.mark.long  # 3 s
@pytest.mark.parametrize("given", [{}, {"partitionBy": "bucket(2, id)"}], ids=["plain", "buckets"])
def test_delete_files_are_merged_so_that_they_stay_few(tmp_path, given):
    upsert = Merging(tmp_path, **given)
    upsert(*((key, "", "c") for key in range(200)))
    for epoch in range(40):
        upsert(*((4 * epoch + number, f"{epoch}", "u") for number in range(4)))
        assert len(delete_files(tmp_path)) <= 30
    upsert.check()
    assert len(delete_files(tmp_path)) <= 16


@pytest.mark.long
def test_deletes_of_files_that_have_left_the_table_leave_it_too(tmp_path):
    upsert = Merging(tmp_path)
    for epoch in range(12):
        upsert((epoch % 3, f"{epoch}", "u"), (3, f"{epoch}", "u"))
    upsert.check()
    assert len(data_files(tmp_path)) <= 4
    assert len(delete_files(tmp_path)) <= 4


def test_complete_mode_and_overwrites_remove_delete_files(tmp_path):
    upsert = Merging(tmp_path)
    upsert((1, "a", "c"), (2, "b", "c"))
    upsert((1, "A", "u"))
    life = IcebergLife(tmp_path, path=NAME, query="other", output=OutputMode.REPLACE)
    life.epoch(0, fresh(7, 8))
    upsert.expected = {7: "x", 8: "x"}
    upsert.check()
    assert not delete_files(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(3)], ids=str)
def test_a_delete_has_the_partition_spec_of_its_data_file(folder, transform):
    append(folder, fresh(1, 2, 3))
    with table_in(folder).update_spec() as update:
        update.add_field("id", transform, "part")
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys((1, 2, 3), "x")
    upsert((4, "a", "c"), (5, "b", "c"), (2, "c", "u"))
    with table_in(folder).update_spec() as update:
        update.add_field("text", TruncateTransform(1), "letter")
    upsert((1, "d", "u"), (6, "e", "c"), (7, "f", "c"))
    upsert((3, "g", "u"), (6, "e2", "u"), (5, None, "d"), (4, "a2", "u"))
    upsert.check()
    specs = {file.file_path: (file.spec_id, file.partition) for file in data_files(folder)}
    for file in delete_files(folder):
        named = pq.read_table(file.file_path)["file_path"].to_pylist()
        assert {specs.get(path, (file.spec_id, file.partition)) for path in named} == {
            (file.spec_id, file.partition)
        }


def test_a_table_that_is_upgraded_meanwhile_is_refused(folder):
    append(folder, fresh(1, 2))
    staged = Merging(folder).stage(0, to_changes([(1, "a", "u")]))
    # PyIceberg cannot upgrade a table to this version.
    upgraded = table_in(folder).metadata.model_copy(update={"format_version": 3})
    with pytest.raises(CommitRejected, match="upgraded to format version 3"):
        check_fits(staged, upgraded)


# --- concurrency


def test_a_lost_race_reads_only_the_files_that_are_new(folder, monkeypatch):
    append(folder, fresh(1, 2, 3))
    append(folder, fresh(4, 5))
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys(range(1, 6), "x")
    read, real = [], RowLookup.find_positions

    def find_positions(lookup, file, keys):
        read.append(file.file_path)
        return real(lookup, file, keys)

    monkeypatch.setattr(RowLookup, "find_positions", find_positions)

    def other_is_faster(commit):
        append(folder, fresh(2, 6))
        commit()

    at_next_commit_of_epoch(upsert, monkeypatch, other_is_faster)
    upsert((2, "b", "u"), (4, None, "d"))
    assert len(read) == len(set(read)) == 3
    upsert.expected[6] = "x"
    upsert.check()
    assert unnamed(folder) == set()


def test_a_compaction_between_planning_and_commit(folder, monkeypatch):
    append(folder, fresh(1, 2, 3))
    append(folder, fresh(4, 5))
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys(range(1, 6), "x")

    def other_is_faster(commit):
        compact(folder)
        commit()

    at_next_commit_of_epoch(upsert, monkeypatch, other_is_faster)
    upsert((2, "b", "u"), (4, None, "d"))
    upsert.check()
    assert [file.record_count for file in data_files(folder)] == [1, 5]
    (file,) = delete_files(folder)
    assert file.record_count == 2
    assert unnamed(folder) == set()  # the deletes of the first attempt, of files that have gone


def test_other_deletes_between_planning_and_commit(folder, monkeypatch):
    append(folder, fresh(1, 2, 3))
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys((1, 2, 3), "x")

    def other_is_faster(commit):
        delete_rows(folder, {path: [0, 1] for path in paths(folder)})
        commit()

    at_next_commit_of_epoch(upsert, monkeypatch, other_is_faster)
    upsert((2, "b", "u"), (3, None, "d"))
    assert Counter(pairs(batch(folder))) == Counter({(2, "b"): 1})
    assert unnamed(folder) == set()


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_answer_that_is_lost(folder, monkeypatch, is_committed):
    append(folder, fresh(1, 2, 3))
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys((1, 2, 3), "x")

    def lose(commit):
        if is_committed:
            commit()
        raise ConnectionResetError("no answer")

    at_next_commit_of_epoch(upsert, monkeypatch, lose)
    upsert((2, "b", "u"), (3, None, "d"))
    upsert.check()
    assert len(delete_files(folder)) == 1


def test_a_refused_commit_leaves_no_file(folder, monkeypatch):
    append(folder, fresh(1, 2, 3))
    upsert = Merging(folder, commitTimeout="1 ms")
    there = {*folder.rglob("data/*")}

    def refuse(commit):
        del commit
        raise CommitFailedException("another commit was faster")

    at_next_commit_of_epoch(upsert, monkeypatch, refuse)
    with pytest.raises(Exception, match="is not in the table after 1 attempts"):
        upsert((2, "b", "u"), (3, None, "d"))
    assert {*folder.rglob("data/*")} == there


def test_files_too_large_for_the_index(folder, monkeypatch):
    monkeypatch.setattr(replaced_rows, "_KEYS", CachedKeys(most_bytes=1000))
    monkeypatch.setattr(replaced_rows, "_CHUNK_ROWS", 7)
    change_five_of_a_hundred(folder)
    assert not len(replaced_rows._KEYS._files)


def test_an_epoch_reads_no_file_twice(folder, monkeypatch):
    """Neither keys nor deletes, as long as the process lives."""
    append(folder, fresh(*range(20)))
    upsert = Merging(folder)
    upsert.expected = dict.fromkeys(range(20), "x")
    upsert((1, "a", "u"), (2, "a", "u"))
    opened, real = [], GuardedFileIO.new_input

    def new_input(io, location):
        opened.append(location)
        return real(io, location)

    monkeypatch.setattr(GuardedFileIO, "new_input", new_input)
    upsert((1, "b", "u"), (3, "b", "u"))
    upsert((3, "c", "u"), (4, "c", "u"))
    read = [path for path in opened if path.endswith(".parquet")]
    assert len(read) == len(set(read)) == 2  # the files that the epochs before have added
    upsert.check()


def at_next_commit_of_epoch(upsert, monkeypatch, happens):
    """As `at_next_commit`, after the commit that enrols the query."""
    upsert.plan(to_changes([(1, "", "u")]))
    at_next_commit(monkeypatch, happens)


def unnamed(folder):
    """Files in the folder of data that the newest snapshot does not name, of our names."""
    named = {Path(file.file_path).name for file in (*data_files(folder), *delete_files(folder))}
    there = {path.name for path in folder.rglob("data/*") if "query-1" in path.name}
    return there - named


# --- the mode


@pytest.mark.long
@pytest.mark.parametrize("given", ["merge-on-read", "copy-on-write", None])
def test_a_new_table_gets_the_mode_as_its_property(tmp_path, given):
    upsert = Merging(tmp_path)
    del upsert.options["upsertMode"]
    upsert.options |= {} if given is None else {"upsertMode": given}
    upsert((1, "a", "c"), (2, "b", "c"))
    assert table_in(tmp_path).properties[MERGE_MODE] == (given or "merge-on-read")
    upsert.options.pop("upsertMode", None)
    upsert((1, "A", "u"))
    upsert.check()
    assert len(delete_files(tmp_path)) == (given != "copy-on-write")


@pytest.mark.long
@pytest.mark.parametrize(
    ("value", "option", "merges"),
    [
        (None, None, False),  # as every table that is older than the property
        ("Copy-On-Write", None, False),
        ("MERGE-ON-READ", None, True),
        ("merge-on-read", "copy-on-write", False),
        (None, "merge-on-read", True),
    ],
)
def test_the_mode_of_a_table_that_exists(folder, value, option, merges):
    append(folder, fresh(1, 2))
    if value is not None:
        set_mode(folder, value)
    upsert = Merging(folder)
    del upsert.options["upsertMode"]
    upsert.options |= {} if option is None else {"upsertMode": option}
    upsert.expected = {1: "x", 2: "x"}
    upsert((1, "a", "u"))
    upsert.check()
    assert len(delete_files(folder)) == merges
    assert table_in(folder).properties.get(MERGE_MODE) == value


def test_an_unknown_mode_is_refused_before_any_row(folder):
    set_mode(folder, "sometimes")
    upsert = Merging(folder)
    del upsert.options["upsertMode"]
    with pytest.raises(OptionError, match=r"'write.merge.mode' is 'sometimes': it must be"):
        upsert.plan(to_changes([(1, "a", "u")]))


@pytest.mark.long
def test_modes_may_follow_each_other(folder):
    upsert = Merging(folder)
    for epoch in range(6):
        upsert.options["upsertMode"] = ("merge-on-read", "copy-on-write")[epoch // 2 % 2]
        upsert(*((key, f"{epoch}", "u") for key in range(epoch, 8)))
        upsert.check()


def set_mode(folder, value):
    with table_in(folder).transaction() as transaction:
        transaction.set_properties({MERGE_MODE: value})


def test_tables_of_format_version_1_have_no_deletes(tmp_path):
    make_table(tmp_path, SCHEMA, properties={"format-version": "1"})
    append(tmp_path, fresh(1, 2))
    with pytest.raises(OptionError, match="requires a table of format version 2"):
        Merging(tmp_path)((1, "a", "u"))
    set_mode(tmp_path, "merge-on-read")
    upsert = Merging(tmp_path)
    del upsert.options["upsertMode"]
    upsert.expected = {1: "x", 2: "x"}
    upsert((1, "a", "u"))
    assert dict(pairs(batch(tmp_path))) == {1: "a", 2: "x"}
