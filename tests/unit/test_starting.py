"""Forks of a zygote instead of Spark's Python processes, without Spark: this test is the JVM."""

import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest

from krishiv_spark.starting import requests
from krishiv_spark.starting.preloading import PRELOADS, prefer_installed

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="forks are for Linux, with pidfds"
)
LAUNCHER = str(Path(sys.executable).with_name("krishiv-spark-python"))
SECRET = "of this test"
PATIENCE_S = 60
AS_JVM = """
import subprocess, sys
started = [subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)]
print(int.from_bytes(started[0].stdout.read(4), "big"), flush=True)
sys.stdin.read()
"""


class Daemon:
    """A daemon of PySpark, started as a JVM starts it."""

    def __init__(self, environment, python=LAUNCHER, options=()):
        self.process = subprocess.Popen(
            [python, *options, "-m", "pyspark.daemon", "pyspark.worker"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        (self.port,) = struct.unpack("!i", self.process.stdout.read(4))

    def worker(self):
        """A new worker's process, and the connection that it serves."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        (number,) = struct.unpack("!i", connection.recv(4))
        return psutil.Process(number), connection

    def accepts(self, secret):
        """Whether its workers know a secret, which they read from their environment."""
        _, connection = self.worker()
        with connection:
            connection.sendall(struct.pack("!i", len(secret)) + secret.encode())
            return connection.recv(6)[4:] == b"ok"

    def pid(self):
        worker, connection = self.worker()
        with connection:
            return worker.ppid()

    def end(self):
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return code


@pytest.fixture
def environment(tmp_path):
    folder = tmp_path / ("longer than a socket's path may be" * 4)
    folder.mkdir()
    return {
        **{name: text for name, text in os.environ.items() if name != PRELOADS},
        "TMPDIR": str(folder),
        "PYTHON_WORKER_FACTORY_SECRET": SECRET,
    }


@pytest.fixture
def start(environment):
    started = []

    def begin(python=LAUNCHER, **more):
        started.append(Daemon({**environment, **more}, python))
        return started[-1]

    yield begin
    for each in started:
        each.end()
    for each in zygotes(environment):
        each.kill()


def zygotes(environment):
    folder = environment["TMPDIR"]
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if "krishiv_spark.starting.zygote" in words and folder in " ".join(words):
                found.append(process)
    # Forks have the command line of what they are forks of.
    return [each for each in found if each.ppid() not in {other.pid for other in found}]


def await_true(condition):
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_over(pid):
    """Also for one that nobody has waited for yet."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def is_fork(daemon, environment):
    (zygote,) = zygotes(environment)
    return psutil.Process(daemon.pid()).ppid() == zygote.pid


def test_all_daemons_of_a_jvm_are_forks_of_one_process(start, environment):
    first, second = start(), start()
    assert is_fork(first, environment)
    assert is_fork(second, environment)


def test_a_zygote_has_no_thread_and_only_its_own_descriptors(start, environment):
    start()
    (zygote,) = zygotes(environment)
    assert zygote.num_threads() == 1
    # Three streams, listener, selector, the JVM, and for the fork a connection and its process.
    await_true(lambda: zygote.num_fds() == 8)


def test_a_fork_has_nothing_of_the_zygote_open(start):
    # Three streams and where workers are asked for.
    for each in (start(), start()):
        daemon = psutil.Process(each.pid())
        await_true(lambda daemon=daemon: daemon.num_fds() == 4)


def test_a_fork_has_the_variables_of_its_own_start(start, environment):
    first, second = start(), start(PYTHON_WORKER_FACTORY_SECRET="another")
    assert is_fork(second, environment)
    assert first.accepts(SECRET)
    assert second.accepts("another")
    assert not second.accepts(SECRET)


def test_closing_its_input_ends_a_daemon_as_ever(start):
    daemon = start()
    pid = daemon.pid()
    assert daemon.end() == start(sys.executable).end()
    assert is_over(pid)


def test_a_signal_to_the_launcher_reaches_the_daemon(start):
    daemon = start()
    pid = daemon.pid()
    daemon.process.terminate()
    assert daemon.process.wait(PATIENCE_S) == 1  # as PySpark's daemon ends then
    assert is_over(pid)


def test_a_launcher_that_is_killed_takes_its_daemon_along(start):
    daemon = start()
    pid = daemon.pid()
    daemon.process.kill()
    await_true(lambda: is_over(pid))


def test_forks_outlive_their_zygote_and_later_processes_start_as_ever(start, environment):
    daemon = start()
    (zygote,) = zygotes(environment)
    zygote.kill()
    await_true(lambda: is_over(zygote.pid))
    worker, connection = daemon.worker()
    with connection:
        assert worker.is_running()
    assert daemon.process.poll() is None
    later = start()
    assert later.pid() == later.process.pid
    daemon.process.terminate()
    assert daemon.process.wait(PATIENCE_S) == 1  # nobody can tell any more how it ended
    await_true(lambda: is_over(worker.pid))


def test_zygote_and_forks_end_when_the_jvm_is_killed(environment):
    words = [sys.executable, "-c", AS_JVM, LAUNCHER, "-m", "pyspark.daemon", "pyspark.worker"]
    with subprocess.Popen(words, env=environment, stdin=-1, stdout=-1) as jvm:
        assert int(jvm.stdout.readline())
        (zygote,) = zygotes(environment)
        below = [*psutil.Process(jvm.pid).children(recursive=True), zygote, *zygote.children()]
        jvm.kill()
    await_true(lambda: all(is_over(each.pid) for each in below))
    assert not any(Path(environment["TMPDIR"]).glob("krishiv-spark-*/*"))


@pytest.mark.parametrize(
    "more", [{"SOMETHING": "else"}, {"OMP_NUM_THREADS": "2"}, {"PYTHONPATH": "/elsewhere"}]
)
def test_other_variables_make_a_process_of_its_own(start, environment, more):
    first = start(**{name: "" for name in more if name == "SOMETHING"})
    assert is_fork(first, environment)
    other = start(**more)
    assert other.pid() == other.process.pid


def test_a_folder_that_others_may_enter_is_not_used(start, environment):
    folder = Path(environment["TMPDIR"], f"krishiv-spark-{os.geteuid()}")
    folder.mkdir(mode=0o755)
    daemon = start()
    assert daemon.pid() == daemon.process.pid
    assert not any(folder.iterdir())


def test_the_folder_of_sockets_is_its_users_alone(start, environment):
    start()
    (folder,) = Path(environment["TMPDIR"]).iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_imported_leaves_processes_as_they_were(start):
    daemon = start(**{PRELOADS: "nothing of that name"})
    assert daemon.pid() == daemon.process.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_another_user_is_known_by_the_connection(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + str(tmp_path))  # no file: another user could not reach it
        listener.listen()
        for user, own in ((os.geteuid(), True), (65534, False)):
            with peer(listener, user) as connection:
                assert requests.is_own(connection) is own


def peer(listener, user):
    """What a connection of a user looks like from the other side."""
    me = os.geteuid()
    with socket.socket(socket.AF_UNIX) as connection:
        os.seteuid(user)
        try:
            connection.connect(listener.getsockname())
        finally:
            os.seteuid(me)
        return listener.accept()[0]


def test_spark_s_own_archive_is_passed_over_where_its_files_lie_beside(monkeypatch):
    here = Path(pyspark.__file__).parent
    within, elsewhere = f"{here}/python/lib/pyspark.zip", "/opt/spark/python/lib/pyspark.zip"
    kept = list(sys.path)
    monkeypatch.setattr(sys, "path", [within, elsewhere, *kept])
    prefer_installed()
    assert sys.path == [elsewhere, *kept]
