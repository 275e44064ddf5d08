"""Objects in the Parquet source: keys, versions, tables, ranges, and faults."""

import pickle
import time
import uuid
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from parquet_reading import FIRST, batches, drain, names, reader, reload_offset, rows
from store_objects import Objects, parquet_bytes

from krishiv_spark.cli import main
from krishiv_spark.errors import DataLossError, KrishivError
from krishiv_spark.offsets import open_log
from krishiv_spark.parquet.footers import ChangedError
from krishiv_spark.parquet.layout import DataFile, query_tag
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet.listing import SourcePath, scan
from krishiv_spark.storage import Storage, StoreUrl


@pytest.fixture
def objects(store):
    return Objects(store)


def opened(objects, path="", **options):
    return reader(f"{objects.url}{path}", **{**objects.options, **options})


# --- names


def test_a_place_without_objects_is_an_empty_folder(objects):
    assert opened(objects).latest(FIRST, UNLIMITED) == FIRST


def test_partition_folders_are_gone_into_and_no_others(objects):
    for path in ("a.parquet", "day=1/b.parquet", "day=1/hour=2/c.parquet"):
        objects.numbers(path, 1)
    for path in (
        "day=1/_c.parquet",
        "_x/d.parquet",
        "sub/e.parquet",
        ".f/day=1/g.parquet",
        "x.csv",
    ):
        objects.numbers(path, 1)
    source = opened(objects)
    assert sorted(names(source.latest(FIRST, UNLIMITED))) == [
        "a.parquet",
        "day=1/b.parquet",
        "day=1/hour=2/c.parquet",
    ]
    assert source.backlog()["passed_over"]["other_names"]["files"] == 1
    deep = opened(objects, recursiveFileLookup="true").latest(FIRST, UNLIMITED)
    assert max(names(deep)) == "sub/e.parquet"


def test_an_object_where_a_folder_is_to_be_seen_is_passed_over(objects):
    objects.numbers("day=1/a.parquet", 1)
    for marker in ("day=2", "day=1_$folder$"):
        objects.put(marker, b"")
    source = opened(objects)
    assert names(source.latest(FIRST, UNLIMITED)) == ["day=1/a.parquet"]


def test_odd_keys_are_read_as_they_are(objects):
    odd = ["a b+c%20ä=1/x y.parquet", "day=2013%2F01/é.parquet", "c%3Dd.parquet"]
    for number, path in enumerate(odd):
        objects.numbers(path, number)
    source = opened(objects, recursiveFileLookup="true")
    end = source.latest(FIRST, UNLIMITED)
    assert sorted(names(end)) == sorted(odd)
    assert rows(source, FIRST, end) == [0, 1, 2]


def test_globs_match_as_on_a_disk(objects):
    for path in ("x=1/a.parquet", "x=2/a.parquet", "x=2/b.csv", "y/a.parquet", "_x/a.parquet"):
        objects.numbers(path, 1)
    for pattern, expected in {
        "x=*": ["x=1/a.parquet", "x=2/a.parquet"],
        "{x=1,y}/*": ["x=1/a.parquet", "y/a.parquet"],
        "*/a.parquet": ["x=1/a.parquet", "x=2/a.parquet", "y/a.parquet"],
        "x=[2]/*.csv": ["x=2/b.csv"],
        "z*/*": [],
    }.items():
        found = opened(objects, f"/{pattern}").latest(FIRST, UNLIMITED)
        assert sorted(names(found)) == expected, pattern


def test_one_object_can_be_named(objects):
    objects.numbers("x.data", 1, 2)
    source = opened(objects, "/x.data", stateLocation=f"{objects.url}/state")
    end = source.latest(FIRST, UNLIMITED)
    assert (names(end), rows(source, FIRST, end)) == (["."], [1, 2])


def test_the_schema_is_that_of_the_newest_object_and_its_folders(objects):
    objects.numbers("day=2013-01-01/a.parquet", 1)
    schema = opened(objects, schema=None).infer_schema()
    assert schema == pa.schema([("n", pa.int64()), ("day", pa.date32())])


# --- what was read


def test_late_keys_of_any_name_are_read_once(objects):
    objects.numbers("m.parquet", 1)
    source = opened(objects)
    found, end = drain(source)
    for number, path in enumerate(("z.parquet", "a.parquet", "day=1/x.parquet")):
        objects.numbers(path, number)
    more, end = drain(opened(objects), end)
    assert (found, more) == ([1], [0, 1, 2])
    assert drain(source, end) == ([], end)


