"""The wheel: whole, typed, light to import, and found by Spark."""

import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, list_tracked_files

PLACES = {  # each folder of modules, and where an import finds it
    "krishiv_spark": "krishiv_spark",
    "offsets": "krishiv_spark/offsets",
    "sinks": "krishiv_spark/sinks",
    "sources": "krishiv_spark/sources",
    "discovery": "",
}
HEAVY = ["kafka", "pyiceberg", "numba", "pytest", "obstore", "pyarrow", "pandas", "pyspark", "rich"]


def on_disk() -> set[str]:
    return {
        str(Path(inside, path.relative_to(ROOT / place)))
        for place, inside in PLACES.items()
        for path in (ROOT / place).rglob("*.py")  # which does not follow links
    }


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def contents(wheel: Path) -> dict[str, int]:
    """The modules of a wheel, with a checksum each."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist() if is_module(info.filename)}


def is_module(name: str) -> bool:
    return name.endswith((".py", ".typed"))


def elsewhere(code: str, installed: Path, cwd: Path) -> object:
    """Return the JSON output of a script in another folder with the wheel first on the path."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_wheel_has_every_module_that_is_on_disk_and_no_other(wheel):
    assert {name for name in in_wheel(wheel) if name.endswith(".py")} == on_disk()


@pytest.mark.long
def test_the_source_distribution_makes_the_same_wheel(wheel, wheel_of_sdist):
    assert contents(wheel_of_sdist) == contents(wheel)


def test_the_wheel_is_typed_and_licensed_and_has_its_command(wheel):
    names = in_wheel(wheel)
    assert "krishiv_spark/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    (points,) = (name for name in names if name.endswith("entry_points.txt"))
    with zipfile.ZipFile(wheel) as archive:
        assert "krishiv-spark = krishiv_spark.cli:main" in archive.read(points).decode()


def test_the_wheel_claims_nothing_but_its_own_names(wheel):
    roots = {name.split("/")[0] for name in in_wheel(wheel)}
    own = {root for root in roots if not root.endswith((".dist-info", ".data"))}
    finders = {path.name for path in (ROOT / "discovery").glob("*.py")}
    assert own == {"krishiv_spark"} | finders
    programs = {name for name in in_wheel(wheel) if ".data/" in name}
    assert {name.partition(".data/")[2] for name in programs} == {"scripts/krishiv-spark-python"}


@pytest.mark.long
def test_every_module_of_the_wheel_can_be_imported_outside_the_repository(installed, tmp_path):
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in on_disk()
    )
    code = f"""
import importlib, json, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)  # kafka-python
modules = {modules!r}
print(json.dumps([importlib.import_module(name).__file__ for name in modules]))
"""
    files = elsewhere(code, installed, tmp_path)
    assert len(files) == len(modules)
    assert all(Path(file).is_relative_to(installed) for file in files)


def test_importing_the_package_imports_nothing_heavy(installed, tmp_path):
    code = f"""
import json, sys
import krishiv_spark
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    assert elsewhere(code, installed, tmp_path) == []


def test_the_formats_import_no_client_that_they_do_not_use(installed, tmp_path):
    code = """
import json, sys
from krishiv_spark.formats import every_format
every_format()
heavy = ["kafka", "pyiceberg", "numba", "pytest", "obstore", "rich"]
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    assert elsewhere(code, installed, tmp_path) == []


def test_a_format_imports_no_other(installed, tmp_path):
    code = """
import json, sys
from krishiv_spark.formats import KafkaDataSource, format_names
KafkaDataSource.reader_type, KafkaDataSource.writer_type
ours = [name for name in sys.modules if name.startswith("krishiv_spark.")]
others = {*format_names()} - {"kafka"}
print(json.dumps([sorted(others), [name for name in ours if name.split(".")[-1] in others]]))
"""
    others, imported = elsewhere(code, installed, tmp_path)
    assert "parquet" in others
    assert imported == []


def test_each_format_has_a_module_that_spark_finds(installed, tmp_path):
    code = """
import importlib, json, pkgutil
from krishiv_spark.formats import every_format
found = [m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_krishiv")]
sources = {importlib.import_module(name).DefaultSource for name in found}
assert sources == set(every_format()), sources
print(json.dumps(sorted(source.name() for source in every_format())))
"""
    formats = elsewhere(code, installed, tmp_path)
    assert {path.stem for path in (ROOT / "discovery").glob("*.py")} == {
        f"pyspark_{name.replace('-', '_')}" for name in formats
    }


def test_everything_that_is_public_is_there(installed, tmp_path):
    code = """
import json
import krishiv_spark
public = {name: getattr(krishiv_spark, name) for name in krishiv_spark.__all__}
print(json.dumps([name for name, value in public.items() if not callable(value)]))
"""
    assert elsewhere(code, installed, tmp_path) == []


def test_a_name_that_is_not_there_is_an_attribute_error():
    import krishiv_spark

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        krishiv_spark.nothing  # noqa: B018


def test_the_environment_runs_the_files_of_this_repository():
    import krishiv_spark
    from krishiv_spark.sinks.base import Writer

    assert Path(krishiv_spark.__file__).parent == ROOT / "krishiv_spark"
    assert Path(inspect.getsourcefile(Writer)).resolve() == ROOT / "sinks" / "base.py"
    assert importlib.metadata.version("krishiv-spark")


def test_each_module_that_is_imported_is_a_file_of_the_repository():
    files = {(ROOT / name).resolve() for name in list_tracked_files()}
    modules = {(ROOT / name).resolve() for name in on_disk() if name.startswith("krishiv_spark/")}
    assert modules <= files


@pytest.mark.long
def test_a_checker_resolves_every_import_of_a_plain_clone(plain_clone):
    """With the dependencies installed, and nothing else."""
    there = Path(sysconfig.get_path("purelib"))
    packages = plain_clone / ".krishiv/spark-4.3" / there.relative_to(sys.prefix)
    packages.mkdir(parents=True)
    for path in there.iterdir():
        if "krishiv" not in path.name:
            (packages / path.name).symlink_to(path)
    done = subprocess.run(
        ["basedpyright"], cwd=plain_clone, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
