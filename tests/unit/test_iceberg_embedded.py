"""The embedded catalog is refused where SQLite's locks cannot be relied on."""

import re
import sys
from pathlib import Path

import pytest
from iceberg_life import IcebergLife, ids, numbered

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg import catalogs, embedded

ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Return a function that adds a file system to Linux's list, in a folder with a space."""

    def mount(kind):
        place = tmp_path / "a share"
        place.mkdir()
        name = str(place).replace(" ", "\\040")
        told = tmp_path / "mountinfo"
        lines = [
            ROOT,
            f"90 22 0:50 / {name} rw shared:9 master:1 - {kind} server:/export rw,vers=4",
        ]
        told.write_text("\n".join(lines))
        monkeypatch.setattr(embedded, "_MOUNTS", told)
        return place

    return mount


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_an_embedded_catalog_on_a_network_file_system_is_refused(mounted, kind):
    place = mounted(kind)
    says = rf"{place}/w/catalog\.db is on a network .*\({kind}, mounted at {place}\).*'sqlite:///"
    with pytest.raises(OptionError, match=says):
        IcebergLife(place / "w").plan(numbered(0))
    assert not (place / "w").exists()


def test_one_that_is_named_is_warned_of_once(mounted, caplog):
    place = mounted("nfs")
    life = IcebergLife(place, **{"catalog.uri": f"sqlite:///{place}/catalog.db"})
    for epoch in range(2):
        life.epoch(epoch, numbered(epoch))
    assert ids(place) == list(range(20))
    (warning,) = caplog.messages
    assert "only one machine may ever open it" in warning


def test_local_file_systems_and_other_catalogs_are_not_looked_at_twice(mounted, tmp_path, caplog):
    place = mounted("nfs")
    IcebergLife(tmp_path / "local").epoch(0, numbered(0))
    given = {"catalog.uri": f"sqlite:///{tmp_path}/catalog.db", "location": f"{place}/table"}
    IcebergLife(place, **given).epoch(0, numbered(0))  # the tables may be there
    assert caplog.messages == []


def test_the_file_system_of_a_path_is_that_of_the_deepest_mount_that_is_not_hidden(tmp_path):
    told = tmp_path / "mountinfo"
    lines = [ROOT, "30 22 0:9 / /data rw - nfs a:/ rw", "31 30 0:9 / /data rw - xfs /dev/sdb rw"]
    told.write_text("\n".join([*lines, "32 31 0:9 / /data/far rw - nfs4 b:/ rw"]))
    kinds = {"/database": "ext4", "/data": "xfs", "/data/x/y": "xfs", "/data/far/z": "nfs4"}
    assert {path: embedded.find_mount(path, told).kind for path in kinds} == kinds
    assert embedded.find_mount("/", tmp_path / "missing") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a list")
def test_the_file_systems_of_this_machine_are_known():
    assert embedded.find_mount("/proc/self").kind == "proc"
    assert embedded.find_mount("/").folder == "/"


# --- a warehouse whose mount is away


@pytest.fixture
def warehouse(tmp_path):
    """Return a mount point, and functions that remove its mount and restore it."""
    place = tmp_path / "mnt"
    place.mkdir()

    def move(source, target):
        for catalog in catalogs._CATALOGS.values():
            catalog.close()
        catalogs._CATALOGS.clear()
        (tmp_path / source).rename(tmp_path / target)

    def unmount():
        move("mnt", "disk")
        place.mkdir()

    def mount():
        place.rmdir()
        move("disk", "mnt")

    return place, unmount, mount


CATALOGS = {"embedded": {}, "named": {"catalog.uri": "sqlite:///{}/catalog.db"}}


def life_in(place, folder, kind="embedded", **more):
    given = {key: text.format(place) for key, text in CATALOGS[kind].items()}
    return IcebergLife(place, checkpointLocation=str(folder / "checkpoint"), **given, **more)


@pytest.mark.parametrize("kind", CATALOGS)
def test_a_query_makes_no_new_catalog_where_its_mount_is_away(tmp_path, warehouse, kind):
    place, unmount, mount = warehouse
    life = life_in(place, tmp_path, kind)
    life.epoch(0, numbered(0))
    (record,) = (tmp_path / "checkpoint" / "krishiv" / "iceberg.catalogs").iterdir()
    assert str(place) not in record.read_text(), "the path may come from a secret"
    unmount()
    for ask in (life.plan, lambda rows: life.writer(rows).check_start()):
        with pytest.raises(
            OptionError, match=rf"{place}/catalog\.db, through .*is missing.*Mount or"
        ):
            ask(numbered(1))
    assert list(place.iterdir()) == []
    mount()
    for epoch in (0, 1):
        life.epoch(epoch, numbered(epoch))
    assert ids(place) == list(range(20))


def test_a_query_goes_on_into_a_new_catalog_once_its_record_is_removed(tmp_path, warehouse):
    place, unmount, _ = warehouse
    life = life_in(place, tmp_path)
    life.epoch(0, numbered(0))
    unmount()
    with pytest.raises(OptionError, match=r"for good, remove \S+: the") as caught:
        life.plan(numbered(1))
    (record,) = re.findall(r"for good, remove (\S+): the", str(caught.value))
    Path(record).unlink()
    life.epoch(1, numbered(1))
    assert ids(place) == list(range(10, 20))


def test_other_warehouses_and_other_queries_may_be_new(tmp_path, warehouse):
    place, unmount, _ = warehouse
    life_in(place, tmp_path).epoch(0, numbered(0))
    unmount()
    life_in(tmp_path / "new", tmp_path).epoch(1, numbered(1))
    assert ids(tmp_path / "new") == list(range(10, 20))
    life_in(place, tmp_path / "another").epoch(0, numbered(2))
    assert ids(place) == list(range(20, 30))


def test_a_checkpoint_that_cannot_be_written_keeps_its_query(tmp_path, caplog):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "krishiv").write_text("a file in the way")
    life = life_in(tmp_path / "w", tmp_path)
    for epoch in range(2):
        life.epoch(epoch, numbered(epoch))
    assert ids(tmp_path / "w") == list(range(20))
    (warning,) = caplog.messages
    assert "cannot store that its query uses the catalog" in warning


@pytest.mark.parametrize(
    "uri", ["sqlite:///file:{}/cat%20x.db?uri=true", "sqlite:///:memory:", "sqlite:///{}/cat.db"]
)
def test_a_catalog_however_it_is_named_is_found_at_the_next_start(tmp_path, uri):
    given = {"catalog.uri": uri.format(tmp_path), "checkpointLocation": f"{tmp_path}/ck"}
    for epoch in range(2):
        IcebergLife(tmp_path / "wh", **given).epoch(epoch, numbered(epoch))
