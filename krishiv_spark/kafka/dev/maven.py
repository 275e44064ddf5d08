"""Jars from Maven Central, downloaded once by the Ivy of PySpark.

Tests and benchmarks need them for brokers and peers; no connector does. ``jars.sha256``
beside this module, in the form of ``sha256sum``, lists the files of each folder that this package
requests: the folder is refused if it has another file, lacks one, or a file has another hash.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyspark

from krishiv_spark.errors import KrishivError
from krishiv_spark.runtime.caches import user_cache

__all__ = ["Jar", "bring", "is_brought", "java", "run_java"]

_HASHES = Path(__file__).with_name("jars.sha256")
_CHUNK = 2**20
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
_ARTIFACT = '<artifact name="{}" type="{}" ext="{}" {}/>'


class Jar(NamedTuple):
    """The coordinates of a jar in Maven Central; its hash is in ``jars.sha256``."""

    organisation: str
    name: str
    version: str
    classifier: str = ""
    extension: str = "jar"


def java() -> str:
    """Return the Java of ``JAVA_HOME``, or else of ``PATH``.

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
        failure: Text of the error if the program fails.

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
    """Return a folder in the user's cache that contains some jars; the first call downloads them.

    The files are compared with the hashes of this package after a download, and when a process
    first uses the cached folder. A folder whose hashes this package does not have, such as that
    of another version of Kafka, has only the checksums of the server that Ivy compares: a warning.

    Args:
        name: Name of the folder, which must contain the versions.
        jars: Their coordinates in Maven Central, with versions.
        transitive: True to download their dependencies too.

    Raises:
        KrishivError: If they cannot be downloaded, or their hashes differ from this package's.
    """
    folder = user_cache() / name
    if not folder.exists():
        user_cache().mkdir(parents=True, exist_ok=True)
        # Beside the folder, so that complete files get their name in one step.
        with TemporaryDirectory(dir=user_cache()) as staged:
            _retrieve(Path(staged), jars, transitive=transitive)
            _verify(name, Path(staged) / "libs")
            _move_in(Path(staged) / "libs", folder)
    _verify(name, folder)
    return folder


def is_brought(name: str) -> bool:
    """Return True if the folder of `bring` is in the user's cache."""
    return (user_cache() / name).exists()


def _verify(name: str, folder: Path) -> None:
    """Compare the files of a folder with the hashes of this package."""
    files = []
    for path in sorted(folder.iterdir()):
        status = path.stat()
        files.append((path.name, status.st_size, status.st_mtime_ns))
    _verify_files(name, folder, tuple(files))


@functools.cache  # a folder is read again only if one of its files has another size or time
def _verify_files(name: str, folder: Path, files: tuple[tuple[str, int, int], ...]) -> None:
    expected = _read_hashes().get(name)
    if expected is None:
        warnings.warn(
            f"{name}: krishiv-spark has no SHA-256 of these jars; they were compared with the "
            "checksums of Maven Central's server only",
            stacklevel=4,  # the caller of `bring`
        )
        return
    there = {each for each, *_ in files}
    if there != expected.keys():
        wrong = ", ".join(sorted(there ^ expected.keys()))
        raise KrishivError(f"{folder} has other files than expected ({wrong}); {_advice(folder)}")
    for file, wanted in expected.items():
        found = _hash(folder / file)
        if found != wanted:
            raise KrishivError(
                f"{folder / file} has the SHA-256 {found} instead of {wanted}: it was changed, or "
                f"the server sent another file; {_advice(folder)}"
            )


def _advice(folder: Path) -> str:
    return f"it is not used. Delete {folder} if it exists, and the next call downloads it again"


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read_hashes() -> Mapping[str, Mapping[str, str]]:
    """Return the hash of each file of each folder."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in _HASHES.read_text(encoding="ascii").splitlines():
        wanted, path = line.split()
        folder, _, file = path.partition("/")
        found[folder][file] = wanted
    return found


def _retrieve(staged: Path, jars: Sequence[Jar], *, transitive: bool) -> None:
    settings, module = staged / "settings.xml", staged / "ivy.xml"
    settings.write_text(_SETTINGS.format(cache=staged / "cache"))
    module.write_text(_MODULE.format(_needed(jars, transitive=transitive)))
    ivy = ("-cp", str(_ivy()), "org.apache.ivy.Main", "-settings", str(settings))
    wanted = ("-ivy", str(module), "-confs", "default")
    to = ("-retrieve", str(staged / "libs" / "[artifact]-[revision](-[classifier]).[ext]"))
    listed = ", ".join(f"{jar.name} {jar.version}" for jar in jars)
    run_java(*ivy, *wanted, *to, failure=f"{listed} could not be had from Maven Central")


def _needed(jars: Iterable[Jar], *, transitive: bool) -> str:
    """Return Ivy's dependencies: all jars of a module must be in one element."""
    of_modules: dict[tuple[str, ...], list[Jar]] = {}
    for jar in jars:
        of_modules.setdefault(jar[:3], []).append(jar)
    return "".join(
        _NEEDED.format(*module, str(transitive).lower(), "".join(map(_artifact, wanted)))
        for module, wanted in of_modules.items()
    )


def _artifact(jar: Jar) -> str:
    classifier = f'm:classifier="{jar.classifier}"' if jar.classifier else ""
    return _ARTIFACT.format(jar.name, jar.extension, jar.extension, classifier)


def _ivy() -> Path:
    return next((Path(pyspark.__path__[0]) / "jars").glob("ivy-*.jar"))


def _move_in(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was quicker
            raise
