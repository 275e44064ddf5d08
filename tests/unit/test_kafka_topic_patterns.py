"""`subscribePattern`: the matches of Python's engine, in bounded time for any topic's name."""

import re
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.errors import OptionError
from krishiv_spark.sources.kafka import subscription
from krishiv_spark.sources.kafka.subscription import TopicPattern

NAMES = ["orders", "orders-eu", "orders.eu", "Orders", "payments", "o", "a_b", "x1"]
LETTERS = "abzABZ019._-"
names = st.text(LETTERS, min_size=1, max_size=12)


def fullmatches(pattern, given):
    return [name for name in given if re.fullmatch(pattern, name)]


@pytest.mark.parametrize(
    "pattern",
    [
        "", "orders.*", r"orders[.-]eu", "(?i)orders", "orders|payments", "a|b|orders", r"\w+",
        r"\d*x\d", r"^orders$", r"(?!payments).*", r"(o)r.*\1?", r"(?P<a>o)(?P=a)?.*", r"o{,1}",
        r"[[:alpha:]]+", r"\Aorders\Z", "(?x) orders # a comment", r"(?<=o)rders|o", r"[^.]+",
        r"orders\-eu", r"\x6f", r".{0,2000}", "(?s:.)*", "öorders", r"orders(?#comment)",
    ],
)  # fmt: skip
def test_matches_are_those_of_python(pattern):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert TopicPattern(pattern).select(NAMES) == fullmatches(pattern, NAMES)


atoms = st.sampled_from([
    *LETTERS, ".", r"\.", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\b", r"\B", "^", "$", r"\A",
    "[a-z]", "[^a-z]", "[.-]", "[a.-]", "[]a]", "[^]a]", "[a&&b]", "[a||b]", "[a~~b]", "[--z]",
    r"[\w-]", r"[\d.]", r"[^\w]", "(?i:a)", "(?s:.)", "(?m:^)", "{", "}", "a{", "]", "-", "&", "#",
])  # fmt: skip
repeats = st.sampled_from(
    ["", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,3}", "{2,}", "{,2}"]
)
pieces = st.lists(st.tuples(atoms, repeats).map("".join), max_size=4).map("".join)
groups = st.sampled_from(["({})", "(?:{})", "(?P<n>{})", "(?i:{})", "{}|", "|{}", "(?m:{})"])


@given(
    pieces, pieces, groups, repeats, st.sampled_from(["", "(?i)", "(?s)", "(?m)"]), st.lists(names)
)
def test_re2_and_python_agree_wherever_re2_is_used(first, second, group, repeat, flags, given):
    pattern = flags + first + group.replace("{}", second) + (repeat if group.endswith(")") else "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = [re.fullmatch(pattern, name) is not None for name in given]
        except re.error:
            return
        found = subscription._match_by_re2(pattern, given)
    assert found is None or found == expected, pattern


def test_a_loose_pattern_takes_linear_time():
    slow = "a" * 240 + "_-"
    began_s = time.monotonic()
    assert TopicPattern(r"(\w+\.?)+-prod").select([slow, "a.b-prod"]) == ["a.b-prod"]
    assert time.monotonic() - began_s < 5


@pytest.mark.long  # computes until it is given up
def test_a_pattern_that_only_python_has_is_given_up_after_a_while(monkeypatch):
    monkeypatch.setattr(subscription, "_LIMIT_S", 2.0)
    slow = "a" * 240 + "_-"
    pattern = TopicPattern(r"(?!x)(\w+\.?)+-prod")
    began_s = time.monotonic()
    with pytest.raises(OptionError) as caught:
        pattern.select(["a-prod", slow, "b-prod"])
    assert time.monotonic() - began_s < 10
    assert repr(slow) in str(caught.value)
    assert r"'subscribePattern' = '(?!x)(\\w+\\.?)+-prod'" in str(caught.value)
    assert pattern.select(["a-prod", "b-prod"]) == ["a-prod", "b-prod"]


def test_each_name_is_matched_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        subscription, "_match_by_re2", lambda _, new: asked.append(new) or [True] * len(new)
    )
    pattern = TopicPattern(".*")
    assert pattern.select(["a", "b"]) == pattern.select(["a", "b"]) == ["a", "b"]
    pattern.retain(["b", "c"])
    assert pattern.select(["a", "b"]) == ["a", "b"]
    assert asked == [["a", "b"], ["a"]]


def test_no_name_of_a_topic_confuses_the_child():
    strange = ["a\nb", "", "ä", "\x00", "-c"]
    assert TopicPattern(r"(?=.*)(?s:.)*").select(strange) == strange
