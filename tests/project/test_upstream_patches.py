"""docs/upstream: patches for Spark apply to the version that their text names."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from wheels import ROOT

PATCH = ROOT / "docs" / "upstream" / "python-worker-memory.patch"
FILES = ("worker_util.py", "sql/worker/write_into_data_source.py")
IMPORTS = """
import struct, sys
import pyarrow as pa
ends = pa.py_buffer(struct.pack("=ii", 0, 3))
column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(b"abc")])
batch = pa.record_batch([column], names=["x"])
assert batch.to_pydict() == {"x": [b"abc"]} and "pandas" not in sys.modules
"""


@pytest.mark.skipif(pyspark.__version__ != "4.3.0", reason="the patch is for another version")
def test_the_memory_of_workers(tmp_path):
    for name in FILES:
        copy = tmp_path / "python" / "pyspark" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(pyspark.__file__).parent / name, copy)
    subprocess.run(["git", "apply", "--verbose", str(PATCH)], cwd=tmp_path, check=True)
    for name in FILES:
        text = (tmp_path / "python" / "pyspark" / name).read_text()
        compile(text, name, "exec")
        assert "pa.array([pickled])" not in text
        assert "    importlib." not in text
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
