"""The kit's processes: forked from a copy of the test process, and gone when they have to be."""

import fcntl
import os
import subprocess
import sys

import psutil
import pytest
from patience import await_none

from krishiv_spark.testing import FILES
from krishiv_spark.testing.processes.pool import Pool

RARE = "krishiv_imported_by_this_test_alone"


@pytest.fixture
def pool():
    pool = Pool(FILES)
    yield pool
    pool.close()


def lock(path):
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def has_to_import(module):
    was_there = module in sys.modules
    __import__(module)
    return not was_there


def await_end(processes):
    await_none(lambda: [each for each in processes if psutil.pid_exists(each)], "they go on")


def test_what_a_killed_process_had_locked_is_free_at_once(pool, tmp_path):
    for _ in range(3):
        process = pool.take()
        assert process.call(lock, tmp_path / "lock").outcome == "returned"
        process.kill()


def test_what_one_process_had_to_import_the_next_one_has(pool, tmp_path, monkeypatch):
    (tmp_path / f"{RARE}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    first, second = pool.take(), pool.take()
    assert [each.call(has_to_import, RARE).value for each in (first, second)] == [True, True]
    assert pool.take().call(has_to_import, RARE).value is False


def test_all_processes_end_with_their_pool():
    pool = Pool(FILES)
    processes = [pool.take().call(os.getpid).value for _ in range(3)]
    assert len({os.getpid(), *processes}) == 4
    pool.close()
    assert not any(map(psutil.pid_exists, processes))


def test_all_processes_end_when_the_process_of_the_tests_is_killed():
    code = """
import os, time
from krishiv_spark.testing import FILES
from krishiv_spark.testing.processes.pool import Pool
pool = Pool(FILES)
used = [pool.take() for _ in range(2)]
print(*[each.call(ask).value for each in used for ask in (os.getpid, os.getppid)])
time.sleep(600)
"""
    tests = subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True)
    processes = {int(each) for each in tests.stdout.readline().split()}
    tests.kill()
    tests.communicate()
    assert len(processes) == 3
    await_end(processes)
