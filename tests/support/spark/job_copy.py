"""A driver that a test starts, kills and starts again: a job file, from Kafka to three targets.

    python job_copy.py '{"bootstrap": ..., "folder": ..., ...}'

Prints STARTED, EPOCH and DONE as `kafka_copy` does.
"""

import json
import os
import sys
from pathlib import Path

from stream_copy import Progress, session

from krishiv_spark import jobs


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    file = Path(__file__).parent / "job_files" / "three_targets.yaml"
    loaded = jobs.load(file, variables={"BROKER": job["bootstrap"], "FOLDER": job["folder"]})
    print("STARTED", flush=True)
    runner = jobs.JobRunner(spark, lambda line: print(line, flush=True))
    runner.on_session = lambda session: session.streams.addListener(Progress())
    runner.run(loaded)
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
