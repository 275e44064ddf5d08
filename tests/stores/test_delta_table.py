"""Tables of Delta in buckets: conditional writes, lost answers, races, the kit.

Nothing here may use the library before the kit has forked: its threads do not survive that. So
`pytest_collection_modifyitems` has the kit's cases go first, and the oracle asks by boto3.
"""

import io
import json
import uuid
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cutting_proxy import CuttingProxy
from delta_kit import SEEN
from delta_life import DeltaLife, numbered, race_of_three
from store_tables import make_onlooker

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.formats import DeltaDataSource
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.delta.reader import DeltaReader
from krishiv_spark.testing import SinkConformance, SinkUnderTest

KINDS = [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in ("s3", "versity")]


class Onlooker:
    """The rows of a table in a bucket, by its log."""

    def __init__(self, url, options):
        self._files = make_onlooker(url, options)

    def named(self):
        found = {}
        log = sorted(key for key in self._files.iter_files() if key.endswith(".json"))
        for commit in log:
            for line in self._files.read(commit).decode().splitlines():
                ((kind, body),) = json.loads(line).items()
                if kind == "add":
                    found[unquote(body["path"])] = body
                elif kind == "remove":
                    del found[unquote(body["path"])]
        return found

    def rows(self):
        tables = [pq.ParquetFile(io.BytesIO(self._files.read(k))).read() for k in self.named()]
        return pa.concat_tables(tables, promote_options="permissive") if tables else []

    def leftovers(self):
        named = self.named()
        return [k for k in self._files.iter_files() if k.endswith("quet") and k not in named]


class _InBucket(SinkConformance):
    kind: str
    random_sequences = 10

    @pytest.fixture(autouse=True)
    def opened(self, servers):
        type(self).store = servers(self.kind)

    def sink(self, folder):
        url = f"{self.store.url}/{folder.name}-{uuid.uuid4().hex}"
        reader = Onlooker(url, self.store.options)
        return SinkUnderTest(
            source=DeltaDataSource,
            options={"path": url, "commitTimeout": "300 ms", **self.store.options},
            oracle=reader.rows,
            leftovers=reader.leftovers,
            special_doubles=True,
            sweeps=False,
            most_held=2**27,  # a row group, and parts that are on their way
            outside=SEEN,
        )


@pytest.mark.long  # the same commits as on a disk, by other requests
@pytest.mark.core_cases
class TestDeltaSinkInS3(_InBucket):
    kind = "s3"


@pytest.fixture(params=KINDS)
def table(request, servers):
    """The options of a new table."""
    store = servers(request.param)
    return {"path": f"{store.url}/a b/{uuid.uuid4().hex}", **store.options}


def life_in(options, **given):
    more = {key: text for key, text in options.items() if key != "path"}
    return DeltaLife(options["path"], **more, **given)


def read(options):
    one = DeltaReader(DeltaReader.options_type.parse(options, "test"), None, streaming=True)
    start, found = one.initial(), []
    while (end := one.latest(start, UNLIMITED)) != start:
        batches = [batch for task in one.plan(start, end) for batch in one.read(task)]
        found += [value for batch in batches for value in batch["id"].to_pylist()]
        start = end
    return sorted(found)


@pytest.mark.own_process
def test_epochs_are_written_and_read(table):
    life = life_in(table)
    life.epoch(0, numbered(0), tasks=2)
    staged = life.stage(0, numbered(0))
    life.publish(0, staged, numbered(0))
    life.writer(numbered(0)).committer().discard(staged)
    life.epoch(1, numbered(10))
    rows = Onlooker(table["path"], table).rows()
    assert sorted(rows["id"].to_pylist()) == read(table) == [*range(20)]
    assert not Onlooker(table["path"], table).leftovers()


@pytest.mark.own_process
def test_partitions_have_any_value(table):
    rows = pa.table({"id": [1, 2], "text": ["a/b=c d%é#?", None]})
    life_in(table, partitionBy="text").epoch(0, rows)
    assert read(table) == [1, 2]


@pytest.mark.own_process
def test_three_drivers_of_one_query_write_each_epoch_once(table):
    race_of_three(table, 5)
    assert read(table) == [*range(50)]


def is_commit(request):
    return request.startswith(b"PUT") and b"_delta_log" in request.partition(b"\r\n")[0]


@pytest.mark.own_process
@pytest.mark.parametrize("fault", ["lost answer", "lost request", "cut"])
@pytest.mark.parametrize("table", KINDS[:1], indirect=True)
def test_a_commit_whose_answer_is_lost_is_there_once(table, fault):
    life = life_in(table)
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(10))
    with CuttingProxy(urlsplit(table["storage.s3.endpoint"]).port) as proxy:
        around = {**table, "storage.s3.endpoint": f"http://127.0.0.1:{proxy.port}"}
        proxy.cut(is_commit, fault)
        given = {"commitTimeout": "30 s", "storage.s3.timeout": "5 s"}
        life_in(around, **given).publish(1, staged, numbered(10))
        assert proxy.cuts == [fault]
    assert read(table) == [*range(20)]


@pytest.mark.own_process
@pytest.mark.parametrize("table", KINDS[:1], indirect=True)
def test_what_is_wrong_is_said_without_secrets(table):
    secret = table["storage.s3.secretAccessKey"]
    with pytest.raises((StorageError, OptionError)) as caught:
        life_in({**table, "path": "s3://nowhere/t"}).epoch(0, numbered(0))
    assert secret not in str(caught.value)
    assert "nowhere" in str(caught.value)
