"""Checkpoints that are copied and rewound in each store, and what is left if that dies."""

from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner
from spark_starts import Died, files, make_checkpoint, offsets_in, start

from krishiv_spark.cli import main
from krishiv_spark.operate.moving.boundaries import newest_restore_point
from krishiv_spark.operate.moving.copying import CheckpointCopy
from krishiv_spark.operate.moving.rewinding import CheckpointRewind
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import Storage


class Place:
    """A folder in a store."""

    def __init__(self, store, name):
        self.url = f"{store.url}/{name}"
        self.storage = Storage.for_query(store.options)
        self.checkpoint = SparkCheckpoint(self.url, self.storage)

    def put(self, local):
        self.storage.folder(self.url).destroy()
        for path, data in files(local).items():
            folder, _, name = path.rpartition("/")
            self.checkpoint.folder(folder).replace(name, data)

    def get(self, local):
        """A copy on the disk."""
        for path in self.storage.folder(self.url).iter_files():
            folder, _, name = path.rpartition("/")
            (local / folder).mkdir(parents=True, exist_ok=True)
            (local / path).write_bytes(self.checkpoint.folder(folder).read(name) or b"")
        return local


@pytest.fixture
def local(tmp_path) -> Path:
    return make_checkpoint(tmp_path / "local", 3, state=["0/0"])


def command(store, *words):
    given = [word for name, text in store.options.items() for word in ("-o", f"{name}={text}")]
    done = CliRunner().invoke(main, ["checkpoint", *words, *given])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_checkpoint_is_copied_and_goes_back(store, local, tmp_path):
    old, new = Place(store, "old"), Place(store, "new")
    old.put(local)
    assert "with 1 state stores" in command(store, "copy", old.url, new.url)
    copied = new.get(tmp_path / "copied")
    assert start(copied) == start(local)
    assert {p for p in files(copied) if not p.startswith("krishiv/")} == set(files(local))
    command(store, "rewind", new.url, "--to", "1")
    back = new.get(tmp_path / "back")
    assert start(back) == ("next", 2, offsets_in(local / "offsets/1"))
    assert not (back / "state/0/0/3.delta").exists()
    (aside,) = (back / "krishiv-rewound").iterdir()
    assert {"offsets/3", "commits/2", "state/0/0/4.delta"} <= set(files(aside))


def test_a_checkpoint_moves_from_a_disk_to_the_store(store, local, tmp_path):
    new = Place(store, "new")
    command(store, "copy", str(local), new.url)
    assert start(new.get(tmp_path / "copied")) == start(local)


@pytest.mark.parametrize("step", range(0, 30, 3))
def test_what_dies_on_the_way_is_as_before_after_or_refused(store, local, tmp_path, step):
    old, new = Place(store, "old"), Place(store, "new")
    old.put(local)
    copying = CheckpointCopy(old.checkpoint, new.checkpoint, newest_restore_point(old.checkpoint))
    dies(step, copying.run)
    assert start(new.get(tmp_path / "half"))[0] in {"new", "refused", "next"}
    copying = CheckpointCopy(old.checkpoint, new.checkpoint, newest_restore_point(old.checkpoint))
    if start(tmp_path / "half")[0] != "next":
        copying.run()
    assert start(new.get(tmp_path / "whole")) == start(local)
    dies(step, CheckpointRewind(old.checkpoint, 1).run)
    end = ("next", 2, offsets_in(local / "offsets/1"))
    found = start(old.get(tmp_path / "rewound"))
    assert found in (start(local), end) or found[0] == "refused"
    if found != end:
        CheckpointRewind(old.checkpoint, 1).run()
        assert start(old.get(tmp_path / "after")) == end


def dies(step, work):
    """Do work up to its n-th change of a store, and no further."""
    left = [step]
    opened = Storage.folder

    def counted(self, location):
        folder = opened(self, location)
        for name in ("create", "replace", "remove"):
            setattr(folder, name, dying(getattr(folder, name)))
        return folder

    def dying(function):
        def call(*given):
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return function(*given)

        return call

    with mock.patch.object(Storage, "folder", counted):
        try:
            work()
        except Died:
            return
