"""Forks of a zygote instead of Spark's Python processes, without Spark: this test is the JVM."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from krishiv_spark import fast_start
from krishiv_spark.errors import OptionError
from krishiv_spark.spark.fast_start import launcher, requests
from krishiv_spark.spark.fast_start.preloading import PRELOADS, libraries, prefer_installed
from krishiv_spark.spark.fast_start.zygote import Imported

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="forks are for Linux, with pidfds"
)
LAUNCHER = str(Path(sys.executable).with_name("krishiv-spark-python"))
PATIENT_LAUNCHER = (  # on a busy machine, imports may take longer than Spark's processes wait
    sys.executable,
    "-I",
    "-c",
    (
        "from krishiv_spark.spark.fast_start import launcher\n"
        "launcher._PATIENCE_S = 60\n"
        "launcher.main()"
    ),
)
SECRET = "of this test"
PATIENCE_S = 60
NOBODY = 65534
AS_JVM = """
import subprocess, sys
started = [subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)]
print(int.from_bytes(started[0].stdout.read(4), "big"), flush=True)
sys.stdin.read()
"""


class Daemon:
    """A daemon of PySpark, started as a JVM starts it."""

    def __init__(self, environment, *python, **more):
        self.process = subprocess.Popen(
            [*python, "-m", "pyspark.daemon", "pyspark.worker"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **more,
        )
        (self.port,) = struct.unpack("!i", self.process.stdout.read(4))

    def worker(self):
        """A new worker's process, and the connection that it serves."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        (number,) = struct.unpack("!i", connection.recv(4))
        return psutil.Process(number), connection

    def accepts(self, secret):
        """Return True if its workers know a secret, which they read from their environment."""
        _, connection = self.worker()
        with connection:
            connection.sendall(struct.pack("!i", len(secret)) + secret.encode())
            return connection.recv(6)[4:] == b"ok"

    def pid(self):
        worker, connection = self.worker()
        with connection:
            return worker.ppid()

    def terminate(self):
        """Send SIGTERM to the launcher while the daemon waits for requests.

        PySpark's handler raises SystemExit, which Python ignores in functions that run after a
        fork: the signal would be lost while the daemon starts a worker.
        """
        daemon = psutil.Process(self.pid())
        await_true(lambda: daemon.status() == psutil.STATUS_SLEEPING)
        self.process.terminate()

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

    def begin(*python, process=None, **more):
        command = python or PATIENT_LAUNCHER
        started.append(Daemon({**environment, **more}, *command, **(process or {})))
        return started[-1]

    yield begin
    for each in started:
        each.end()
    kill_zygotes(environment)


def zygotes(environment):
    folder = environment["TMPDIR"]
    parents = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended, as a worker does whose connection is over
            words = process.cmdline()
            if "krishiv_spark.spark.fast_start.zygote" in words and folder in " ".join(words):
                parents[process] = process.ppid()
    # Forks have the command line of what they are forks of.
    found = {process.pid for process in parents}
    return [process for process, parent in parents.items() if parent not in found]


def kill_zygotes(environment):
    for each in zygotes(environment):
        with suppress(psutil.NoSuchProcess):  # with its JVM's end it ends by itself
            each.kill()


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
    daemon.terminate()
    assert daemon.process.wait(PATIENCE_S) == 1  # as PySpark's daemon ends then
    assert is_over(pid)


def test_a_launcher_that_is_killed_takes_its_daemon_along(start):
    daemon = start()
    pid = daemon.pid()
    daemon.process.kill()
    await_true(lambda: is_over(pid))


def test_a_zygote_outlives_a_launcher_and_its_fork_that_end_before_it_looks(start, environment):
    daemon = start()
    pid = daemon.pid()
    (zygote,) = zygotes(environment)
    zygote.suspend()
    os.kill(pid, signal.SIGKILL)
    await_true(lambda: is_over(pid))
    daemon.process.kill()
    daemon.process.wait(PATIENCE_S)
    zygote.resume()
    later = start()
    assert is_fork(later, environment)
    assert psutil.Process(later.pid()).ppid() == zygote.pid


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
    daemon.terminate()
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


@pytest.mark.long
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


def test_what_cannot_be_imported_is_left_to_the_processes_that_need_it(start, environment):
    daemon = start(**{PRELOADS: "nothing of that name,kafka"})
    assert is_fork(daemon, environment)


