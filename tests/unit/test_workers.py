"""The work that Spark's workers skip between tasks."""

import ctypes
import gc
import importlib.util
import socket
import subprocess
import sys
import types
import zipimport
from importlib.machinery import ModuleSpec
from zipfile import ZipFile

import pytest

from krishiv_spark.runtime import archives, workers


@pytest.fixture
def worker(monkeypatch):
    """As if this were one of Spark's."""
    main = types.ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    forget()
    gc.unfreeze()  # tests/conftest.py freezes at the start
    yield
    gc.unfreeze()
    forget()


def forget():
    workers._freeze.cache_clear()
    workers._local_connections.cache_clear()


def frozen_by(monkeypatch, *modules):
    for name in modules:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    before = gc.get_freeze_count()
    workers.tune_worker()
    return gc.get_freeze_count() - before


@pytest.mark.long  # 3 s
@pytest.mark.usefixtures("worker")
def test_what_is_imported_is_passed_over_and_what_comes_later_too(monkeypatch):
    assert frozen_by(monkeypatch) > 1000
    assert frozen_by(monkeypatch) <= 0  # what other tests left may die meanwhile
    kept = [[number] for number in range(100)]
    assert frozen_by(monkeypatch, "imported_by_the_first_task") >= len(kept)


def test_elsewhere_nothing_is_frozen(monkeypatch):
    workers._freeze.cache_clear()
    assert frozen_by(monkeypatch) == 0


@pytest.fixture
def threshold():
    """Python's own, whatever ran before."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.long  # 3 s
@pytest.mark.usefixtures("worker", "threshold")
@pytest.mark.parametrize(("own", "then"), [(2_000, 50_000), (90_000, 90_000), (0, 0)])
def test_cycles_are_looked_for_rarely_but_as_a_user_has_set_it(own, then):
    gc.set_threshold(own, 10, 10)
    workers.tune_worker()
    assert gc.get_threshold()[0] == then


@pytest.mark.usefixtures("threshold")
def test_elsewhere_the_collector_is_left_alone():
    workers.tune_worker()
    assert gc.get_threshold()[0] == 700


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Makes an archive on the path, with a package from which something was imported."""

    def made(name, module):
        path = tmp_path / name
        with ZipFile(path, "w") as opened:
            opened.writestr(f"{module}/__init__.py", "")
            opened.writestr(f"{module}/inner.py", "value = 1\n")
        monkeypatch.syspath_prepend(str(path))
        assert importlib.import_module(f"{module}.inner").value == 1
        return str(path)

    yield made
    importlib.invalidate_caches()


def read_again(monkeypatch):
    """The archives whose directory is read when finders are told to forget."""
    seen = []
    read = zipimport._read_directory
    monkeypatch.setattr(zipimport, "_read_directory", lambda path: seen.append(path) or read(path))
    importlib.invalidate_caches()
    for name in ("no_module_of_this_name", "nor_of_this"):
        assert importlib.util.find_spec(name) is None
    return seen


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_archives_of_spark_are_not_read_again_and_those_of_users_are(archive, monkeypatch):
    names = ("pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.1.4.jar")
    of_spark = [archive(name, f"part_{number}") for number, name in enumerate(names)]
    of_user = archive("jobs.zip", "jobs")
    workers.tune_worker()
    again = read_again(monkeypatch)
    assert of_user in again
    assert not set(of_spark) & set(again)
    for number in range(len(names)):
        assert importlib.util.find_spec(f"part_{number}.inner") is not None


def directories(*paths):
    """The directories that importers of loaded modules have, by identity."""
    loaders = [getattr(module, "__loader__", None) for module in list(sys.modules.values())]
    found = [each for each in loaders if isinstance(each, zipimport.zipimporter)]
    return {id(each._files) for each in found if each.archive in paths}


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="importers share it from Python 3.13 on")
@pytest.mark.usefixtures("worker")
def test_importers_of_an_archive_of_spark_share_its_directory(archive, monkeypatch):
    of_spark, of_user = archive("pyspark.zip", "shared"), archive("jobs.zip", "own")
    importlib.invalidate_caches()
    assert len(directories(of_spark)) == len(directories(of_user)) == 2
    monkeypatch.setenv("KRISHIV_SPARK_TUNE_WORKERS", "off")
    archives.share_directories()
    assert len(directories(of_spark)) == 2
    monkeypatch.delenv("KRISHIV_SPARK_TUNE_WORKERS")
    archives.share_directories()
    assert len(directories(of_spark)) == 1
    assert len(directories(of_user)) == 2


def test_elsewhere_archives_are_read_again(archive, monkeypatch):
    of_spark = archive("pyspark.zip", "part")
    workers.tune_worker()
    assert of_spark in read_again(monkeypatch)


@pytest.fixture
def connection():
    """Both ends of a TCP connection within the machine, where something listens besides."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as jvm,
        server.accept()[0] as worker,
    ):
        yield jvm, worker


def answers_along(connection):
    """Talk until our kernel keeps acknowledgements back, to let them go along with answers."""
    jvm, worker = connection
    for _ in range(20):
        jvm.sendall(b"call")
        worker.recv(4)
        worker.sendall(b"answer")
        jvm.recv(6)
        if not acknowledges_at_once(worker):
            return
    pytest.fail("the kernel keeps no acknowledgement back")


def acknowledges_at_once(connection):
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


@pytest.mark.long
@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone has it")
@pytest.mark.usefixtures("worker")
def test_what_the_jvm_sends_is_acknowledged_at_once_in_each_task(connection):
    for _task in range(3):
        answers_along(connection)
        workers.tune_worker()
        assert acknowledges_at_once(connection[1])


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone has it")
@pytest.mark.usefixtures("worker")
def test_so_is_each_batch(connection):
    for _batch in workers.with_quick_acks(range(3)):
        answers_along(connection)
    assert acknowledges_at_once(connection[1])


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_a_connection_that_was_closed_since_is_no_error(connection):
    workers.tune_worker()
    for end in connection:
        end.close()
    workers.tune_worker()


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone has it")
@pytest.mark.usefixtures("worker", "threshold")
@pytest.mark.parametrize("off", ["off", "False", "0", " no "])
def test_a_setting_leaves_the_worker_unchanged(off, monkeypatch, connection):
    monkeypatch.setenv("KRISHIV_SPARK_TUNE_WORKERS", off)
    before = gc.get_threshold()
    assert frozen_by(monkeypatch) == 0
    for _batch in workers.with_quick_acks(range(3)):
        answers_along(connection)
    assert not acknowledges_at_once(connection[1])
    assert gc.get_threshold() == before


@pytest.mark.long
@pytest.mark.usefixtures("worker", "threshold")
def test_another_value_of_the_setting_tunes_it(monkeypatch):
    monkeypatch.setenv("KRISHIV_SPARK_TUNE_WORKERS", "on")
    workers.tune_worker()
    assert gc.get_threshold()[0] == 50_000


WAVES = """
import resource, sys
from krishiv_spark.runtime import archives, workers

def wave():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    rows = [b"x" * (1_100_000 + 4096 * number) for number in range(40)]
    del rows
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    assert workers._keep_memory()
print(*[wave() for _ in range(6)])
"""


def faults(how):
    """Of waves of batches that are gathered and let go; the first ones have to get the memory."""
    told = subprocess.run(
        [sys.executable, "-c", WAVES, how], capture_output=True, text=True, check=True
    )
    return [int(each) for each in told.stdout.split()][2:]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc has it")
def test_memory_of_rows_is_used_again():
    assert max(faults("kept")) < 500
    assert min(faults("not kept")) > 5_000  # or there is nothing to spare a worker any more
