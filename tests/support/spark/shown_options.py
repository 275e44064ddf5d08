"""The display of options by Spark, of an active stream and of a batch, in all places.

    python shown_options.py FOLDER classic|connect OPTIONS

prints the texts, by place, as JSON. Options are those of krishiv-iceberg.
"""

import contextlib
import io
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import PATIENCE, await_that
from pyspark.sql import SparkSession

from krishiv_spark.kafka.dev.clusters import free_ports


def main() -> None:
    folder, mode, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    (port,) = free_ports(1)
    (folder / "events").mkdir(parents=True)
    spark = session(folder, port, mode)
    shown = run(spark, folder, options)
    shown |= dict(of_ui(f"http://127.0.0.1:{port}"))
    for query in spark.streams.active:
        query.stop()
    spark.stop()
    shown["events"] = texts_in(folder / "events")
    shown["checkpoint"] = texts_in(folder / "checkpoint")
    print("RESULT", json.dumps(shown))


def session(folder: Path, port: int, mode: str) -> SparkSession:
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        # Or Spark puts values in the place of ${env:...} in the text of SQL: docs/secrets.md.
        "spark.sql.variable.substitute": "false",
    }
    builder = SparkSession.builder
    for name, text in conf.items():
        builder = builder.config(name, text)
    return (builder.remote if mode == "connect" else builder.master)("local[2]").getOrCreate()


def run(spark: SparkSession, folder: Path, options: dict[str, str]) -> dict[str, str]:
    """A batch in, a stream from there into another table, and a view: what each of them shows."""
    shown = {}
    rows = spark.range(3)
    rows.write.format("krishiv-iceberg").options(**options).mode("append").save("db.a")
    read = spark.read.format("krishiv-iceberg").options(**options).load("db.a")
    read.collect()
    shown["batch plan"] = printed(lambda: read.explain(extended=True))
    named = ", ".join(f"`{key}` '{text}'" for key, text in {**options, "table": "db.a"}.items())
    spark.sql(f"CREATE TEMPORARY VIEW v USING `krishiv-iceberg` OPTIONS ({named})")
    shown["describe"] = str(spark.sql("DESCRIBE EXTENDED v").collect())
    stream = spark.readStream.format("krishiv-iceberg").options(**options).load("db.a")
    shown["stream plan"] = printed(lambda: stream.explain(extended=True))
    writer = stream.writeStream.format("krishiv-iceberg").options(**options)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start("db.b")
    await_that(lambda: not query.isActive or any(one.numInputRows for one in query.recentProgress))
    assert query.isActive, query.exception()
    shown["query plan"] = printed(lambda: query.explain(extended=True))
    shown["progress"] = str([dict(one) for one in query.recentProgress])
    return shown


def of_ui(address: str) -> list[tuple[str, str]]:
    """The pages that show plans, and what the programs behind them say."""
    (app,) = json.loads(page(address, "/api/v1/applications"))
    sql = f"/api/v1/applications/{app['id']}/sql?details=true&planDescription=true&length=1000"
    plans = page(address, sql)
    paths = [f"/SQL/execution/?id={plan['id']}" for plan in json.loads(plans)]
    paths += ["/SQL/", "/StreamingQuery/", "/environment/", "/connect/"]
    return [("plans of REST", plans), *((path, page(address, path)) for path in paths)]


def page(address: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=PATIENCE) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404 and path == "/connect/":  # of a classic session
            return ""
        raise


def printed(print_it: Callable[[], Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_it()
    return out.getvalue()


def texts_in(folder: Path) -> str:
    files = (file for file in folder.rglob("*") if file.is_file())
    return "\n".join(file.read_text(errors="replace") for file in files)


if __name__ == "__main__":
    main()
