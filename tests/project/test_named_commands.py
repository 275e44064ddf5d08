"""Commands that messages and pages name: each exists as it is named, and a test runs it so."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from wheels import ROOT

from krishiv_spark.cli import main

PACKAGE = ("krishiv_spark", "offsets", "sinks", "sources")
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "docs" / "operate").rglob("*"),
    ROOT / "README.md",
]
CONTEXT = click.Context(main)

UNIT = "unit/test_epoch_identity.py"
KAFKA_COMMANDS = "spark/test_kafka_sink.py::test_the_command_line_"

# Where the command does what the message or page promises, not only that it parses.
RUN_BY = {
    "checkpoint copy": (
        "unit/test_moving.py::test_a_copy_goes_on_where_the_old_one_is_under_another_id",
        f"{UNIT}::test_a_copy_of_an_earlier_epoch_goes_on_in_a_target_of_its_own",
        "spark/test_moving.py::test_a_copy_goes_on_in_a_topic_of_its_own",
    ),
    "checkpoint rewind": (
        f"{UNIT}::test_what_a_way_back_says_to_do_writes_each_row_once",
        f"{UNIT}::test_a_table_and_its_log_that_were_copied_while_an_epoch_ran",
        "unit/test_committed_batches.py::test_a_rewind_takes_the_records_of_later_batches_back",
    ),
    "checkpoint import": (
        "spark/test_moving.py::test_a_query_moves_from_sparks_kafka_source_to_ours_and_back",
        "spark/test_moving.py::test_a_query_moves_from_sparks_file_source_to_ours",
    ),
    "checkpoint export": (
        "spark/test_moving.py::test_a_query_moves_from_sparks_kafka_source_to_ours_and_back",
    ),
    "log show": (f"{UNIT}::test_show_says_what_log_and_checkpoint_know",),
    "log resolve": (
        f"{UNIT}::test_resolve_does_what_the_next_driver_would",
        f"{UNIT}::test_an_epoch_that_has_lost_a_file_is_settled_by_decree",
        "unit/test_fanout_resolve.py::test_a_route_that_is_not_given_is_not_taken_for_finished",
        "brokers/test_kafka_windows.py::test_an_epoch_whose_topic_was_made_anew_is_not_passed_over",
    ),
    "iceberg relocate": (
        "unit/test_iceberg_relocate.py::test_a_warehouse_that_was_moved_by_hand_is_put_right",
        "unit/test_iceberg_relocate.py::test_a_copy_that_was_made_by_hand_and_written_becomes_independent",
    ),
    "log adopt": (
        f"{UNIT}::test_a_log_is_adopted_for_a_query_that_was_stopped_in_good_order",
        f"{UNIT}::test_the_target_is_changed_by_adopting",
        f"{UNIT}::test_what_a_way_back_says_to_do_writes_each_row_once",
        "spark/test_fanout.py::test_another_target_is_refused_until_an_operator_says_so",
    ),
    "kafka transactions list": (f"{KAFKA_COMMANDS}shows_and_ends_what_a_dead_driver_left",),
    "kafka transactions show": (f"{KAFKA_COMMANDS}shows_and_ends_what_a_dead_driver_left",),
    "kafka transactions resolve": (f"{KAFKA_COMMANDS}shows_and_ends_what_a_dead_driver_left",),
    "kafka transactions abort": (f"{KAFKA_COMMANDS}ends_what_a_dead_job_left",),
    "parquet vacuum": ("unit/test_vacuum.py::*", "stores/test_parquet_table.py::*"),
    "parquet skipped": ("stores/test_parquet_files.py::*", "unit/test_parquet_growing.py::*"),
    "iceberg compact": ("unit/test_iceberg_compaction.py::*",),
    "iceberg inspect": ("unit/test_iceberg_report.py::*",),
    "iceberg snapshots": ("unit/test_iceberg_report.py::*",),
    "iceberg vacuum": ("unit/test_iceberg_vacuum.py::*", "stores/test_iceberg_table.py::*"),
    "epochs list": ("unit/test_status.py::test_epochs_are_listed_and_shown",),
    "epochs show": ("unit/test_status.py::test_epochs_are_listed_and_shown",),
    "dead-letters show": (
        "unit/test_dead_letters.py::test_a_command_counts_letters_by_reason",
        "spark/test_dead_letters.py::test_the_command_reads_letters_of_a_topic",
    ),
    "replay": (
        "unit/test_replay.py::*",
        "unit/test_replay_sinks.py::*",
        "spark/test_replay.py::*",
    ),
    "status": ("unit/test_status.py::test_a_query_between_two_epochs",),
    "watch": ("unit/test_watch.py::test_once_is_status_and_the_newest_epochs",),
    "doctor": ("spark/test_doctor.py::test_a_cluster_that_lacks_nothing_is_well",),
    "dev kafka": ("brokers/test_kafka_broker.py::*",),
    "run": ("spark/test_job_command.py::test_a_dry_run_understands_and_starts_nothing",),
    "validate": ("unit/test_jobs.py::*",),
    "job-schema": ("unit/test_jobs.py::*",),
    "new connector": ("spark/test_new.py::test_a_connector_is_green",),
}


def messages() -> Iterator[tuple[str, str]]:
    """Texts of the package, docstrings too; what is put into a message is a star."""
    for folder in PACKAGE:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "*" for p in node.values)
                    yield path.name, "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield path.name, node.value


def pages() -> Iterator[tuple[str, str]]:
    """Yield the code on a page, in spans and indented lines; all of a file that is not a page."""
    for path in PAGES:
        if path.is_file() and path.suffix == ".md":
            text = path.read_text()
            indented = re.compile(r"^    .*$", re.MULTILINE)
            for found in indented.findall(text) + re.findall(r"`([^`]+)`", indented.sub("", text)):
                yield path.name, found
        elif path.is_file():
            yield path.name, path.read_text()


def named_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands in a text, with the options that follow each, up to the end of its quotes."""
    for found in re.finditer(r"krishiv-spark ([a-z][^'`\"\n]*(?:\n[^'`\"\n]+)?)", text):
        words = found[1].split()
        path, command = [], main
        while words and isinstance(command, click.Group):
            below = command.get_command(CONTEXT, words[0].rstrip(".,:;"))
            if below is None:
                break
            path.append(words.pop(0).rstrip(".,:;"))
            command = below
        if not path:  # prose
            continue
        options = [word.split("=")[0] for word in words if re.fullmatch(r"--[a-z][a-z-]*.*", word)]
        yield " ".join(path), options


