"""The timeouts of a store."""

import subprocess
import sys
from pathlib import Path

import pytest

from krishiv_spark.runtime import contact
from krishiv_spark.storage import use_long_timeouts
from krishiv_spark.storage.s3 import S3Settings

PLACE = ("s3", "box")


def settings(**given):
    return S3Settings.parse(given, "storage.s3")


def test_a_store_that_never_answered_is_given_up_within_10_seconds():
    found = settings().timeouts(PLACE)
    assert found.is_first_contact
    assert found.total_s + found.request_s < 10  # one more may begin at the end of it


def test_a_user_says_how_long_the_first_request_may_take_too():
    assert settings(timeout="60 s").timeouts(PLACE).request_s == 60


def test_a_store_that_has_answered_is_waited_for_and_no_other():
    settings().record_answer(PLACE)
    assert not settings().timeouts(PLACE).is_first_contact
    assert settings(endpoint="http://other").timeouts(PLACE).is_first_contact


def test_tasks_and_commits_wait_for_all_of_them():
    use_long_timeouts()
    assert settings().timeouts(PLACE).total_s > 60


# --- of the whole application


@pytest.fixture
def application(tmp_path, monkeypatch) -> Path:
    """The scratch folder that Spark gives the Python processes of one driver."""
    folder = tmp_path / "blockmgr-1"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
    return folder


@pytest.mark.usefixtures("application")
def test_a_new_process_of_a_running_query_waits_for_what_another_one_has_reached():
    settings().record_answer(PLACE)
    code = (
        "from krishiv_spark.storage.s3 import S3Settings\n"
        "print(S3Settings.parse({}, 'storage.s3').timeouts(('s3', 'box')).is_first_contact)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["False"]


def test_what_is_noted_says_nothing_to_others(application):
    settings(endpoint="http://hunter2", secretAccessKey="hunter3").record_answer(PLACE)
    (noted,) = (application / "krishiv-reached").iterdir()
    assert "hunter" not in noted.name + noted.read_text()


def test_without_an_application_it_is_known_in_the_process(monkeypatch):
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    assert not contact.has_contacted("it")
    contact.record_contact("it")
    assert contact.has_contacted("it")