def test_what_is_remembered_is_found_again_from_another_machine(objects):
    for number in range(3):
        objects.numbers(f"{number}.parquet", number)
    from parquet_reading import Forgetful

    source = opened(objects, kind=Forgetful)
    end = source.latest(FIRST, UNLIMITED)
    assert (end.files, end.seen) == ((), {})
    again = pickle.loads(pickle.dumps(opened(objects, kind=Forgetful)))
    assert rows(again, FIRST, reload_offset(end)) == [0, 1, 2]
    objects.numbers("late.parquet", 7)
    assert drain(again, reload_offset(end))[0] == [7]


def test_an_object_without_a_footer_waits_until_it_is_replaced(objects):
    objects.put("a.parquet", b"hello world, hello world")
    source = opened(objects)
    assert source.latest(FIRST, UNLIMITED) == FIRST
    objects.numbers("a.parquet", 5)
    assert drain(source)[0] == [5]


# --- what changes between plan and read


def test_an_object_of_the_same_size_and_second_is_another_one(store, objects):
    if store.url.startswith("hdfs"):
        pytest.skip("HDFS tells milliseconds")
    objects.put("a.parquet", parquet_bytes(pa.table({"n": [1]})))
    while True:
        source = opened(objects)
        end = source.latest(FIRST, UNLIMITED)
        objects.put("a.parquet", parquet_bytes(pa.table({"n": [2]})))
        (now,) = opened(objects).latest(FIRST, UNLIMITED).files
        if now.modified_ns // 10**9 == end.files[0].modified_ns // 10**9:
            break
        objects.put("a.parquet", parquet_bytes(pa.table({"n": [1]})))
    assert now.size == end.files[0].size
    with pytest.raises(ChangedError, match=r"a\.parquet was of \d+ bytes"):
        rows(source, FIRST, end)
    with pytest.raises(DataLossError, match="of another version: its rows were replaced"):
        opened(objects).plan(FIRST, reload_offset(end))
    bold = opened(objects, failOnDataLoss="false")
    assert rows(bold, FIRST, reload_offset(end)) == [2]


def test_an_object_of_the_same_content_put_again_is_read(store, objects):
    if not store.url.startswith("s3"):
        pytest.skip("only S3 makes an ETag of the content")
    objects.numbers("a.parquet", 1)
    end = opened(objects).latest(FIRST, UNLIMITED)
    time.sleep(1.1)  # the resolution of its times
    objects.numbers("a.parquet", 1)
    assert rows(opened(objects), FIRST, reload_offset(end)) == [1]


@pytest.mark.parametrize("size", [10, 3000])
def test_an_object_that_was_replaced_by_a_shorter_or_longer_one_is_noticed(objects, size):
    objects.numbers("a.parquet", *range(200))
    source = opened(objects)
    end = source.latest(FIRST, UNLIMITED)
    objects.numbers("a.parquet", *range(size))
    with pytest.raises(ChangedError, match="when it was listed and is of"):
        rows(source, FIRST, end)


def test_an_object_that_vanished_is_an_error_or_is_passed_over(objects):
    objects.numbers("a.parquet", 1)
    objects.numbers("b.parquet", 2)
    source = opened(objects)
    end = source.latest(FIRST, UNLIMITED)
    objects.remove("a.parquet")
    with pytest.raises(DataLossError, match=r"a\.parquet was listed, but no longer exists"):
        rows(source, FIRST, end)
    bold = opened(objects, failOnDataLoss="false")
    assert rows(bold, FIRST, end) == [2]


def test_damaged_objects_are_skipped_and_noted_beside_the_state(objects):
    whole = parquet_bytes(pa.table({"n": list(range(1000))}))
    objects.put("a.parquet", whole[:100] + bytes(200) + whole[300:])
    objects.numbers("b.parquet", 7)
    source = opened(objects, badFiles="skip")
    found, end = drain(source)
    assert found[-1] == 7
    assert opened(objects, badFiles="skip").latest(end, UNLIMITED) == end
    source.latest(end, UNLIMITED)
    assert source.backlog()["passed_over"]["skipped_while_read"]["files"] == 1
    given = [word for key, text in objects.options.items() for word in ("-o", f"{key}={text}")]
    listed = CliRunner().invoke(main, ["parquet", "skipped", objects.url, *given])
    assert "a.parquet, bytes 0 to" in listed.output


# --- requests


def test_one_column_of_fifty_reads_its_ranges_only(objects, monkeypatch):
    table = pa.table({f"c{n}": np.random.default_rng(n).random(40_000) for n in range(50)})
    data = parquet_bytes(table, row_group_size=10_000)
    objects.put("a.parquet", data)
    schema = pa.schema([("c7", pa.float64())])
    source = opened(objects, schema=schema)
    end = source.latest(FIRST, UNLIMITED)
    (part,) = source.plan(FIRST, end)
    fetched = counted(monkeypatch)
    assert sum(batch.num_rows for batch in source.read(part)) == 40_000
    assert sum(fetched) < len(data) / 20
    assert len(fetched) == 1 + 4  # the footer, and the column in each row group


