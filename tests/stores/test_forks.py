"""The connections of a bucket when a process forks."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys
from krishiv_spark.storage import Storage
url, options = json.loads(sys.argv[1])
folder = Storage.of(options).folder(url)
folder.names()
if os.fork() == 0:
    try:
        folder.names()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
print(folder.names())
"""


def test_a_bucket_is_not_asked_in_a_fork_of_a_process_that_has_asked(store):
    """The threads of obstore are not in the fork: it would wait for ever, or end this process."""
    if store.url.startswith("hdfs"):
        pytest.skip("HDFS is asked by one thread")
    command = [sys.executable, "-c", SCRIPT, json.dumps([store.url, dict(store.options)])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    forked, after = done.stdout.splitlines()
    assert forked.startswith("StorageError this process was forked from one that had used a store")
    assert after == "{}"
