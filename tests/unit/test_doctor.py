"""The findings of the doctor about the reports of machines and the locations of a query."""

import os

import pytest

from krishiv_spark.operate.doctor.examination import compare
from krishiv_spark.operate.doctor.findings import FindingList, Questions, Report
from krishiv_spark.operate.doctor.probe import (
    check_checkpoint,
    check_shared,
    clean,
    prepare_target,
)
from krishiv_spark.storage import disk

VERSIONS = {"krishiv-spark": "1.0", "pyarrow": "20.0", "numba": "0.61"}


def report(role="task", host="b", begun_s=100.0, ended_s=102.0, **more):
    given = {"executor": 7, "python": "3.11.7", "prefix": "/env", "versions": VERSIONS, "full": []}
    return Report(role=role, host=host, begun_s=begun_s, ended_s=ended_s, **{**given, **more})


def said_of(*tasks):
    client = report("client", "z", 99.0, 103.0)
    found = compare(client, [report("driver", "a"), *tasks])
    return [str(one) for one in found if one.level != "ok"]


def test_machines_that_are_alike_are_well():
    assert said_of(report(), report(host="c")) == []


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"versions": {**VERSIONS, "pyarrow": "19.0"}}, "executor on b: pyarrow 19.0; on the"),
        ({"versions": {**VERSIONS, "boto3": "1.4"}}, "boto3 1.4; on the driver: is missing"),
        ({"versions": {"krishiv-spark": "1.0", "pyarrow": "20.0"}}, "numba is missing; on the"),
        ({"python": "3.10.1"}, "WRONG  executor on b: Python 3.10.1, the driver has 3.11.7"),
        ({"python": "3.11.8"}, "note   executor on b: Python 3.11.8, the driver has 3.11.7"),
        ({"full": ["/data"]}, "executor on b: less than 1 GiB is free in /data"),
        ({"begun_s": 39.0}, "executor on b: its clock is 60 s or more off"),
        ({"ended_s": 163.0}, "executor on b: its clock is 60 s or more off"),
    ],
)
def test_a_machine_that_differs_is_named_once_with_what_to_do(other, says):
    (line,) = said_of(report(host="c"), report(**other), report(**other))
    assert says in line
    assert "; " in line


@pytest.mark.parametrize(
    ("version", "named"), [("4.0.0", True), ("4.0.1", False), ("4.3.0", False)]
)
def test_a_spark_with_a_known_fault_is_named_once(version, named):
    versions = {**VERSIONS, "pyspark": version}
    client, driver = report("client", "z", 99.0, 103.0), report("driver", "a", versions=versions)
    found = compare(
        client, [driver, report(versions=versions), report(host="c", versions=versions)]
    )
    lines = [str(one) for one in found if one.level != "ok"]
    assert len(lines) == named
    assert all("CVE-2025-54920); install Spark 4.0.1 or newer" in line for line in lines)


def asked(tmp_path, **places):
    given = {name: str(tmp_path / place) for name, place in places.items()}
    return Questions("a-probe", **given)


def test_what_the_driver_writes_is_found_and_goes_again(tmp_path):
    questions, said = asked(tmp_path, checkpoint="c", target="t"), FindingList()
    check_checkpoint(questions, said)
    prepare_target(questions, said)
    check_shared(questions, said)
    assert [one.level for one in said.found] == ["ok", "note", "ok", "ok"]
    clean(questions)
    assert [os.listdir(tmp_path / name) for name in ("c", "t")] == [[], []]


def test_a_folder_that_a_machine_does_not_share_is_wrong(tmp_path):
    questions, said = asked(tmp_path, target="t"), FindingList()
    prepare_target(questions, FindingList())
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    check_shared(questions, said)
    assert "the file that the driver has written does not exist" in str(said.found[0])


def test_a_store_that_creates_a_file_twice_is_wrong(tmp_path, monkeypatch):
    def create(folder, name, data):
        (folder.path / name).write_bytes(data)
        return True

    monkeypatch.setattr(disk.DiskFolder, "create", create)
    questions, said = asked(tmp_path, checkpoint="."), FindingList()
    questions_folder = tmp_path / "_krishiv-doctor-a-probe"
    questions_folder.mkdir()
    check_checkpoint(questions, said)
    assert "does not create exclusively" in str(said.found[0])


def test_options_travel_and_are_shown_nowhere():
    options = {"storage.s3.secretaccesskey": "hunter2", "kafka.bootstrap.servers": "b:9092"}
    questions = Questions("p", "c", None, "t", options, tasks=3)
    again = Questions.of(questions.as_options(cleans=False))
    assert again == questions
    assert again.kafka == {"kafka.bootstrap.servers": "b:9092", "topic": "t"}
    assert "hunter2" not in repr(again)
