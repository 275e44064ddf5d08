"""A folder that is away for a while, as a mount is: nothing is lost and nothing is read again."""

import pytest
from parquet_reading import DAY_NS, FIRST, NOON, Publisher, drain, put, reader, reload_offset, rows

from krishiv_spark.errors import StorageError
from krishiv_spark.parquet.layout import META
from krishiv_spark.parquet.table_identity import Pointer, write_pointer
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet import sink_epochs
from krishiv_spark.storage.disk import DiskFolder


class Mount:
    """A folder that can be unmounted: then the empty folder below it shows."""

    def __init__(self, folder):
        self.folder = folder / "mounted"
        self.folder.mkdir()

    def remove(self):
        self.folder.rename(self.folder.with_name("away"))
        self.folder.mkdir()

    def bring_back(self):
        self.folder.rmdir()
        self.folder.with_name("away").rename(self.folder)


@pytest.fixture
def mount(tmp_path):
    return Mount(tmp_path)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("restarts", [False, True], ids=["the same driver", "another driver"])
@pytest.mark.parametrize("age", ["7d", "1000000 days"])
def test_files_of_a_folder_that_was_away_are_read_once(mount, tmp_path, fail, restarts, age):
    options = {
        "failOnDataLoss": fail,
        "maxFileAge": age,
        "stateLocation": tmp_path / "state",
        "maxFilesPerTrigger": 2,
    }
    put(mount.folder, "old.parquet", [1], at=NOON - 6 * DAY_NS)
    put(mount.folder, "a.parquet", [2])
    put(mount.folder, "b.parquet", [3])
    published = Publisher(mount.folder).publish(0, 2, at=NOON).publish(1, 1, at=NOON)
    source = reader(mount.folder, **options)
    begin = source.latest(FIRST, Limit(files=2))
    found = rows(source, FIRST, begin)
    end = reload_offset(begin)
    for _ in range(3):
        mount.remove()
        source = reader(mount.folder, **options) if restarts else source
        if restarts:
            assert source.latest(end, Limit(files=1)) == end
        mount.bring_back()
        source = reader(mount.folder, **options) if restarts else source
        more = source.latest(end, Limit(files=1))
        found += rows(source, end, more)
        end = reload_offset(more)
    put(mount.folder, "c.parquet", [4], at=NOON + DAY_NS)
    published.publish(2, 1, at=NOON + DAY_NS)
    rest, end = drain(source, end)
    assert sorted(found + rest) == [0, 1, 1, 2, 3, 4, 100, 200]
    assert drain(reader(mount.folder, **options), end)[0] == []


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_folder_that_goes_away_while_it_is_listed_has_lost_nothing(
    mount, tmp_path, monkeypatch, fail
):
    """The log of the epochs is on another mount, and still says which files there must be."""
    query = Publisher(mount.folder, elsewhere=tmp_path / "log").publish(0, 2)
    pointer = Pointer(str(tmp_path / "log"))
    write_pointer(DiskFolder(mount.folder / META / query.query), pointer)
    source = reader(mount.folder, failOnDataLoss=fail)
    found, end = drain(source)
    query.publish(1, 2)
    looked = sink_epochs.SinkEpochs.refresh

    def look(self):
        looked(self)
        mount.remove()
        monkeypatch.undo()

    monkeypatch.setattr(sink_epochs.SinkEpochs, "refresh", look)
    with pytest.raises(StorageError, match="disappeared while files were listed"):
        source.latest(end, UNLIMITED)
    mount.bring_back()
    assert drain(source, end)[0] == [100, 101]
    assert found == [0, 1]
