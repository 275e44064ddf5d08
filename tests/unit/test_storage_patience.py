"""How long a store is waited for."""

import pytest

from krishiv_spark.storage import be_patient, patience
from krishiv_spark.storage.settings import S3Settings

PLACE = ("s3", "box")


@pytest.fixture(autouse=True)
def answered_nobody(monkeypatch):
    monkeypatch.setattr(patience, "_answered", set())


def settings(**given):
    return S3Settings.parse(given, "storage.s3")


def test_a_store_that_never_answered_is_given_up_within_15_seconds():
    found = settings().patience(PLACE)
    assert found.is_short
    assert found.total_s + found.request_s < 15  # one more may begin at the end of it


def test_a_user_says_how_long_the_first_request_may_take_too():
    assert settings(timeout="60 s").patience(PLACE).request_s == 60


def test_a_store_that_has_answered_is_waited_for_and_no_other():
    settings().note_answer(PLACE)
    assert not settings().patience(PLACE).is_short
    assert settings(endpoint="http://other").patience(PLACE).is_short


def test_tasks_and_commits_wait_for_all_of_them():
    be_patient()
    assert settings().patience(PLACE).total_s > 60
