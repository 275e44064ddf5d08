"""Dashboard, alerts and page name the metrics that there are, and Prometheus takes the rules."""

import json
import re

import pytest
import yaml
from prometheus import OPERATE, promtool
from wheels import ROOT

from krishiv_spark.metrics.definitions import METRICS

NAME = re.compile(r"\bkrishiv_(?!spark)\w+")
KNOWN = {metric.full_name for metric in METRICS}
LABELS = {label for metric in METRICS for label in metric.labels}
OF_PROMETHEUS = {"instance", "job"}


def panels():
    return json.loads((OPERATE / "dashboard.json").read_text())["panels"]


def expressions(file):
    if file == "dashboard.json":
        return [target["expr"] for panel in panels() for target in panel["targets"]]
    groups = yaml.safe_load((OPERATE / file).read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yml", "alerts.test.yml"])
def test_every_metric_that_is_named_exists(file):
    named = set(NAME.findall((OPERATE / file).read_text()))
    assert named
    assert named <= KNOWN


def test_the_page_names_no_other_and_has_a_row_for_each():
    text = (ROOT / "docs" / "operate.md").read_text()
    assert set(NAME.findall(text)) <= KNOWN
    assert all(f"| `{name}` |" in text for name in KNOWN)


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yml"])
def test_every_label_that_is_asked_for_exists(file):
    known = {*LABELS, "query_id", "query_name", *OF_PROMETHEUS}
    for text in expressions(file):
        asked = set(re.findall(r"(\w+)(?==~?\"|!=\")", text))
        for group in re.findall(r"(?:by|on|ignoring) \(([^)]*)\)", text):
            asked |= set(re.split(r"\W+", group))
        assert asked <= known, text


def test_panels_do_not_overlap():
    taken = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & taken
        taken |= cells


def test_prometheus_takes_the_rules():
    assert "9 rules found" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_the_alerts_fire_when_they_should():
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml")
