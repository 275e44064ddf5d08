"""The imports between rooms: they point down, and form no circles, even for typing."""

import ast
import importlib
import importlib.metadata
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from syntax import parse_module, walk_statements
from wheels import ROOT

import krishiv_spark
from krishiv_spark.formats import format_names

PACKAGE = ROOT / "krishiv_spark"
FORMATS = {*format_names()}
# From what knows everything to what knows nothing of the others; a room may import from its own
# line and from those below it.
STOREYS = [
    {
        "",
        "__main__",
        "cli",
        "formats",
        "jobs",
        "metrics",
        "operate",
        "queries",
        "spark.fast_start",
        "testing",
    },
    {"datasource"},
    {"lifecycle"},
    {f"{side}.{name}" for name in FORMATS for side in ("sinks", "sources")},
    {"sinks", "sources"},
    {"changes"},
    FORMATS - {"parquet"},
    {"parquet"},  # which the data files of Iceberg are
    {"spark"},
    {"offsets"},
    {"storage"},
    {"options"},
    {"arrow"},
    {"messages"},
    {"runtime"},
    {"durable", "errors"},
]
LOOSE = {"", "__main__", "cli", "datasource", "durable", "errors", "formats"}
"""The modules in the root of the package: all others have a room."""

CONVENTIONAL = {"__init__", "base", "errors", "offset", "options", "reader", "writer"}
REPEATED = {
    # A subject, and the command of its name.
    "checkpoint": 2,
    # One subject on both sides of a format, or in several formats.
    "participant": 4,
    "planner": 2,
    # To be told apart.
    **dict.fromkeys(("handle", "requests", "rows"), 2),
}
"""File names of several modules, with how many there are. No number may rise; lower them."""


PUBLIC = (
    "datasource",
    "durable",
    "errors",
    "jobs",
    "metrics",
    "offsets",
    "options",
    "queries",
    "sinks",
    "sources",
    "testing",
)
SHOWN = [
    *(ROOT / "examples").glob("*.py"),
    *(ROOT / "examples" / "new_format" / "template").rglob("*.py"),
    *(ROOT / "tests" / "typing").glob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
]
DOORS = {  # to the private parts of PyIceberg, kafka-python, numba and PySpark
    "iceberg._pyiceberg",
    "spark.jvm",
    "kafka._kafka_python",
    "kafka.records.jit",
    "testing.processes.write_roles",
}
NOT_IMPORTED = {"pandas", "pyiceberg-core", "urllib3"}  # PySpark, PyIceberg and requests do that
MODULES = {"pyyaml": "yaml"}  # which is not named as its distribution


def modules() -> dict[str, Path]:
    """Each module of the package by its name, without the package's own."""
    folders = [(PACKAGE, "")]
    folders += [(ROOT / name, name) for name in ("offsets", "sinks", "sources")]
    found = {}
    for folder, prefix in folders:
        for path in folder.rglob("*.py"):  # which does not follow links
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(filter(None, (prefix, *parts))).removesuffix("__init__").strip(".")] = (
                path
            )
    return found


@cache
def imports() -> dict[str, set[str]]:
    known = modules()
    return {name: set(imported(path, known)) - {name} for name, path in known.items()}


