"""Compiled kernels are cached in folders that no other user of the machine can write to."""

import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest
from wheels import ROOT

from krishiv_spark.runtime.caches import find_stranger

DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
PROGRAM = """
import logging, os, sys
logging.basicConfig(level=logging.WARNING)
if sys.argv[2:]:  # another user, who may not enter the folder of this Python: import all before
    from krishiv_spark.kafka.records import warm_up
    warm_up()
    os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
    for name in [name for name in sys.modules if name.startswith("krishiv_spark.kafka.records")]:
        del sys.modules[name]
from krishiv_spark.kafka.records import checksum, read_kernels, warm_up, write_kernels
if sys.argv[1] == "all":
    warm_up()
assert checksum._load_kernel()(b"123456789", 0) == 0xE3069283
found = [one for room in (read_kernels, write_kernels) for one in vars(room).values()]
kernels = [one for one in found if hasattr(one, "stats")]
print("hits", sum(sum(one.stats.cache_hits.values()) for one in kernels))
print("misses", sum(sum(one.stats.cache_misses.values()) for one in kernels))
"""


@pytest.fixture
def home():
    """A folder that other users may enter: pytest closes its own ones, now and then, to them."""
    with tempfile.TemporaryDirectory(prefix="krishiv-kernels-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def warm(cache, home, *arguments):
    """A process that loads kernels: how many it found and had to compile, and what it said."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "HOME": str(home)}
    environment["XDG_CACHE_HOME"] = f"{home}/xdg"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(arguments or ["one"])],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split() for line in done.stdout.splitlines()), done.stderr


def kept(cache):
    return sorted(Path(cache).glob("*/*.nbi"))


class Evil:
    """A file with code that another user wants this one to run."""

    def __init__(self, sign):
        self.sign = sign

    def __reduce__(self):
        return os.mkdir, (str(self.sign),)


def plant(cache, sign):
    """As the other user: move a folder away, and put files of the same names in its place."""
    for file in kept(cache):
        with file.open("wb") as out:
            pickle.dump(numba.__version__, out)
            pickle.dump(Evil(sign), out)


@pytest.mark.long  # compiles kernels again
@pytest.mark.parametrize("shared", ["the folder", "what it is in", "a file"])
def test_code_of_another_user_does_not_run(home, shared):
    cache, sign = home / "parent" / "kernels", home / "sign"
    cache.mkdir(parents=True)
    warm(cache, home)
    assert kept(cache)
    if shared == "a file":
        for file in kept(cache):
            file.chmod(0o666)
    else:
        (cache if shared == "the folder" else cache.parent).chmod(0o777)
    plant(cache, sign)
    _, said = warm(cache, home)
    assert not sign.exists()
    (warning,) = said.splitlines()
    assert f"kept there: other users may write to {home}" in warning
    assert "NUMBA_CACHE_DIR" in warning


@pytest.mark.long
@AS_ROOT
def test_a_folder_of_another_user_is_not_used(home):
    cache, sign = home / "kernels", home / "sign"
    cache.mkdir()
    warm(cache, home)
    plant(cache, sign)
    os.chown(cache, NOBODY, NOBODY)
    assert f"{cache} belongs to the user {NOBODY}" in warm(cache, home)[1]
    assert not sign.exists()


@pytest.mark.long
def test_a_private_cache_is_loaded_and_nothing_is_said(home):
    cache = home / "new" / "kernels"
    first, said = warm(cache, home)
    assert (first["hits"], said) == ("0", "")
    again, said = warm(cache, home)
    assert (again["misses"], said) == ("0", "")
    assert int(again["hits"]) > 0


@pytest.mark.long  # compiles all kernels again
@AS_ROOT
def test_a_cache_that_was_made_with_an_image_serves_other_users_read_only(home):
    """As docs/deploy.md has it: compiled by root, readable by all."""
    cache = home / "kernels"
    warm(cache, home, "all")
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("*")}
    assert {file.stat().st_mode & 0o022 for file in cache.rglob("*")} == {0}
    closed = home / "closed"
    closed.mkdir(0o700)
    found, said = warm(cache, closed, "all", str(NOBODY))
    assert (found["misses"], said) == ("0", ""), found
    assert int(found["hits"]) > 3
    assert before == {file: file.stat().st_mtime_ns for file in cache.rglob("*")}


# ---------------------------------------------------------------- who may write


def test_a_sticky_folder_may_be_above_but_nothing_is_kept_in_it(tmp_path):
    tmp_path.chmod(0o1777)
    inside = tmp_path / "own"
    inside.mkdir(0o755)
    assert find_stranger(inside) is None
    assert find_stranger(tmp_path) == f"other users may write to {tmp_path}"


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777, 0o773])
def test_modes_that_let_others_write(tmp_path, mode):
    tmp_path.chmod(mode)
    assert find_stranger(tmp_path) is not None


def test_a_link_is_as_good_as_what_it_leads_through(tmp_path):
    shared, own, link = tmp_path / "shared", tmp_path / "own", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    own.mkdir(0o700)
    link.symlink_to(own)
    assert find_stranger(link) is None
    (shared / "first").symlink_to(own)
    (tmp_path / "second").symlink_to("shared/first")
    for path in (shared / "first", tmp_path / "second"):
        assert find_stranger(path) == f"other users may write to {shared}"


@AS_ROOT
def test_a_link_and_a_group_of_others_count(tmp_path):
    own, link = tmp_path / "own", tmp_path / "link"
    own.mkdir()
    link.symlink_to(own)
    os.lchown(link, NOBODY, NOBODY)
    assert find_stranger(link) == f"{link} belongs to the user {NOBODY}"
    own.chmod(0o775)
    assert find_stranger(own) is None  # its group is that of root
    os.chown(own, 0, 100)
    assert find_stranger(own) == f"other users may write to {own}"


# ---------------------------------------------------------------- what the docs say


def test_the_image_of_the_docs_compiles_as_root_and_opens_nothing():
    (recipe,) = re.findall(r"```dockerfile\n(.*?)```", DEPLOY, re.DOTALL)
    before, _, after = recipe.partition("USER spark")
    assert "chmod" not in recipe
    assert "USER root" in before
    assert not after.strip()
    (call,) = re.findall(r"python3 -c '(.*)'", recipe)
    assert call == "from krishiv_spark.kafka.records import warm_up; warm_up()"
