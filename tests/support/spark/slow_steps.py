"""A step of a job whose batch never gets done in time."""

SLOW = """
import time
from pyspark.sql.functions import udf

def slow(rows):
    def later(x):  # a local function travels by its code
        time.sleep(SECONDS)
        return x

    return rows.withColumn("id", udf(later, "bigint")("id"))
"""


def write_slow_step(folder, seconds):
    """Write the module ``slowstep``, whose function ``slow`` takes that long for each row."""
    (folder / "slowstep.py").write_text(SLOW.replace("SECONDS", str(seconds)))