def imported(path: Path, known):
    for node in walk_statements(parse_module(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "krishiv_spark":
                inside = name.removeprefix("krishiv_spark").strip(".")
                yield inside if inside in known else inside.rpartition(".")[0]


def room(name: str) -> str:
    """The folder in the root of the package, or that of a format among the sinks or sources."""
    parts = name.split(".")
    own = ".".join(parts[:2])
    return own if any(own in storey for storey in STOREYS) else parts[0]


def storey(of: str) -> int:
    return next(n for n, rooms in enumerate(STOREYS) if of in rooms)


def test_every_module_has_a_room():
    rooms = set[str]().union(*STOREYS)
    assert {room(name) for name in modules()} <= rooms
    assert {name for name, path in modules().items() if path.parent == PACKAGE} == LOOSE


def test_a_file_name_means_one_module():
    names = Counter(path.stem for path in modules().values() if path.stem not in CONVENTIONAL)
    assert {name: count for name, count in names.items() if count > 1} == REPEATED


def test_no_arrow_points_up():
    up = [
        f"{name} -> {other}"
        for name, others in imports().items()
        for other in others
        if storey(room(other)) < storey(room(name))
    ]
    assert not up


def test_what_all_connectors_share_knows_no_sink_and_no_source():
    shared = {*FORMATS, "offsets"}
    wrong = [
        f"{name} -> {other}"
        for name, others in imports().items()
        for other in others
        if name.split(".")[0] in shared and other.split(".")[0] in {"sinks", "sources"}
    ]
    assert not wrong


@pytest.mark.parametrize(("one", "other"), [("sinks", "sources"), ("sources", "sinks")])
def test_no_source_knows_a_sink_and_no_sink_a_source(one, other):
    wrong = [
        f"{name} -> {known}"
        for name, others in imports().items()
        for known in others
        if name.startswith(f"{one}.") and known.startswith(f"{other}.")
    ]
    assert not wrong


def test_no_format_knows_another():
    wrong = [
        f"{name} -> {other}"
        for name, others in imports().items()
        for other in others
        if "." in room(name) and "." in room(other)
        if room(name).split(".")[1] != room(other).split(".")[1]
    ]
    assert not wrong


def test_there_are_no_circles():
    TopologicalSorter(imports()).prepare()  # raises CycleError, which names one


def test_no_two_classes_share_a_name():
    homes = defaultdict(list)
    for name, path in modules().items():
        for node in walk_statements(parse_module(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    assert not {name: where for name, where in homes.items() if len(where) > 1}


@pytest.mark.parametrize("switch", ["# pyright: report", "noqa: SLF001"])
def test_checks_of_private_parts_are_off_in_the_doors_only(switch):
    found = {name for name, path in modules().items() if switch in path.read_text()}
    assert found <= DOORS


def test_distinct_integers_are_not_hashed():
    """``sort_distinct`` says why."""
    slow = re.compile(r"np\.(union1d|intersect1d|unique)\((?!.*return_)")
    assert not {name for name, path in modules().items() if slow.search(path.read_text())}


def test_every_dependency_is_imported_by_the_package():
    needed = importlib.metadata.requires("krishiv-spark")
    names = {re.match(r"[\w-]+", line)[0] for line in needed if "extra ==" not in line}
    modules_of = {MODULES.get(name, name.replace("-", "_")) for name in names - NOT_IMPORTED}
    text = "\n".join(path.read_text() for path in modules().values())
    imported = set(re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE))
    assert {name.removesuffix("_python") for name in modules_of} <= imported


def test_public_modules_offer_what_they_say():
    public = [importlib.import_module(f"krishiv_spark.{name}") for name in PUBLIC]
    for module in (krishiv_spark, *public):
        assert all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="sinks' has no attribute 'Writter'"):
        krishiv_spark.sinks.Writter  # noqa: B018
    assert all(f"`{name}`" in krishiv_spark.__doc__ for name in PUBLIC[:5])


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_authors_are_shown_uses_public_names(path):
    for home, names in re.findall(
        r"^from krishiv_spark\b\.?([\w.]*) import (\(.*?\)|[^\n]*)",
        path.read_text(),
        re.MULTILINE | re.DOTALL,
    ):
        if "sketch" in f"{home} {names}".lower():
            continue  # a format of theirs
        module = importlib.import_module(f"krishiv_spark.{home}".strip("."))
        offered = {*module.__all__, *PUBLIC} if home == "" else set(module.__all__)
        assert home in {"", *PUBLIC}, path
        assert set(re.findall(r"\w+", names)) <= offered


SECTION = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", re.MULTILINE)
EMPTY = re.compile(r"\w+: (Which|Where|Whose|How|Why|Its (name|id)|The (options|path|number))\.$")


def descriptions(path: Path):
    """Yield the descriptions of arguments and attributes in docstrings."""
    for node in walk_statements(parse_module(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            for part in SECTION.findall(ast.get_docstring(node) or ""):
                yield from re.findall(r"^    (\w+: .*)", part, re.MULTILINE)


def test_descriptions_say_more_than_a_name():
    empty = [
        f"{name}: {text}"
        for name, path in modules().items()
        for text in descriptions(path)
        if EMPTY.match(text)
    ]
    assert not empty


ROWS_MAY_GO = re.compile(
    r"'failOnDataLoss' (=|to) '?false|'bad(Files|Batches)' (=|to) 'skip'|new checkpoint"
)
MAY_ADVISE = re.compile(r"failOnDataLoss|badFiles|badBatches|checkpoint")
SAYS_SO = re.compile(r"\blost\b|read again|sources begin where")


def texts_of(tree):
    """The texts that a module may show, each whole: without docstrings."""
    nodes = list(ast.walk(tree))
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr)
              for part in node.values}  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield ast.unparse(node)
        elif isinstance(getattr(node, "value", None), str) and id(node) not in inside:
            yield node.value


def test_no_text_advises_what_loses_rows_without_saying_so():
    silent = {
        f"{name}: {text[:200]}"
        for name, path in modules().items()
        if MAY_ADVISE.search(path.read_text())  # only for speed
        for text in texts_of(without_docstrings(ast.parse(path.read_text())))
        if ROWS_MAY_GO.search(text) and not SAYS_SO.search(text)
    }
    assert not silent


def without_docstrings(tree):
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not is_text(one)] or [ast.Pass()]
    return tree


def is_text(statement):
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr) and isinstance(getattr(value, "value", None), str)