@pytest.mark.long
def test_the_libraries_of_all_installed_formats_can_be_forked(tmp_path):
    script = tmp_path / "imports.py"
    script.write_text(
        "from krishiv_spark.spark.fast_start.preloading import preload, preload_formats\n"
        "preload()\n"
        "print(*preload_formats())\n"
    )
    names = sorted(name for name, modules in libraries().items() if modules)
    environment = {**os.environ, **launcher._environment(), PRELOADS: ",".join(names)}
    command = [sys.executable, str(script)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == names
    assert {"iceberg", "kafka", "postgresql"} <= set(names)


@pytest.mark.parametrize("given", [None, ["krishiv-delta", "parquet", "kafka"], []])
def test_any_installed_format_may_be_named(monkeypatch, given):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", PRELOADS):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    fast_start(SparkSession.builder, given)
    loaded = set(filter(None, os.environ[PRELOADS].split(",")))
    assert loaded == ({"kafka"} & set(given) if given is not None else {*libraries()} & loaded)
    assert given is not None or {"iceberg", "kafka", "postgresql"} <= loaded


def test_a_format_that_is_not_installed_is_named_with_the_nearest_one():
    with pytest.raises(OptionError, match=r"'kafak' is no installed format; known: kafka"):
        fast_start(SparkSession.builder, ["kafak"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_another_user_is_known_by_the_connection(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + str(tmp_path))  # no file: another user could not reach it
        listener.listen()
        for user, own in ((os.geteuid(), True), (NOBODY, False)):
            with peer(listener, user) as connection:
                assert requests.is_own(connection) is own


def peer(listener, user):
    """Return a connection of a user as the other side sees it."""
    me = os.geteuid()
    with socket.socket(socket.AF_UNIX) as connection:
        os.seteuid(user)
        try:
            connection.connect(listener.getsockname())
        finally:
            os.seteuid(me)
        return listener.accept()[0]


# --- who may ask a zygote, for what, and what it keeps


def sockets(environment):
    return list(Path(environment["TMPDIR"]).glob("krishiv-spark-*/*"))


def environment_of(pid):
    """The variables with which the kernel shows a process, whatever it has set since."""
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


def test_no_zygote_and_no_fork_shows_the_secret_of_a_start(start, environment):
    first, second = start(), start(PYTHON_WORKER_FACTORY_SECRET="another")
    (zygote,) = zygotes(environment)
    worker, connection = second.worker()
    with connection:
        for pid in (zygote.pid, first.pid(), second.pid(), worker.pid):
            shown = "\n".join(environment_of(pid))
            assert "TMPDIR=" in shown
            assert "PYTHON_WORKER_FACTORY_SECRET" not in shown
            assert SECRET not in shown
    assert first.accepts(SECRET)
    assert second.accepts("another")


AS_LAUNCHER = """
import json, os, socket, struct, sys
from krishiv_spark.spark.fast_start.requests import GREETING, Request, is_own, send
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.settimeout(20)
if not is_own(connection):
    sys.exit("a stranger listens")
greeting = connection.recv(1)
if greeting != GREETING:
    sys.exit("no greeting")
module, arguments, raw = json.loads(sys.argv[2])
if raw is None:
    send(connection, Request.own(module, arguments))
else:
    text = raw.encode()
    socket.send_fds(connection, [struct.pack("!I", len(text))], (0, 1, 2))
    connection.sendall(text)
_, forked, _, _ = socket.recv_fds(connection, 1, 1)
print("forked" if forked else "refused")
"""


def asked(environment, module="x", arguments=(), raw=None, command=()):
    """Return the answer of the zygote to a child of the JVM, as launchers are."""
    (path,) = sockets(environment)
    given = json.dumps([module, list(arguments), raw])
    # By a descriptor of its folder: the path is longer than that of a socket may be.
    code = AS_LAUNCHER.replace(
        "connection.connect(sys.argv[1])",
        "home, name = os.path.split(sys.argv[1])\n"
        "connection.connect(f'/proc/self/fd/{os.open(home, os.O_RDONLY)}/{name}')",
    )
    words = [*command, sys.executable, "-c", code, str(path), given]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    return (done.stdout + done.stderr).strip()


def test_a_zygote_serves_no_module_but_spark_s_own(start, environment, tmp_path):
    start()
    (tmp_path / "probe_of_test.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    more = {**environment, "PYTHONPATH": str(tmp_path)}
    assert asked(more, "probe_of_test") == "refused"
    assert asked(environment, "timeit") == "refused"
    assert not (tmp_path / "ran").exists()
    assert is_fork(start(), environment)


@pytest.mark.long
@pytest.mark.parametrize(
    "raw",
    [
        "{}",
        "[]",
        "null",
        "[" * 100_000,
        '["pyspark.daemon", "x", "/", {}, []]',
        '["pyspark.daemon", [], "/", [], []]',
        '["pyspark.daemon", [1], "/", {}, []]',
        '["pyspark.daemon", [], 3, {}, []]',
        '["pyspark.daemon", [], "/", {"a": 1}, []]',
        '["pyspark.daemon", [], "/", {}, null]',
        '[["pyspark.daemon"], [], "/", {}, []]',
    ],
    ids=lambda raw: raw[:40],
)
def test_what_is_no_request_ends_no_zygote(start, environment, raw):
    start()
    (zygote,) = zygotes(environment)
    assert asked(environment, raw=raw) == "refused"
    assert zygote.is_running()
    assert is_fork(start(), environment)


def connected(environment):
    (path,) = sockets(environment)
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY)
    connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    connection.settimeout(PATIENCE_S)
    return connection


def test_a_process_that_the_jvm_has_not_started_is_not_served(start, environment):
    """This test is the JVM, and so no child of it; nor is what its children start."""
    start()
    with connected(environment) as own:
        assert own.recv(1) == b""
    between = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    assert asked(environment, command=between) == "no greeting"
    assert is_fork(start(), environment)


def test_a_launcher_that_dies_before_it_is_looked_at_harms_nobody(start, environment):
    start()
    (zygote,) = zygotes(environment)
    zygote.suspend()
    (path,) = sockets(environment)
    connects = (
        "import os, socket, sys\nhome, name = os.path.split(sys.argv[1])\n"
        "c = socket.socket(socket.AF_UNIX)\n"
        "c.connect(f'/proc/self/fd/{os.open(home, os.O_RDONLY)}/{name}')\n"
        "os.dup2(c.fileno(), 1)\nos.execvp('sleep', ['sleep', '60'])"
    )
    killed = subprocess.Popen([sys.executable, "-c", connects, str(path)])
    await_true(lambda: psutil.Process(killed.pid).name() == "sleep")
    killed.kill()
    killed.wait()
    zygote.resume()
    assert is_fork(start(), environment)
    assert zygote.is_running()


def test_a_connection_is_known_by_its_process_and_not_by_the_number_alone():
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen()
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                jvm = requests.Parent.of_this_process()
                assert requests.is_child_of(accepted, jvm)
                assert not requests.is_child_of(accepted, jvm._replace(begun=jvm.begun + 1))
                assert not requests.is_child_of(accepted, jvm._replace(number=os.getpid()))


@pytest.fixture
def elsewhere():
    """A command that runs another one in other namespaces, as in a container of its own."""
    found = []
    for spaces in (["--mount"], ["--pid", "--fork", "--mount-proc"]):
        command = ["unshare", *spaces]
        with suppress(OSError):
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                found.append(command)
    if not found:
        pytest.skip("needs the right to make namespaces")
    return found


LISTENS = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
connection, _ = listener.accept()
with open(sys.argv[2], "wb") as file:
    connection.settimeout(10)
    connection.send(sys.argv[3].encode())
    while part := connection.recv(65536):
        file.write(part)
"""


@pytest.mark.long
def test_a_process_of_another_container_gets_no_request(start, environment, elsewhere, tmp_path):
    """It has the same user and folder for sockets, and has taken the name of the JVM's first."""
    folder = Path(environment["TMPDIR"], f"krishiv-spark-{os.geteuid()}")
    folder.mkdir(mode=0o700)
    here = requests.Parent.at(os.getpid())
    for number, spaces in enumerate(elsewhere):
        got, short = (
            tmp_path / f"got-{number}",
            Path(tempfile.gettempdir(), f"k{os.getpid()}-{number}"),
        )
        words = [*spaces, sys.executable, "-c", LISTENS, str(short), str(got), "l"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as stranger:
            try:
                assert stranger.stdout.readline() == b"listens\n"
                short.rename(folder / here.name)
                daemon = start()
                assert daemon.pid() == daemon.process.pid
                await_true(got.exists)
                stranger.wait(PATIENCE_S)
                assert got.read_bytes() == b""
            finally:
                stranger.kill()
        (folder / here.name).unlink()


def test_a_process_of_another_container_is_not_served(start, environment, elsewhere):
    start()
    for spaces in elsewhere:
        assert asked(environment, command=spaces) in {"no greeting", "a stranger listens"}
    assert is_fork(start(), environment)


# --- what changes while a zygote runs, and where there can be none


def test_packages_that_were_installed_anew_make_processes_of_their_own(
    start, environment, tmp_path
):
    """As an upgrade does it: a fork would import the rest of them from another version."""
    package = tmp_path / "on the path" / "upgraded"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    # What Python imports at its start, in a zygote too.
    (package.parent / "sitecustomize.py").write_text("import upgraded")
    more = {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    assert is_fork(start(**more), environment)
    assert is_fork(start(**more), environment)
    (package / "of_the_new_version.py").touch()
    daemon = start(**more)
    assert daemon.pid() == daemon.process.pid


def test_files_of_ours_that_change_are_seen(monkeypatch, tmp_path):
    file = tmp_path / "module.py"
    file.touch()
    monkeypatch.setitem(sys.modules, "krishiv_spark.module", SimpleNamespace(__file__=str(file)))
    imported = Imported()
    assert imported.is_installed()
    os.utime(file, ns=(0, 0))
    assert not imported.is_installed()


def test_a_socket_that_was_cleaned_away_makes_another_zygote(start, environment):
    first = start()
    (zygote,) = zygotes(environment)
    (socket_file,) = Path(environment["TMPDIR"]).glob("krishiv-spark-*/*")
    socket_file.unlink()
    second = start()
    assert len(zygotes(environment)) == 2
    assert psutil.Process(second.pid()).ppid() != zygote.pid
    assert first.accepts(SECRET)


@pytest.mark.parametrize("cleaned", ["while it imports", "while it serves"])
def test_a_zygote_whose_socket_was_cleaned_away_ends_without_a_word(environment, tmp_path, cleaned):
    words = [sys.executable, "-c", AS_JVM, *PATIENT_LAUNCHER, "-m", "pyspark.daemon"]
    with (tmp_path / "errors").open("w") as errors:
        jvm = subprocess.Popen(
            [*words, "pyspark.worker"], env=environment, stdin=-1, stdout=-1, stderr=errors
        )
        if cleaned == "while it serves":
            assert int(jvm.stdout.readline())
        await_true(lambda: zygotes(environment))
        (zygote,) = zygotes(environment)
        (folder,) = Path(environment["TMPDIR"]).iterdir()
        shutil.rmtree(folder)
        if cleaned == "while it imports":
            assert int(jvm.stdout.readline())
        with jvm:
            jvm.kill()
        await_true(lambda: is_over(zygote.pid))
    assert not (tmp_path / "errors").read_text()


def test_a_zygote_of_a_jvm_that_has_ended_ends_without_a_word(tmp_path):
    jvm = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    parent = requests.Parent.at(jvm.pid)
    with jvm:
        jvm.kill()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # a name that the kernel chooses
        command = [sys.executable, "-m", "krishiv_spark.spark.fast_start.zygote", str(tmp_path)]
        ended = subprocess.run(
            [*command, str(listener.fileno()), *map(str, parent)],
            pass_fds=[listener.fileno()],
            capture_output=True,
            check=True,
            timeout=PATIENCE_S,
        )
    assert not ended.stdout + ended.stderr


def test_sockets_of_the_dead_are_removed_but_not_those_of_other_containers(start, environment):
    own = requests.Parent.of_this_process().space
    gone = {f"4194305-1-{own}", f"4194305-1-{own}.77"}
    kept = {f"4194305-1-{own + 1}", "something else"}
    folder = Path(environment["TMPDIR"], f"krishiv-spark-{os.geteuid()}")
    folder.mkdir(mode=0o700)
    for name in gone | kept:
        (folder / name).touch()
    start()
    await_true(lambda: not gone & {path.name for path in folder.iterdir()})
    assert kept < {path.name for path in folder.iterdir()}


@pytest.mark.long
@pytest.mark.parametrize("folder", ["/proc", "/nowhere/at/all"])
def test_without_a_place_for_sockets_processes_start_as_ever(start, folder):
    """As in a container whose /tmp can only be read."""
    daemon = start(TMPDIR=folder)
    assert daemon.pid() == daemon.process.pid


@pytest.mark.long
@pytest.mark.parametrize("mask", [0, 0o077, 0o777])
def test_any_umask_leaves_the_folder_to_its_user(start, environment, mask):
    daemon = start(process={"umask": mask})
    assert daemon.accepts(SECRET)
    (folder,) = Path(environment["TMPDIR"]).iterdir()
    assert folder.stat().st_mode & 0o077 == 0


def test_a_link_to_the_program_finds_its_python(start, environment, tmp_path):
    link = tmp_path / "bin" / "python3"
    link.parent.mkdir()
    link.symlink_to(LAUNCHER)
    start()  # the zygote, which the program waits for only 5 s
    assert is_fork(start(str(link)), environment)


@pytest.fixture
def shared(environment):
    """A folder for temporary files that another user reaches, too, who can start our Python."""
    command = [sys.executable, "-c", "import krishiv_spark"]
    try:
        subprocess.run(command, user=NOBODY, env=environment, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot read this environment")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        yield folder
        kill_zygotes({"TMPDIR": folder})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
def test_users_share_no_zygote(start, shared):
    own, other = start(TMPDIR=shared), start(TMPDIR=shared, process={"user": NOBODY})
    for daemon, user in ((own, os.geteuid()), (other, NOBODY)):
        assert psutil.Process(daemon.pid()).uids().effective == user
    found = {each.uids().effective: each.pid for each in zygotes({"TMPDIR": shared})}
    assert found.keys() == {os.geteuid(), NOBODY}
    assert psutil.Process(own.pid()).ppid() == found[os.geteuid()]
    assert psutil.Process(other.pid()).ppid() == found[NOBODY]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
def test_a_folder_of_another_user_is_not_used(start, environment):
    folder = Path(environment["TMPDIR"], f"krishiv-spark-{os.geteuid()}")
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    daemon = start()
    assert daemon.pid() == daemon.process.pid


# --- where somebody else starts the processes


def test_a_program_under_spark_submit_is_told_that_its_jvm_is_older(monkeypatch, caplog):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", PRELOADS):
        monkeypatch.setenv(name, "python3")
    fast_start(SparkSession.builder)
    assert not caplog.text
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    fast_start(SparkSession.builder)
    assert not caplog.text  # PYSPARK_DRIVER_PYTHON is the program by now
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python3")
    fast_start(SparkSession.builder)
    assert (
        f"before spark-submit, export PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON as {LAUNCHER}"
        in (caplog.text)
    )


def test_a_client_of_connect_is_told_that_it_starts_no_processes(monkeypatch, caplog):
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    before = dict(os.environ)
    builder = SparkSession.builder.remote("sc://host:15002/;token=hunter2")
    assert fast_start(builder, ["kafka"]) is builder
    assert "started by the server sc://host:15002/" in caplog.text
    assert "hunter2" not in caplog.text
    assert dict(os.environ) == before


@pytest.mark.long
def test_a_zygote_takes_pyspark_from_its_folder_and_reads_no_archive(tmp_path):
    archive = next(Path(pyspark.__file__).parent.glob("python/lib/pyspark.zip"))
    script = tmp_path / "looks.py"
    script.write_text(
        "import sys\n"
        "from krishiv_spark.spark.fast_start import zygote\n"
        "print('pyspark' in sys.modules)\n"
        "zygote.prefer_installed()\n"
        "zygote.preload()\n"
        "print(sys.modules['pyspark'].__file__)\n"
        "print([path for path in sys.path_importer_cache if '.zip' in path])\n"
    )
    path = f"{archive}{os.pathsep}{os.environ['PYTHONPATH']}"
    environment = {**os.environ, **launcher._environment(), "PYTHONPATH": path}
    command = [sys.executable, str(script)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, file, archives = shown.stdout.splitlines()
    assert (before, file) == ("False", pyspark.__file__)
    assert str(archive) not in archives


def test_spark_s_own_archive_is_passed_over_where_its_files_lie_beside(monkeypatch):
    here = Path(pyspark.__file__).parent
    within, elsewhere = f"{here}/python/lib/pyspark.zip", "/opt/spark/python/lib/pyspark.zip"
    kept = list(sys.path)
    monkeypatch.setattr(sys, "path", [within, elsewhere, *kept])
    prefer_installed()
    assert sys.path == [elsewhere, *kept]
