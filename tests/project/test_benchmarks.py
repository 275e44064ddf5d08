"""The statistics of the benchmarks: intervals, comparison, reports."""

import itertools
import os
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import peer
from benchmarks.bench import BENCHMARKS, Benchmark
from benchmarks.flames import Unseen, watched
from benchmarks.measure import Goal, Wrong, figure, followed, in_turn, interval
from benchmarks.progress import Clock, Shown
from benchmarks.report import machine, markdown, words
from benchmarks.report.bars import chart, ticks
from benchmarks.report.compare import Verdict, changes, regressions
from benchmarks.report.page import page
from benchmarks.report.results import (
    Machine,
    Outcome,
    Results,
    Taken,
    Unreadable,
    load,
    merged,
    save,
    summary,
)
from benchmarks.requests import Counted
from benchmarks.suite import Suite
from docs.generate import README_FIGURES
from krishiv_spark.errors import KrishivError
from krishiv_spark.spark.fast_start.preloading import libraries
from servers.forwarding import Message
from servers.programs import ToolMissingError

HERE = Machine(system="Linux", processor="x", cores=2, memory=24 << 30, filesystem="ext4")
FAST = Goal(2.0, at_most=False)


def taken(**more):
    given = {
        "date": datetime(2026, 11, 21, 8, 30, tzinfo=timezone.utc),
        "commit": "0123456789abcdef",
        "changed": False,
        "command": "./run bench",
        "quick": False,
        "profiled": False,
        "machine": HERE,
        "versions": {"Python": "3.11.7", "pyspark": "4.3.0"},
        "peers": {"Spark's own Kafka connector": "kafka-clients 3.9.2"},
    }
    return Taken(**{**given, **more})


def outcome(*figures, key="now", **more):
    given = {"about": "Rows <in>.", "command": "./run bench --only kafka.read", "seconds": 4.0}
    return Outcome(**given, taken=key, figures=figures, **more)


def results(*figures, key="now", name="kafka.read", of=None, **more):
    return Results(
        taken={key: of or taken()}, benchmarks={name: outcome(*figures, key=key, **more)}
    )


def ratio(*values, goal=FAST):
    return figure("ours / theirs", "x", values, goal)


# --- intervals


class TestInterval:
    def test_the_same_values_have_the_same_interval(self):
        assert interval([1.0, 2.0, 4.0, 7.0]) == interval([1.0, 2.0, 4.0, 7.0])

    def test_it_is_around_the_median(self):
        low, high = interval(list(range(100)))
        assert 30 < low < 49.5 < high < 70

    def test_of_three_it_is_all_of_them(self):
        assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)

    @pytest.mark.parametrize("values", [[1.0], [1.0, 2.0]])
    def test_of_fewer_there_is_none(self, values):
        assert interval(values) is None

    def test_it_covers_the_median_about_as_often_as_it_says(self):
        draws = np.random.default_rng(7)
        found = [interval(draws.normal(10, 1, 25)) for _ in range(60)]
        assert sum(low <= 10 <= high for low, high in found) >= 52

    def test_nothing_measured_is_wrong(self):
        with pytest.raises(Wrong, match="nothing was measured"):
            figure("rate", "rows/s", [])

    @pytest.mark.parametrize(
        ("unit", "goal", "given", "smaller"),
        [
            ("ms", None, None, True),
            ("rows/s", None, None, False),
            ("x", None, None, False),
            ("x", None, True, True),
            ("x", Goal(1.2), None, True),
            ("x", FAST, None, False),
        ],
    )
    def test_whether_smaller_is_better(self, unit, goal, given, smaller):
        assert figure("f", unit, [1.0], goal, smaller=given).smaller is smaller


# --- the file


