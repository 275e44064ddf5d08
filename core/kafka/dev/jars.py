"""Kafka's own jars, brought by the Ivy that PySpark carries, once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import pyspark

from krishiv_spark.errors import KrishivError

__all__ = ["KAFKA_VERSION", "java", "kafka_jars"]

KAFKA_VERSION = "4.3.1"
_PATIENCE_SECONDS = 600
_SETTINGS = """
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def java() -> str:
    """The Java that is found by ``JAVA_HOME``, or else by ``PATH``.

    Raises:
        KrishivError: If there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = which("java", path=f"{home}/bin") if home else which("java")
    if found is None:
        raise KrishivError("a Kafka broker needs Java 17 or newer: install it, or set JAVA_HOME")
    return found


def kafka_jars() -> Path:
    """The folder with the jars of a broker; the first call downloads 44 MB from Maven Central.

    Raises:
        KrishivError: If they cannot be had.
    """
    folder = _cache() / f"kafka-{KAFKA_VERSION}"
    if not folder.exists():
        _cache().mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=_cache()) as aside:
            _retrieve(Path(aside))
            _move_in(Path(aside) / "libs", folder)
    return folder


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "krishiv-spark"


def _retrieve(aside: Path) -> None:
    settings = aside / "settings.xml"
    settings.write_text(_SETTINGS.format(cache=aside / "cache"))
    module = ("-dependency", "org.apache.kafka", "kafka_2.13", KAFKA_VERSION, "-confs", "default")
    wanted = (*module, "-retrieve", str(aside / "libs" / "[artifact]-[revision].[ext]"))
    ivy = (java(), "-cp", str(_ivy()), "org.apache.ivy.Main")
    run = subprocess.run(  # noqa: S603  Java, with PySpark's own jar
        [*ivy, "-settings", str(settings), *wanted],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if run.returncode or not (aside / "libs").exists():
        said = "\n".join((run.stdout + run.stderr).splitlines()[-20:])
        raise KrishivError(f"Kafka {KAFKA_VERSION} could not be had from Maven Central:\n{said}")


def _ivy() -> Path:
    return next((Path(pyspark.__path__[0]) / "jars").glob("ivy-*.jar"))


def _move_in(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was quicker
            raise
