"""Jars from Maven Central, brought once by the Ivy that PySpark carries.

For brokers and peers that tests and benchmarks start; no connector needs any.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyspark

from krishiv_spark.caches import user_cache
from krishiv_spark.errors import KrishivError

__all__ = ["Jar", "bring", "java", "run_java"]

_PATIENCE_SECONDS = 600
_SHOWN_LINES = 20
_SETTINGS = """
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_MODULE = """
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="krishiv" module="wanted"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{}</dependencies>
</ivy-module>
"""
_NEEDED = """
<dependency org="{}" name="{}" rev="{}" conf="default->default" transitive="{}">{}</dependency>
"""
_ARTIFACT = '<artifact name="{}" type="jar" ext="jar" {}/>'


class Jar(NamedTuple):
    """What Maven Central has it under."""

    organisation: str
    name: str
    version: str
    classifier: str = ""


def java() -> str:
    """The Java that is found by ``JAVA_HOME``, or else by ``PATH``.

    Raises:
        KrishivError: If there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = which("java", path=f"{home}/bin") if home else which("java")
    if found is None:
        raise KrishivError("Java 17 or newer is needed: install it, or set JAVA_HOME")
    return found


def run_java(*arguments: str, failure: str) -> None:
    """Run a Java program to its end.

    Args:
        arguments: Options, main class and its arguments.
        failure: What it means if the program fails.

    Raises:
        KrishivError: If it fails, with the beginning and the end of what it printed; or if there
            is no Java.
        subprocess.TimeoutExpired: If it runs for ten minutes.
    """
    run = subprocess.run(  # noqa: S603  Java, with jars of PySpark or from Maven Central
        [java(), *arguments],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if run.returncode:
        lines = (run.stdout + run.stderr).splitlines()
        shown = (*lines[:_SHOWN_LINES], *lines[_SHOWN_LINES:][-_SHOWN_LINES:])
        raise KrishivError("\n".join((f"{failure}:", *shown)))


def bring(name: str, jars: Sequence[Jar], *, transitive: bool) -> Path:
    """A folder in the user's cache with some jars; the first call downloads them.

    Args:
        name: Of the folder; has to tell the versions.
        jars: Their coordinates in Maven Central, with versions.
        transitive: Whether also those that they need.

    Raises:
        KrishivError: If they cannot be had.
    """
    folder = user_cache() / name
    if not folder.exists():
        user_cache().mkdir(parents=True, exist_ok=True)
        # Beside the folder, so that what is whole gets its name in one step.
        with TemporaryDirectory(dir=user_cache()) as aside:
            _retrieve(Path(aside), jars, transitive=transitive)
            _move_in(Path(aside) / "libs", folder)
    return folder


def _retrieve(aside: Path, jars: Sequence[Jar], *, transitive: bool) -> None:
    settings, module = aside / "settings.xml", aside / "ivy.xml"
    settings.write_text(_SETTINGS.format(cache=aside / "cache"))
    module.write_text(_MODULE.format(_needed(jars, transitive=transitive)))
    ivy = ("-cp", str(_ivy()), "org.apache.ivy.Main", "-settings", str(settings))
    wanted = ("-ivy", str(module), "-confs", "default")
    to = ("-retrieve", str(aside / "libs" / "[artifact]-[revision](-[classifier]).[ext]"))
    listed = ", ".join(f"{jar.name} {jar.version}" for jar in jars)
    run_java(*ivy, *wanted, *to, failure=f"{listed} could not be had from Maven Central")


def _needed(jars: Iterable[Jar], *, transitive: bool) -> str:
    """Ivy wants all jars of a module at one place."""
    classifiers: dict[tuple[str, ...], list[str]] = {}
    for *module, classifier in jars:
        classifiers.setdefault(tuple(module), []).append(classifier)
    return "".join(
        _NEEDED.format(*module, str(transitive).lower(), _artifacts(module[1], wanted))
        for module, wanted in classifiers.items()
    )


def _artifacts(name: str, classifiers: Iterable[str]) -> str:
    given = (f'm:classifier="{each}"' if each else "" for each in classifiers)
    return "".join(_ARTIFACT.format(name, each) for each in given)


def _ivy() -> Path:
    return next((Path(pyspark.__path__[0]) / "jars").glob("ivy-*.jar"))


def _move_in(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was quicker
            raise
