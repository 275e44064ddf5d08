"""JVMs of tests, started in a quarter of the time: a hundred of them run a few queries each.

    python tests/support/quick_jvm.py

makes, once for each environment, the archive of Spark's classes that they start from (class data
sharing, JEP 350). Without it they start in half of the time, by one compiler and one collector.

Python workers start in half of the time too. In the folder where pip puts Spark there is an archive
of PySpark's modules, from which they would import. It holds no compiled code, so each of them
compiles its share anew. The tests' home of Spark has no such archive: they import what pip has.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark
from tables import make_input

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
INSTALLED = Path(pyspark.__file__).parent
HOME = Path(sys.prefix) / "spark"
ARCHIVE = HOME / "classes.jsa"
DRIVER = Path(__file__).parent / "spark" / "stream_copy.py"


def options() -> str:
    """Return the options of every JVM of Spark."""
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE}" if is_fresh() else OPTIONS


def home() -> str:
    """The value of SPARK_HOME: links to what pip has installed, without its archive of modules."""
    HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        with suppress(FileExistsError):
            (HOME / name).symlink_to(INSTALLED / name)
    return str(HOME)


def is_fresh() -> bool:
    """Return True if there is an archive of the present jars; another one would be ignored."""
    return ARCHIVE.exists() and ARCHIVE.stat().st_mtime > (INSTALLED / "jars").stat().st_mtime


def submit(java: str) -> str:
    """The value of PYSPARK_SUBMIT_ARGS by which each driver has these options."""
    return f"--conf 'spark.driver.extraJavaOptions={java}' pyspark-shell"


def main() -> None:
    if is_fresh():
        return
    ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        load_classes(Path(folder), submit(f"{OPTIONS} -XX:ArchiveClassesAtExit={ARCHIVE}"))


def load_classes(folder: Path, arguments: str) -> None:
    """Run what most tests run: a stream from Python to Python."""
    make_input(folder / "in", 2, 2)
    places = {"source": "in", "table": "out", "checkpoint": "checkpoint"}
    job = json.dumps({name: str(folder / place) for name, place in places.items()})
    environment = {**os.environ, "SPARK_HOME": home(), "PYSPARK_SUBMIT_ARGS": arguments}
    # The JVM outlives its driver by the seconds that it writes for: it holds the pipe.
    subprocess.run(
        [sys.executable, str(DRIVER), job], env=environment, stdout=subprocess.PIPE, check=True
    )


if __name__ == "__main__":
    main()