def test_neighbours_are_read_by_one_request_and_large_row_groups_in_pieces(objects, monkeypatch):
    from krishiv_spark.storage import ranged

    table = pa.table({f"c{n}": np.random.default_rng(n).random(100_000) for n in range(3)})
    data = parquet_bytes(table, use_dictionary=False, compression="none")
    objects.put("a.parquet", data)
    source = opened(objects, schema=table.schema)
    (part,) = source.plan(FIRST, source.latest(FIRST, UNLIMITED))
    fetched = counted(monkeypatch)
    found = pa.Table.from_batches(source.read(part))
    assert found.equals(table.cast(found.schema))
    assert len(fetched) == 2
    fetched.clear()
    monkeypatch.setattr(ranged, "_HELD_BYTES", 2**20)
    monkeypatch.setattr(ranged, "_LEAST_BYTES", 2**18)
    found = pa.Table.from_batches(source.read(part))
    assert found.equals(table.cast(found.schema))
    assert 4 < len(fetched) < 20
    assert sum(fetched) < 1.1 * len(data)


def counted(monkeypatch):
    """The sizes of what is fetched from now on, each by one request."""
    from krishiv_spark.storage.hdfs import HdfsFiles
    from krishiv_spark.storage.objects import ObjectFiles

    fetched = []
    for kind, name, data_of in (
        (ObjectFiles, "_get", lambda found: found[1]),
        (HdfsFiles, "_read", bytes),
    ):
        asked = getattr(kind, name)

        def ask(self, *rest, asked=asked, data_of=data_of):
            found = asked(self, *rest)
            fetched.append(len(data_of(found)))
            return found

        monkeypatch.setattr(kind, name, ask)
    return fetched


def test_pages_of_objects_that_do_not_count_are_passed_by_at_once(store, objects, monkeypatch):
    if not store.url.startswith("s3"):
        pytest.skip("Azure cannot list from a key on")
    from krishiv_spark.storage import objects as objects_module

    monkeypatch.setattr(objects_module, "_PAGE", 5)
    for number in range(40):
        objects.put(f"_hidden/sub/{number:02}", b"x")
    for number in range(7):
        objects.numbers(f"day={number}/a.parquet", number)
    pages = []
    listed = objects_module.ObjectFiles._pages

    def count(self, folder, prefix, after):
        for page in listed(self, folder, prefix, after):
            pages.append(after)
            yield page

    monkeypatch.setattr(objects_module.ObjectFiles, "_pages", count)
    place = SourcePath.parse(objects.url, Storage.of(objects.options))
    assert sorted(scan(place).paths) == [f"day={n}/a.parquet" for n in range(7)]
    assert len(pages) == 1 + 2


def test_a_store_that_passes_over_the_offset_is_listed_all_the_same(store, objects, monkeypatch):
    if not store.url.startswith("s3"):
        pytest.skip("Azure cannot list from a key on")
    from krishiv_spark.storage import objects as objects_module

    listed = objects_module.ObjectFiles._pages
    monkeypatch.setattr(objects_module, "_PAGE", 5)
    monkeypatch.setattr(
        objects_module.ObjectFiles,
        "_pages",
        lambda self, folder, prefix, _: listed(self, folder, prefix, None),
    )
    for number in range(12):
        objects.put(f"_hidden/{number:02}", b"x")
    objects.numbers("day=1/a.parquet", 1)
    place = SourcePath.parse(objects.url, Storage.of(objects.options))
    assert scan(place).paths == ["day=1/a.parquet"]


# --- what is wrong


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"endpoint": "http://127.0.0.1:9"}, "127.0.0.1:9|does not respond"),
        ({"bucket": "nowhere"}, "bucket does not exist|container does not exist|does not exist"),
        ({"accountKey": "d3Jvbmc="}, "credentials do not allow it|account or its key is wrong"),
    ],
)
def test_a_store_that_cannot_be_asked_is_an_error_of_one_line(store, change, said):
    kind = StoreUrl.parse(store.url).kind
    if ("accountKey" in change) != (kind == "azure") and "accountKey" in change:
        pytest.skip("a wrong key is refused by Azurite only")
    if "bucket" in change and kind == "hdfs":
        pytest.skip("HDFS has no buckets")
    if "bucket" in change and kind == "gcs":
        said = "nowhere"  # Google would say more: its emulator answers 500
    url = store.url.replace("box", change.get("bucket", "box"))
    options = {**store.options}
    options.update({f"storage.{kind}.{k}": v for k, v in change.items() if k != "bucket"})
    begun = time.monotonic()
    with pytest.raises(KrishivError, match=said) as seen:
        reader(url, **options).latest(FIRST, UNLIMITED)
    assert time.monotonic() - begun < 15
    assert not any(secret in str(seen.value) for secret in store.secrets)
    assert "\n" not in str(seen.value)