FOUND = sorted(
    {
        (where, path, option)
        for where, text in [*messages(), *pages()]
        for path, options in named_in(text)
        for option in options or [""]
    }
)


def command_of(path: str) -> click.Command:
    command = main
    for word in path.split():
        command = command.get_command(CONTEXT, word)
    return command


def test_commands_are_found_where_they_are_named():
    named = {(where, path) for where, path, _ in FOUND}
    assert {
        ("log_checks.py", "log adopt"),
        ("store_table.py", "log resolve"),
        ("numbered.py", "checkpoint rewind"),
        ("epoch_checks.py", "checkpoint rewind"),
        ("checkpoint.py", "checkpoint copy"),
        ("recovery.md", "log adopt"),
        ("moving.md", "log resolve"),
    } <= named


@pytest.mark.parametrize(("where", "path", "option"), FOUND)
def test_a_command_is_as_it_is_named(where, path, option):
    command = command_of(path)
    if option and not isinstance(command, click.Group):
        known = {name.rstrip(".,;:") for p in command.params for name in p.opts}
        assert option.rstrip(".,;:)") in known, f"{where}: krishiv-spark {path} {option}"


@pytest.mark.parametrize("path", sorted({path for _, path, _ in FOUND}))
def test_a_test_runs_each_command_that_is_named(path):
    if isinstance(command_of(path), click.Group):
        assert any(leaf.startswith(f"{path} ") for leaf in RUN_BY)
        return
    assert path in RUN_BY, f"nothing runs 'krishiv-spark {path}' for what it is named for"


@pytest.mark.parametrize("test", sorted({test for tests in RUN_BY.values() for test in tests}))
def test_the_tests_that_run_them_are_there(test):
    file, _, name = test.partition("::")
    text = Path(ROOT, "tests", file).read_text()
    assert name == "*" or f"def {name}(" in text