class TestResults:
    def test_it_is_what_was_written(self, tmp_path):
        found = results(ratio(2.1, 2.2, 2.3), missing={"peer": "no network"})
        save(found, tmp_path / "r.json")
        assert load(tmp_path / "r.json") == found

    def test_it_says_whether_goals_are_met(self, tmp_path):
        save(results(ratio(1.0, 1.1, 1.2)), tmp_path / "r.json")
        assert '"met": false' in (tmp_path / "r.json").read_text()

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '{"taken": {}}'])
    def test_another_file_is_refused(self, tmp_path, text):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(Unreadable, match=r"r\.json is no result"):
            load(tmp_path / "r.json")

    def test_no_file_is_refused(self, tmp_path):
        with pytest.raises(Unreadable, match="cannot be read"):
            load(tmp_path / "r.json")

    def test_merging_keeps_what_was_not_measured_again(self):
        older = results(ratio(1.0), key="then", name="a")
        newer = results(ratio(2.0), key="now", name="b")
        both = merged(older, newer)
        assert list(both.benchmarks) == ["a", "b"]
        assert set(both.taken) == {"then", "now"}

    def test_merging_forgets_runs_that_nothing_belongs_to(self):
        both = merged(results(ratio(1.0), key="then"), results(ratio(2.0), key="now"))
        assert set(both.taken) == {"now"}
        assert both.benchmarks["kafka.read"].figures[0].median == 2.0

    def test_merging_keeps_a_figure_with_a_peer_from_one_without(self):
        older = results(ratio(1.0), key="then")
        newer = results(ratio(2.0), key="now", missing={"peer": "not for this PySpark"})
        assert merged(older, newer) == older
        assert merged(newer, older) == older
        assert merged(newer, newer) == newer

    def test_this_machine(self, tmp_path):
        here = machine.machine(tmp_path)
        assert here.cores >= 1
        assert here.memory > 1 << 28
        assert here.like(here)

    def test_a_file_system_by_the_nearest_mount(self):
        if not Path("/proc/mounts").exists():
            pytest.skip("no /proc")
        assert machine.filesystem(Path("/proc/self")) == "proc"

    def test_an_updated_system_is_the_same_machine(self):
        assert HERE.like(HERE.model_copy(update={"system": "Linux 7"}))
        assert not HERE.like(HERE.model_copy(update={"cores": 64}))


# --- comparison


def verdict(before, after, **more):
    (found,) = changes(results(before, key="then"), results(after, **more))
    return found


class TestCompare:
    def test_intervals_apart_to_the_worse(self):
        assert verdict(ratio(2.0, 2.1, 2.2), ratio(1.0, 1.1, 1.2)).verdict is Verdict.REGRESSION

    def test_intervals_apart_to_the_better(self):
        assert verdict(ratio(1.0, 1.1, 1.2), ratio(2.0, 2.1, 2.2)).verdict is Verdict.IMPROVEMENT

    def test_a_time_that_grows_is_worse(self):
        before, after = figure("t", "ms", [10, 11, 12]), figure("t", "ms", [20, 21, 22])
        assert verdict(before, after).verdict is Verdict.REGRESSION
        assert verdict(after, before).verdict is Verdict.IMPROVEMENT

    def test_intervals_that_meet_are_noise(self):
        assert verdict(ratio(1.0, 1.5, 2.0), ratio(2.0, 2.5, 3.0)).verdict is Verdict.NOISE

    def test_a_change_that_nobody_would_notice_is_noise(self):
        before, after = figure("t", "ms", [1000] * 5), figure("t", "ms", [1001] * 5)
        assert verdict(before, after).verdict is Verdict.NOISE

    def test_too_few_repetitions_are_not_judged(self):
        found = verdict(ratio(1.0, 1.1, 1.2), ratio(9.0, 9.1))
        assert (found.verdict, found.why[:7]) == (Verdict.UNKNOWN, "too few")

    @pytest.mark.parametrize("more", [{"quick": True}, {"profiled": True}])
    def test_other_circumstances_are_not_judged(self, more):
        found = verdict(ratio(1.0, 1.1, 1.2), ratio(9.0, 9.1, 9.2), of=taken(**more))
        assert found.verdict is Verdict.UNKNOWN

    def test_on_another_machine_only_ratios_are_judged(self):
        other = taken(machine=HERE.model_copy(update={"cores": 64}))
        rate = figure("rate", "rows/s", [1, 2, 3])
        assert verdict(rate, rate, of=other).verdict is Verdict.UNKNOWN
        assert verdict(ratio(1, 2, 3), ratio(1, 2, 3), of=other).verdict is Verdict.NOISE

    def test_what_comes_and_what_goes(self):
        old, new = figure("old", "x", [1, 2, 3]), figure("new", "x", [1, 2, 3])
        found = {change.figure.name: change.verdict for change in _between(old, new)}
        assert found == {"new": Verdict.NEW, "old": Verdict.GONE}

    def test_benchmarks_that_were_not_asked_for_are_left_out(self):
        assert changes(results(ratio(1, 2, 3), name="a"), results(name="b")) == []

    def test_figures_that_a_summary_does_not_keep_are_left_out(self):
        rate = figure("rate", "rows/s", [1, 2, 3])
        before = summary(results(ratio(3.0, 3.1, 3.2), rate, key="then"))
        (found,) = changes(before, results(ratio(1.0, 1.1, 1.2), rate))
        assert (found.figure.name, found.verdict) == ("ours / theirs", Verdict.REGRESSION)

    def test_regressions_are_picked_out(self):
        found = changes(results(ratio(3.0, 3.1, 3.2)), results(ratio(1.0, 1.1, 1.2)))
        assert regressions(found) == found
        assert words.change(found[0]) == "-64.5 %, regression"

    def test_from_nothing_there_is_no_percentage(self):
        assert verdict(ratio(0.0, 0.0, 0.0), ratio(1.0, 1.1, 1.2)).percent is None