def test_batches_are_limited_and_in_the_order_of_seconds_and_paths(objects):
    for number in range(9):
        objects.numbers(f"{number}.parquet", number)
    found = batches(opened(objects), limit=Limit(files=2))
    assert [len(names) for names in found] == [2, 2, 2, 2, 1]
    assert sorted(chain(*found)) == [f"{n}.parquet" for n in range(9)]


# --- tables of our sink


class Publisher:
    """A query of our sink that publishes step by step, as its log and files are in a store.

    Args:
        objects: Of the table.
    """

    def __init__(self, objects, query="q", log=""):
        self.objects, self.tag = objects, query_tag(query)
        self._log = open_log(
            log or f"{objects.url}/_krishiv/{query}/log", None, Storage.of(objects.options)
        )

    def intend(self, epoch, count=1, folder="", removes=()):
        """Say which files an epoch has."""
        generation = self._log.begin().owner
        self.files = [
            {"name": str(DataFile(epoch, n, 0, self.tag, f"{epoch:012x}")), "folder": folder}
            for n in range(count)
        ]
        self.epoch, staged = epoch, [{"files": self.files}, {"removes": list(removes)}]
        self._log.intend(generation, epoch, staged)
        return self

    @property
    def paths(self):
        return [f"{file['folder']}/{file['name']}".strip("/") for file in self.files]

    def complete(self, *numbers):
        """Make some files visible, or all; each has one row: epoch * 100 + its number."""
        for n in numbers or range(len(self.files)):
            self.objects.numbers(self.paths[n], self.epoch * 100 + n)
        return self


def test_an_epoch_is_read_when_all_its_files_are_there(objects):
    table = Publisher(objects)
    table.intend(0, 3).complete(0, 2)
    source = opened(objects)
    assert source.latest(FIRST, UNLIMITED) == FIRST
    table.complete(1)
    found, end = drain(source)
    assert (found, end.epochs) == ([0, 1, 2], {table.tag: 0})
    assert drain(opened(objects), end) == ([], end)
    table.intend(1, 2, "day=1").complete(1)
    assert opened(objects).latest(end, UNLIMITED) == source.latest(end, UNLIMITED) == end
    table.complete(0).intend(2).complete()
    assert batches(opened(objects), end, Limit(files=1))[0] == sorted(
        path for path in batches(source, end)[0] if path.startswith("day=1/")
    )


def test_a_file_of_an_older_epoch_that_is_gone_is_noticed(objects):
    table = Publisher(objects)
    table.intend(0).complete()
    _, end = drain(opened(objects))
    gone = table.intend(1, 2).complete().paths[0]
    table.intend(2).complete()
    objects.remove(gone)
    with pytest.raises(DataLossError, match=f"1 files of epoch 1 in .*{gone}"):
        opened(objects).latest(end, UNLIMITED)
    assert drain(opened(objects, failOnDataLoss="false"), end)[0] == [101, 200]


def test_what_replaces_others_is_read_when_they_are_gone(objects):
    table = Publisher(objects)
    (old,) = table.intend(0).complete().paths
    source = opened(objects)
    table.intend(1, removes=[old]).complete()
    found, end = drain(source)
    objects.remove(old)
    assert (found, drain(source, end)[0]) == ([0], [100])


def test_files_whose_log_is_elsewhere_are_read_one_by_one(objects):
    elsewhere = f"memory://{uuid.uuid4().hex}/log"
    table = Publisher(objects, log=elsewhere)
    objects.put("_krishiv/q/epoch-log", elsewhere.encode())
    table.intend(0, 2).complete(0)
    source = opened(objects)
    found, end = drain(source)
    table.complete(1)
    assert (found, drain(source, end)[0]) == ([0], [1])


def test_few_requests_find_that_nothing_is_new(objects, monkeypatch):
    table = Publisher(objects)
    for epoch in range(5):
        table.intend(epoch).complete()
    source = opened(objects)
    _, end = drain(source)
    asked = requests_of(monkeypatch)
    assert source.latest(end, UNLIMITED) == end
    assert len(asked) <= 10, asked


def requests_of(monkeypatch):
    """Record the requests to stores from now on."""
    from krishiv_spark.storage.clients import StoreClient
    from krishiv_spark.storage.webhdfs import WebHdfs

    asked = []
    for kind, name in ((StoreClient, "ask"), (WebHdfs, "_ask")):
        ask = getattr(kind, name)

        def count(self, *rest, ask=ask, **named):
            asked.append(rest[:2])
            return ask(self, *rest, **named)

        monkeypatch.setattr(kind, name, count)
    return asked
