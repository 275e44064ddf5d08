"""delta-spark in a process of its own, which does what a test asks for.

As a script it is that process: it reads a line of JSON for each request, and prints one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

SIGN = "ANSWER "


class DeltaSpark:
    """Spark with Delta's own connector. As a context, it ends the process."""

    def __init__(self, folder):
        from benchmarks.peer import DELTA, peer_jars

        jars = ",".join(map(str, peer_jars(DELTA)))
        self._log = (folder / "delta-spark.txt").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, __file__, jars, str(folder), json.dumps(DELTA.conf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.stdout.close()
        self._log.close()

    def sql(self, text):
        """Return the rows of a statement, as lists; times and decimals are texts."""
        return self._ask(sql=text)

    def write(self, path, ids, mode="append", form="delta", **options):
        """Write rows with ids, by Delta's own connector or another."""
        return self._ask(write=str(path), ids=list(ids), mode=mode, form=form, options=options)

    def copy_stream(self, source, path, checkpoint, form="delta"):
        """Copy a folder of Parquet files as a stream to its end; return the query's id."""
        return self._ask(stream=str(source), path=str(path), checkpoint=str(checkpoint), form=form)

    def _ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(SIGN):
                answer = json.loads(line.removeprefix(SIGN))
                assert "error" not in answer, answer["error"]
                return answer["rows"]
        raise AssertionError("delta-spark has ended: " + Path(self._log.name).read_text()[-2000:])


def _session(jars, folder, conf):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    own = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in {**json.loads(conf), **own}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _answer(spark, request):
    if "sql" in request:
        return [list(row) for row in spark.sql(request["sql"]).collect()]
    if "write" in request:
        rows = spark.createDataFrame([(number,) for number in request["ids"]], "id long")
        writer = rows.coalesce(1).write.format(request["form"]).mode(request["mode"])
        writer.options(**request["options"]).save(request["write"])
        return []
    rows = spark.readStream.schema("id long").parquet(request["stream"])
    writer = rows.writeStream.format(request["form"])
    query = writer.option("checkpointLocation", request["checkpoint"]).start(request["path"])
    query.processAllAvailable()
    query.stop()
    return query.id


def main():
    spark = _session(*sys.argv[1:])
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        try:
            answer = {"rows": _answer(spark, json.loads(line))}
        except Exception as error:  # noqa: BLE001  the test shows it
            answer = {"error": str(error)}
        print(SIGN + json.dumps(answer, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
