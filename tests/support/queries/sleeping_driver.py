"""A driver without Spark that stops with SIGSTOP in the middle of an epoch, and wakes up later.

python sleeping_driver.py '{"checkpoint": ..., "sink": ..., "options": {...}, "epochs": [2],
                            "before": "krishiv_spark.offsets.epoch_log:EpochLog.intend"}'

It prints ``DONE``, or ``FAILED`` with the class and the text of the error, for each epoch.
"""

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
from fan_queries import Fan
from patience import PATIENCE, await_that
from replays import Stream

from krishiv_spark.errors import KrishivError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sinks.kafka.writer import KafkaWriter


class KafkaStream(Stream):
    """Records whose values are the numbers of the rows."""

    COLUMNS = pa.schema([("value", pa.string())])

    def __init__(self, checkpoint, options):
        super().__init__(KafkaWriter, checkpoint)
        given = {**options, "checkpointLocation": str(checkpoint)}
        parsed = KafkaWriter.options_type.parse(given, "krishiv-kafka")
        self._make = lambda: KafkaWriter(parsed, self.COLUMNS, OutputMode.APPEND)

    def rows(self, begin, end):
        return pa.record_batch([[str(n) for n in range(begin, end)]], schema=self.COLUMNS)


def iceberg_stream(checkpoint, options):
    """A query into one table."""
    return Stream(IcebergWriter, checkpoint, **options, checkpointLocation=str(checkpoint))


STREAMS = {"krishiv-fanout": Fan, "krishiv-iceberg": iceberg_stream, "krishiv-kafka": KafkaStream}


class SleepingDriver:
    """The process of a driver, as a test sees it."""

    def __init__(self, **job):
        command = [sys.executable, __file__, json.dumps(job)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def await_sleep(self):
        """Until the driver has stopped."""
        process = psutil.Process(self._process.pid)
        await_that(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))
        assert process.status() == psutil.STATUS_STOPPED, self.end()

    def wake(self):
        """Continue the driver; return its lines."""
        self._process.send_signal(signal.SIGCONT)
        return self.end()

    def end(self):
        """Await the end of the driver; return its lines."""
        return self._process.communicate(timeout=PATIENCE)[0].splitlines()

    def kill(self):
        """End the driver, if it is still there."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def stop_before(path):
    """Have the process stop once, before the first call of a function."""
    module, _, name = path.partition(":")
    *outer, last = name.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    real = getattr(owner, last)

    def stopped(*arguments, **given):
        setattr(owner, last, real)
        os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments, **given)

    setattr(owner, last, stopped)


def main(job):
    """Run the epochs."""
    stream = STREAMS[job["sink"]](Path(job["checkpoint"]), job["options"])
    if "before" in job:
        stop_before(job["before"])
    for number in job["epochs"]:
        try:
            stream.run(number)
        except (KrishivError, PlanningFailed) as error:
            sys.exit(print("FAILED", type(error).__name__, error))
        print("DONE", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
