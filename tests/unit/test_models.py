"""Models of connectors that are not installed: their classes travel by value."""

import subprocess
import sys
from typing import Literal

import pytest
from pyspark import cloudpickle

from krishiv_spark.offsets import Offset
from krishiv_spark.options import Options

WORKER = """
import sys
from pyspark import cloudpickle
data = sys.stdin.buffer.read()
for _ in range(2):  # epochs: the second one gives the same class its first state again
    said = cloudpickle.loads(data).answer()
print(said)
"""


class OwnOptions(Options):
    level: Literal["low", "high"] = "low"

    @classmethod
    def answer(cls):
        return cls.parse({"LEVEL": "high"}, "own").level


class OwnOffset(Offset):
    kind = "own"
    number: int

    @classmethod
    def answer(cls):
        return cls.from_json(cls(number=3).to_json()).number


@pytest.mark.long
@pytest.mark.parametrize(("kind", "said"), [(OwnOptions, "high"), (OwnOffset, "3")])
def test_a_class_that_has_travelled_by_value_validates(kind, said):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        data = cloudpickle.dumps(kind)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=data, capture_output=True, check=False
    )
    assert done.stdout.decode().strip() == said, done.stderr.decode()[-2000:]