def _between(old, new):
    return changes(results(old, key="then"), results(new))


# --- reports


class Tags(HTMLParser):
    """Fails where tags do not close what they open."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def whole():
    """A result with everything that a report can meet."""
    lines = [
        ratio(2.4, 2.5, 2.6),
        figure("a <b> & 'c' | d", "rows/s", [1e6]),
        figure("longer by", "s", [-0.2, 0.3, 0.1], Goal(1.0)),
    ]
    found = results(*lines, missing={"Iceberg's own": "it exists for <4.1>"})
    broken = outcome(failed="wrong output: rows & sum\nfound 1")
    return found.model_copy(update={"benchmarks": {**found.benchmarks, "kafka.copy": broken}})


class TestPage:
    def test_it_is_whole(self, whole):
        tags = Tags()
        tags.feed(page(whole, changes(whole, whole)))
        assert tags.open == []
        assert [attrs["id"] for tag, attrs in tags.seen if tag == "h2" and attrs] == [
            "kafka.read",
            "kafka.copy",
        ]

    def test_it_needs_nothing_else(self, whole):
        text = page(whole)
        assert not re.search(r"https?:|<script|<link|@import|\bsrc=|url\(", text)

    def test_light_and_dark(self, whole):
        assert "prefers-color-scheme: dark" in page(whole)

    def test_names_are_escaped(self, whole):
        assert "a &lt;b&gt; &amp; " in page(whole)
        assert "<b>" not in page(whole)

    def test_what_is_missing_and_what_failed_is_named(self, whole):
        text = page(whole)
        assert "Iceberg&#x27;s own is missing: it exists for &lt;4.1&gt;" in text
        assert "Failed: wrong output: rows &amp; sum" in text

    def test_one_plot_for_each_unit(self, whole):
        assert page(whole).count("<svg") == 3

    def test_changes_are_marked(self):
        before, after = results(ratio(3.0, 3.1, 3.2)), results(ratio(1.0, 1.1, 1.2))
        assert '<span class="regression">-64.5 %, regression</span>' in page(
            after, changes(before, after)
        )


class TestChart:
    def test_bar_interval_and_goal_stand_where_their_values_are(self):
        tree = ET.fromstring(chart([ratio(1.0, 2.0, 3.0, goal=Goal(1.5))]))
        (bar,) = tree.iter("rect")
        begin, end = float(bar.get("x")), float(bar.get("x")) + float(bar.get("width"))
        lines = {name: _lines(tree, name) for name in ("spread", "goal")}
        half = (end - begin) / 2
        assert lines["spread"][0] == pytest.approx((begin + half, begin + 3 * half), abs=0.2)
        assert lines["goal"][0][0] == pytest.approx(begin + 1.5 * half, abs=0.2)
        assert bar.get("class") == "bar missed"

    def test_a_figure_without_interval_shows_its_quartiles(self):
        tree = ET.fromstring(chart([figure("f", "ms", [1.0, 3.0])]))
        low, high = _lines(tree, "spread")[0]
        (bar,) = tree.iter("rect")
        assert (low + high) / 2 == pytest.approx(
            float(bar.get("x")) + float(bar.get("width")), abs=0.2
        )

    def test_below_zero_a_bar_goes_to_the_left(self):
        tree = ET.fromstring(chart([figure("f", "s", [-1.0]), figure("g", "s", [1.0])]))
        one, other = tree.iter("rect")
        assert float(one.get("x")) + float(one.get("width")) == float(other.get("x"))

    @pytest.mark.parametrize(
        "values", [[0.0], [1.0], [-3.0], [0.001, 0.07], [-0.2, 0.3], [1.7e6, 12], [99.0, 101]]
    )
    def test_ticks_hold_all_values_and_zero(self, values):
        marks = ticks(values)
        assert marks[0] <= min(0, *values)
        assert marks[-1] >= max(0, *values)
        assert 0 in marks
        assert 2 <= len(marks) <= 8
        assert len({round(b - a, 9) for a, b in itertools.pairwise(marks)}) == 1


def _lines(tree, kind):
    found = [line for line in tree.iter("line") if line.get("class") == kind]
    return [(float(line.get("x1")), float(line.get("x2"))) for line in found]


class TestMarkdown:
    def test_the_table(self):
        lines = markdown.table(results(ratio(2.4, 2.5, 2.6))).splitlines()
        assert lines[0] == "| benchmark | figure | median | 95 % interval | n | goal |"
        assert lines[2:] == [
            "| `kafka.read` | ours / theirs | 2.5x | 2.4 - 2.6 | 3 | at least 2: met |"
        ]

    def test_every_row_has_as_many_cells(self, whole):
        rows = markdown.table(whole).splitlines()
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}

    def test_what_is_missing_and_what_failed_is_named(self, whole):
        text = markdown.table(whole)
        assert "| Iceberg's own is missing: it exists for <4.1> |" in text
        assert "| failed: wrong output: rows & sum |" in text

    def test_the_document_says_where_and_how(self):
        text = markdown.document(results(ratio(2.4, 2.5, 2.6)))
        assert "2026-11-21 08:30 UTC, commit 0123456789. x, 2 cores, 24 GiB, ext4" in text
        assert "`./run bench --only kafka.read`" in text
        assert "kafka-clients 3.9.2" in text

    def test_nothing_recorded(self):
        assert markdown.document(Results(taken={}, benchmarks={})).startswith("Nothing")

    def test_the_record_is_a_small_summary(self):
        recorded = load(command._RECORD)
        assert recorded == summary(recorded)
        lines = command._RECORD.read_text().splitlines()
        assert len(lines) < 60 * len(recorded.benchmarks)  # a few figures of each, and its run

    def test_the_readme_shows_ten_figures_of_the_record(self):
        recorded = {(name, line.name) for name, line in load(command._RECORD).figures()}
        assert recorded >= README_FIGURES
        assert len(README_FIGURES) <= 10


# --- the run


def benchmark(name, run=lambda _run: iter([ratio(2.0, 2.1, 2.2)]), **more):
    run.__doc__ = "About it."
    return Benchmark(name, run, **more)


@pytest.fixture
def run_suite(tmp_path, monkeypatch):
    monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(tmp_path))

    def ran(*chosen, start=None):
        console = Console(file=open(os.devnull, "w"))  # noqa: SIM115
        suite = Suite(
            chosen,
            quick=True,
            profiles=None,
            folder=tmp_path,
            start=start,
            taken="now",
            repeat="repeat {}".format,
            console=console,
        )
        shown = Shown(console, Clock([item.name for item in chosen], {}))
        found = suite.outcomes(shown)
        console.file.close()
        return found

    return ran


def raising(error):
    def run(_run):
        raise error
        yield

    return run


class TestSuite:
    def test_a_failure_leaves_the_others_alone(self, run_suite):
        found = run_suite(
            benchmark("a", raising(Wrong("3 rows"))),
            benchmark("b", raising(ValueError("no"))),
            benchmark("c"),
        )
        assert [each.failed for each in found.values()] == [
            "wrong output: 3 rows",
            "ValueError: no",
            "",
        ]
        assert found["c"].figures[0].median == 2.1
        assert found["c"].command == "repeat c"

    def test_an_interrupt_keeps_what_is_there(self, run_suite):
        found = run_suite(
            benchmark("a"), benchmark("b", raising(KeyboardInterrupt())), benchmark("c")
        )
        assert found["a"].figures
        assert found["b"].failed == "interrupted"
        assert "c" not in found

    def test_a_missing_peer_is_named_and_no_failure(self, run_suite, monkeypatch):
        def refuse(_peer, _version):
            raise KrishivError("no network\nand more")

        monkeypatch.setattr(peer, "peer_jars", refuse)
        found = run_suite(
            benchmark("a", raising(ValueError("ran")), peers=(peer.KAFKA,)),
            benchmark("b", peers=(peer.KAFKA,), alone=True),
        )
        assert found["a"].missing == {peer.KAFKA.name: "no network"}
        assert (found["a"].failed, found["a"].figures) == ("", ())
        assert found["b"].missing
        assert found["b"].figures

    def test_a_peer_of_another_spark_is_missing(self):
        there, absent = peer.gather([peer.ICEBERG], "4.3.0")
        assert there == {}
        assert "--spark 4.1" in absent[peer.ICEBERG]

    def test_a_missing_module_is_named(self, run_suite):
        found = run_suite(benchmark("a", raising(ValueError("ran")), needs=("no_such_module",)))
        assert found["a"].missing == {"no_such_module": "there is no such module"}
        assert not found["a"].failed

    def test_a_server_that_cannot_be_had_is_named(self, run_suite):
        found = run_suite(benchmark("a", raising(ToolMissingError("go is missing, by which"))))
        assert found["a"].missing == {"its server": "go is missing, by which"}
        assert not found["a"].failed


class TestRequests:
    @pytest.mark.parametrize(
        ("method", "path", "kind"),
        [
            ("GET", "/box?list-type=2&prefix=a%2F", "LIST"),
            ("GET", "/box/a/b?x-id=GetObject", "GET"),
            ("HEAD", "/box/a/b", "HEAD"),
            ("PUT", "/box/a/b", "PUT"),
            ("POST", "/box/a/b?uploads", "POST that begins an upload"),
            ("PUT", "/box/a/b?partNumber=1&uploadId=x", "PUT of a part"),
            ("POST", "/box/a/b?uploadId=x", "POST that completes an upload"),
            ("DELETE", "/box/a/b?uploadId=x", "DELETE of an upload"),
            ("DELETE", "/box/a/b", "DELETE"),
            ("GET", "/box?uploads&prefix=a", "LIST of uploads"),
            ("POST", "/box?delete", "POST that deletes"),
        ],
    )
    def test_a_request_is_of_a_kind(self, method, path, kind):
        counted = Counted()
        counted.note(Message({}, b"sent", method, path), Message({}, b"answer", status=200))
        (request,) = counted.take()
        assert (request.kind, request.body, request.received) == (kind, b"sent", 6)
        assert counted.take() == []


class TestProgress:
    def test_rounds_are_followed(self):
        seen = []
        with followed(lambda done, of: seen.append((done, of))):
            in_turn(2, {"a": lambda: 1.0, "b": lambda: 2.0}, lambda _text: None)
        in_turn(1, {"a": lambda: 1.0}, lambda _text: None)
        assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]

    def test_unknown_at_first(self):
        assert Clock(["a", "b"], {}).left(3) is None

    def test_by_the_earlier_run(self):
        assert Clock(["a", "b"], {"a": 10, "b": 20}).left(3) == 27

    def test_by_how_much_slower_this_one_is(self):
        assert Clock(["a", "b"], {"a": 10, "b": 20}, {"a": 15}).left(10) == 20

    def test_what_is_unknown_takes_as_long_as_the_others(self):
        assert Clock(["a", "b", "c"], {}, {"a": 8}).left(10) == 8

    def test_over(self):
        assert Clock(["a"], {}, {"a": 1}).left(0) == 0


class TestFlames:
    @pytest.mark.long
    def test_the_graph_shows_what_ran(self, tmp_path):
        file = tmp_path / "graph.svg"
        try:
            with watched(file):
                _burn(0.5)
        except Unseen as error:
            pytest.skip(str(error))
        assert "_burn" in file.read_text()

    def test_without_the_program_it_says_so(self, tmp_path, monkeypatch):
        monkeypatch.setattr("benchmarks.flames.which", lambda *_args, **_more: None)
        with pytest.raises(Unseen, match="pip install py-spy"), watched(tmp_path / "graph.svg"):
            pass


def _burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


# --- the command


def chosen(**given):
    asked = {"only": (), "quick": False, "every": False, "listed": False, **given}
    return {item.name for item in command._chosen(asked)}


def test_what_takes_long_runs_if_it_is_asked_for():
    long = {name for name, item in BENCHMARKS.items() if item.long}
    assert chosen(every=True) - chosen() == long
    assert chosen(quick=True) < chosen()
    assert chosen(only=("kafka.start",)) == {"kafka.start"}


def test_what_is_left_out_is_named(bench):
    assert "kafka.start" in " ".join(bench(results(ratio(1.0, 2.0, 3.0))).output.split())


@pytest.fixture
def bench(monkeypatch):
    """The command, with what it measures given."""

    def call(now, *arguments):
        monkeypatch.setattr(command, "_measured", lambda *_args: now)
        return CliRunner().invoke(command.main, [*arguments])

    return call


class TestCommand:
    @pytest.fixture
    def earlier(self, tmp_path):
        save(results(ratio(3.0, 3.1, 3.2)), tmp_path / "then.json")
        return str(tmp_path / "then.json")

    def test_a_regression_is_shown_only(self, bench, earlier):
        done = bench(results(ratio(1.0, 1.1, 1.2)), "--compare", earlier)
        assert "1 regressions beyond the noise" in done.output
        assert done.exit_code == 0

    def test_a_regression_fails_if_asked_for(self, bench, earlier):
        done = bench(results(ratio(1.0, 1.1, 1.2)), "--compare", earlier, "--fail-on-regression")
        assert done.exit_code == 1

    def test_no_regression_does_not(self, bench, earlier):
        done = bench(results(ratio(3.0, 3.1, 3.2)), "--compare", earlier, "--fail-on-regression")
        assert done.exit_code == 0

    def test_a_failed_benchmark_fails(self, bench):
        assert bench(results(failed="wrong output: 3 rows")).exit_code == 1

    def test_a_missing_peer_does_not(self, bench):
        done = bench(results(missing={"Spark's own": "no network"}))
        assert done.exit_code == 0
        assert "is missing" in done.output

    def test_reports_are_written(self, bench, tmp_path):
        files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "html", "markdown")}
        given = [text for kind, file in files.items() for text in (f"--{kind}", str(file))]
        found = results(ratio(2.4, 2.5, 2.6))
        bench(found, *given)
        assert load(files["json"]) == found
        assert files["html"].read_text() == page(found)
        assert files["markdown"].read_text() == markdown.document(found)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["--fail-on-regression"], "needs --compare"),
            (["--record", "--profile", "."], "slowed down"),
            (["--record", "--conf", "a=b"], "as it comes"),
            (["--record", "--fast-start"], "as it comes"),
            (["--conf", "a"], "write KEY=VALUE"),
            (["--compare", "no-such-file.json"], "cannot be read"),
            (["--only", "nothing"], "no benchmark nothing"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, bench, given, message):
        done = bench(results(), *given)
        assert done.exit_code == 2
        assert message in done.output

    def test_the_command_that_is_kept_is_one_for_any_machine(self, monkeypatch, tmp_path):
        kept = []

        def measured(_chosen, given, _earlier):
            kept.append(command._command(given, "4.1.2"))
            return results()

        monkeypatch.setattr(command, "_measured", measured)
        given = ["--only", "kafka.read", "--json", str(tmp_path / "x.json"), "--quick"]
        CliRunner().invoke(command.main, given)
        CliRunner().invoke(command.main, [*given[:2], "--conf", "a.b=c d", "--fast-start"])
        assert kept == [
            "./run bench --spark 4.1 --quick --only kafka.read",
            "./run bench --spark 4.1 --fast-start --conf 'a.b=c d' --only kafka.read",
        ]

    def test_what_failed_keeps_its_earlier_figures(self, bench, tmp_path, monkeypatch):
        monkeypatch.setattr(command, "_RECORD", tmp_path / "record.json")
        monkeypatch.setattr("docs.generate.main", lambda _arguments: 0)
        bench(results(ratio(1.0, 1.1, 1.2)), "--record")
        bench(results(failed="wrong output"), "--record")
        assert load(tmp_path / "record.json") == summary(results(ratio(1.0, 1.1, 1.2)))

    def test_spark_is_started_as_asked_for(self, monkeypatch, tmp_path):
        seen = []
        monkeypatch.setattr(command.session, "start", lambda *given: seen.append(given))
        start = command._start({"conf": ["a=1", "b=x=y"], "fast": True})
        start(tmp_path, [], {"a": "0", "c": "2"})
        assert seen == [(tmp_path, [], {"a": "1", "b": "x=y", "c": "2"}, tuple(libraries()))]

    def test_every_benchmark_says_what_it_measures(self):
        assert all(item.about for item in command.BENCHMARKS.values())

    def test_the_goal_in_words(self):
        assert words.goal(replace(ratio(1.0, 1.1, 1.2))) == "at least 2: missed"
