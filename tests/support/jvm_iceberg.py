"""A driver that reads a table with Iceberg's own connector, in Java, as a process of its own.

    python jvm_iceberg.py '{"warehouse": ..., "table": ..., "column": ..., "jars": [...]}'

Prints the values of a column as one line of JSON after VALUES. The connector exists for one line
of PySpark (``benchmarks/peer.py``): `read` runs this file in that line's environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

_ROOT = Path(__file__).parents[2]
_WORD = "VALUES "


def environment(line: str) -> Path | None:
    """The Python of a line of PySpark, as ``./run`` has made it; None if it has not."""
    found = _ROOT / ".krishiv" / f"spark-{line}" / "bin" / "python"
    return found if found.exists() else None


def read(python: Path, warehouse: Path, table: str, column: str, jars: list[Path]) -> list:
    """All values of a column of a table in the embedded catalog."""
    job = {"warehouse": str(warehouse), "table": table, "column": column}
    job["jars"] = ",".join(map(str, jars))
    run = subprocess.run(
        [str(python), __file__, json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (said,) = (line for line in run.stdout.splitlines() if line.startswith(_WORD))
    return json.loads(said.removeprefix(_WORD))


def main() -> None:
    from stream_copy import session

    job = json.loads(sys.argv[1])
    name = "spark.sql.catalog.krishiv"  # catalogs in SQL know tables by the catalog's name
    conf = {
        "spark.jars": job["jars"],
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{name}.uri": f"jdbc:sqlite:{job['warehouse']}/catalog.db",
        f"{name}.warehouse": job["warehouse"],
    }
    rows = session({"conf": conf}).table(f"krishiv.{job['table']}").select(job["column"])
    print(_WORD + json.dumps([row[0] for row in rows.collect()]), flush=True)


if __name__ == "__main__":
    main()
