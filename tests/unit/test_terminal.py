"""Control characters in names, rows and error texts of other programs are only displayed."""

import ast
import json
import logging
import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from krishiv_spark import cli
from krishiv_spark.cli import main
from krishiv_spark.errors import LogError
from krishiv_spark.messages.terminal import show_lines, show_text
from krishiv_spark.operate.commands import checkpoint as checkpoint_command
from krishiv_spark.operate.commands import query
from krishiv_spark.operate.commands.common import say, say_json, say_lines
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.console import ConsoleOptions, ConsoleWriter, drawn
from krishiv_spark.spark import logs

COMMANDS = Path(cli.__file__).parent / "operate" / "commands"
TITLE, RED, LINK = "\x1b]0;owned\x07", "\x1b[31m", "\x1b]8;;http://evil\x1b\\"
HOSTILE = f"a{TITLE}{RED}\nforged\r\t\x7f\x9b31m\u202eb\u2066\u200f\u2028\ufeff\u200b\ud800{LINK}z"
VISIBLE_MARKS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Signs that surround the digits after them: of the category of format characters, but visible."""


def is_safe(text):
    return show_text(text) == text


# --- the rule


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("\x00\x7f", r"\x00\x7f"),
        ("\a\b\t\n\v\f\r", r"\a\b\t\n\v\f\r"),
        ("\u202e\u2066\u200e", r"\u202e\u2066\u200e"),
        ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
        ("\u200b\u200d\ufeff\u00ad", r"\u200b\u200d\ufeff\xad"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_an_unsafe_character_is_a_visible_escape(text, shown):
    assert show_text(text) == shown
    shown.encode()


@pytest.mark.parametrize("text", ["", "plain", r"C:\temp\x1b", "日本 ünï 🙂 عربي ۝", "a b  c"])
def test_other_texts_stay_as_they_are(text):
    assert show_text(text) is text or show_text(text) == text


def test_every_control_format_and_separator_character_is_escaped():
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    unsafe = {
        code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in kinds
    }
    assert {code for code in unsafe if is_safe(chr(code))} == VISIBLE_MARKS


def test_lines_stay_lines_and_nothing_else_does():
    assert show_lines("a\nb\r\n\x1bc\x85d\u2028e") == "a\nb\\r\n\\x1bc\\x85d\\u2028e"


@pytest.mark.long
def test_a_long_text_is_escaped_in_linear_time():
    assert len(show_text("\x1b" * 10**6)) == 4 * 10**6


# --- commands


def test_no_command_prints_but_by_the_functions_that_escape():
    """A new command cannot forget it: the one module that may call click.echo is `common`."""
    printing = {"echo", "secho", "echo_via_pager", "print", "write", "print_exception"}
    for path in COMMANDS.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        }
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                  for alias in node.names if node.module == "click"}  # fmt: skip
        allowed = {"echo"} if path.name == "common.py" else set()
        assert names & printing <= allowed, path.name


def test_in_common_only_escaped_texts_are_printed():
    tree = ast.parse((COMMANDS / "common.py").read_text())
    printed = [
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.echo"
    ]
    assert len(printed) == 2
    assert all(text.startswith(("show_text(", "json.dumps(")) for text in printed)


def test_what_is_said_is_one_line(capsys):
    say(HOSTILE)
    say(Path(HOSTILE.replace("\ud800", "")), err=True)
    say_lines([HOSTILE, "b"], "none")
    say_lines([], f"none{RED}")
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert len(err.splitlines()) == 1
    assert all(map(is_safe, [*out.splitlines(), *err.splitlines()]))


def test_json_stays_json_and_has_no_control_character(capsys):
    say_json({HOSTILE: HOSTILE})
    out = capsys.readouterr().out
    assert json.loads(out) == {HOSTILE: HOSTILE}
    assert is_safe(out.removesuffix("\n"))


def on_a_terminal(*words):
    """The bytes that a command writes to its terminal."""
    own, its = pty.openpty()
    command = [sys.executable, "-m", "krishiv_spark", *words]
    with subprocess.Popen(command, stdout=its, stderr=its) as process:
        os.close(its)
        written = b""
        try:
            while part := os.read(own, 65536):
                written += part
        except OSError:  # Linux's end of a terminal
            pass
        process.wait(60)
    os.close(own)
    return written.decode()


@pytest.mark.long
def test_a_name_in_a_table_forges_no_line_of_vacuum(tmp_path):
    name = f"batch-{TITLE}{RED}\nforged line\u202e"
    (tmp_path / "_krishiv" / "batch-x").mkdir(parents=True)
    log = tmp_path / "_krishiv" / name / "log"
    log.mkdir(parents=True)
    for folder in (log, log.parent):
        os.utime(folder, (1, 1))
    written = on_a_terminal("parquet", "vacuum", "--dry-run", "--older-than", "1d", str(tmp_path))
    first, second, rest = written.split("\r\n")
    assert r"batch-\x1b]0;owned\a\x1b[31m\nforged line\u202e" in first
    assert "would be removed" in second
    assert not rest
    assert is_safe(first)


def test_error_texts_are_escaped(monkeypatch):
    def fail(*_):
        raise LogError(HOSTILE)

    monkeypatch.setattr(checkpoint_command, "checkpoint_of", fail)
    done = CliRunner().invoke(main, ["checkpoint", "copy", "a", "b"])
    (line,) = done.output.splitlines()
    assert line.startswith("Error: ")
    assert is_safe(line)


def test_errors_of_arguments_are_escaped():
    done = CliRunner().invoke(main, ["epochs", "list", "-o", f"{RED}x\n", "/nowhere"])
    assert done.exit_code == 2
    assert all(map(is_safe, done.output.splitlines()))
    assert r"\x1b[31mx" in done.output


def test_tracebacks_of_other_errors_are_escaped(tmp_path):
    code = (
        "import sys; from krishiv_spark import cli\n"
        "from krishiv_spark.operate.commands import setup\n"
        f"def fail(*_): raise RuntimeError({HOSTILE!r})\n"
        "setup._make = fail\n"
        "cli.main(['new', 'project', 'x'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeError: a" + r"\x1b]0;owned" in done.stderr
    assert all(map(is_safe, done.stderr.split("\n")))


def test_what_watch_draws_is_escaped_and_not_taken_for_styles():
    drawn = query._text(f"[red]{HOSTILE}")
    assert drawn.plain == "[red]" + show_text(HOSTILE)
    assert not drawn.spans


def test_log_lines_are_escaped_and_tracebacks_keep_their_lines(monkeypatch, capfd):
    alone = logging.Logger("krishiv_spark.somewhere")  # noqa: LOG001  pytest adds handlers to others
    monkeypatch.setattr(logs, "_root", alone)
    logs.write_to_terminal()
    logs.write_to_terminal(lambda text: text.replace("hunter2", "***"))
    alone.warning("of %s hunter2", HOSTILE)
    try:
        raise ValueError(f"{HOSTILE} hunter2")
    except ValueError:
        alone.exception("failed")
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == f"of {show_text(HOSTILE)} ***"
    assert lines[1:3] == ["failed", "Traceback (most recent call last):"]
    assert all(map(is_safe, lines))
    assert "hunter2" not in "".join(lines)


# --- rows


def staged(values, kind=None, **options):
    """A writer, and what its task sends of a batch whose column has a hostile name too."""
    schema = pa.schema([(HOSTILE.replace("\ud800", ""), kind or pa.string())])
    parsed = ConsoleOptions.parse(options, "krishiv-console")
    writer = ConsoleWriter(parsed, schema, OutputMode.APPEND, streaming=True)
    batch = pa.RecordBatch.from_arrays([pa.array(values, schema.types[0])], schema=schema)
    return writer, writer.stage(iter([batch]), None, None)


@pytest.mark.parametrize("options", [{}, {"truncate": "false"}, {"vertical": "true"}])
def test_records_are_printed_without_what_a_terminal_obeys(options):
    writer, head = staged([HOSTILE.replace("\ud800", ""), "\x1b" * 100, "plain"], **options)
    text = drawn(writer.schema.names, [head], writer.options)
    assert all(map(is_safe, text.split("\n")))
    assert "plain" in text


def test_a_cell_is_cut_after_it_is_escaped():
    _, head = staged(["\x1b" * 100, "x" * 20, "x" * 21], truncate="20")
    assert [row[0] for row in head.rows] == [
        r"\x1b" * 4 + "\\" + "...",
        "x" * 20,
        "x" * 17 + "...",
    ]


def test_nested_values_are_escaped_too():
    kind = pa.struct([("a", pa.list_(pa.string()))])
    _, head = staged([{"a": ["\x1b[2J"]}], kind)
    assert head.rows == ((r"{[\x1b[2J]}",),)


# --- labels of metrics: their library escapes them


def test_labels_of_prometheus_are_escaped_by_its_library():
    class Labelled:
        def collect(self):
            family = GaugeMetricFamily("krishiv_query_epoch", "help", labels=("query_name",))
            family.add_metric((label,), 1)
            yield family

    label = 'a"} 1\nforged_metric 2\\' + RED
    registry = CollectorRegistry()
    registry.register(Labelled())
    text = generate_latest(registry).decode()
    assert [line for line in text.splitlines() if line.startswith("forged")] == []
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert sample.labels == {"query_name": label}
