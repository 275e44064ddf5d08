"""A process without memory names its limit and the setting."""

import resource
import subprocess
import sys

import pyarrow as pa
import pytest

from krishiv_spark.errors import OutOfMemory, SinkError
from krishiv_spark.lifecycle.errors import explain_memory_error, message_before_traceback
from krishiv_spark.runtime import memory_limits

SETTING = "spark.executor.pyspark.memory"
FULL = """
import pyarrow as pa
from krishiv_spark.lifecycle.errors import explain_memory_error
try:
    pa.allocate_buffer(2**40)
except MemoryError as error:
    print(explain_memory_error(error))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit addresses")
def test_a_limit_of_addresses_is_named_with_its_setting():
    limit = 1500 * 2**20
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "of size 1099511627776 failed" in done.stdout
    assert f"It may have 1500 MiB of addresses, libraries included: raise {SETTING}" in done.stdout


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_limit_of_a_container_is_named(tmp_path, monkeypatch, file):
    monkeypatch.setattr(memory_limits, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory_limits, "_find_address_limit", lambda: None)
    assert memory_limits.describe_memory_limits().startswith("Raise spark.executor.memoryOverhead")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(f"{100 * 2**20}\n")
    text = memory_limits.describe_memory_limits()
    assert text.startswith("Its container may have 100 MiB: raise spark.executor.memoryOverhead")
    (tmp_path / file).write_text("max\n")
    assert "may have" not in memory_limits.describe_memory_limits()


def test_only_errors_of_memory_are_explained():
    other, own = ValueError("x"), SinkError("y")
    assert explain_memory_error(other) is other
    assert explain_memory_error(own) is own
    assert explain_memory_error(ImportError("no module")).args == ("no module",)
    shown = explain_memory_error(ImportError("x.so: failed to map segment from shared object"))
    assert isinstance(shown, OutOfMemory)
    assert isinstance(shown, MemoryError)  # for callers that expect Python's own class


def test_spark_gets_the_explanation():
    class Reader:
        @message_before_traceback
        def read(self):
            yield 1
            raise pa.ArrowMemoryError("malloc of size 64 failed")

    with pytest.raises(OutOfMemory, match=r"got no more memory: malloc of size 64 failed\. "):
        list(Reader().read())
