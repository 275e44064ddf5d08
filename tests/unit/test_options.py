"""Options: what users write, and what they are told when it is wrong."""

import contextlib
import pickle
import re
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from krishiv_spark.errors import OptionError
from krishiv_spark.options import ByteSize, Duration, Names, Options, parse_bytes, parse_duration

SECRET = "hunter2-hunter2"


class Password(SecretStr):
    """A secret whose type does not say so in its name."""


class Sample(Options):
    topic: str
    table: str | None = Field(default=None, validation_alias=AliasChoices("table", "sample.table"))
    max_files_per_trigger: int | None = Field(default=None, gt=0)
    session_timeout: Duration = 30_000
    fetch_size: ByteSize = Field(default=1024, ge=1)
    partition_by: Names = ()
    foreign: ClassVar = {"maxrows": "set 'maxFilesPerTrigger'"}
    mode: Literal["fast", "safe"] = "safe"
    verbose: bool = False
    api_key: SecretStr | None = Field(default=None, min_length=4)
    password: Password | None = Field(
        default=None, validation_alias=AliasChoices("password", "sasl.password"), min_length=4
    )

    @field_validator("topic")
    @classmethod
    def _no_spaces(cls, topic: str) -> str:
        if " " in topic:
            raise ValueError("a topic has no spaces")
        return topic

    @model_validator(mode="after")
    def _fast_needs_table(self):
        if self.mode == "fast" and self.table is None:
            raise ValueError("mode 'fast' needs a table")
        return self


def parse(**given: str) -> Sample:
    return Sample.parse({"topic": "t", **given}, "sample")


def refused(given: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        Sample.parse(given, "sample")
    return str(caught.value)


def any_case(name: str) -> st.SearchStrategy[str]:
    return st.tuples(*(st.sampled_from([c.lower(), c.upper()]) for c in name)).map("".join)


def test_defaults_fill_what_is_not_given():
    options = parse()
    assert (options.topic, options.session_timeout, options.partition_by) == ("t", 30_000, ())


@given(any_case("maxFilesPerTrigger"))
def test_names_are_written_in_any_case(name):
    assert parse(**{name: "7"}).max_files_per_trigger == 7


@pytest.mark.parametrize("name", ["table", "TABLE", "sample.table", "Sample.Table"])
def test_every_alias_is_understood(name):
    assert parse(**{name: "x"}).table == "x"


def test_the_name_in_python_is_understood():
    assert parse(max_files_per_trigger="1").max_files_per_trigger == 1


def test_a_name_that_is_nearly_that_in_python_leads_to_the_spelling_of_the_pages():
    assert "'max_file_per_trigger'; did you mean 'maxFilesPerTrigger'?" in refused(
        {"topic": "t", "max_file_per_trigger": "1"}
    )


def test_an_option_given_in_both_spellings_with_two_values_is_refused():
    assert "is given under two names" in refused(
        {"topic": "t", "max_files_per_trigger": "1", "maxFilesPerTrigger": "2"}
    )


def test_the_list_of_names_is_made_from_the_fields_in_their_order():
    assert Sample.names() == [
        "logLevel",
        "topic",
        "table",
        "maxFilesPerTrigger",
        "sessionTimeout",
        "fetchSize",
        "partitionBy",
        "mode",
        "verbose",
        "apiKey",
        "password",
    ]


@pytest.mark.parametrize("name", Sample.names())
def test_every_listed_name_is_understood(name):
    value = {
        "logLevel": "info",
        "maxFilesPerTrigger": "1",
        "sessionTimeout": "1s",
        "fetchSize": "1",
        "mode": "safe",
    }
    given = {"topic": "t", name: value.get(name, "true" if name == "verbose" else "long enough")}
    if name == "topic":
        given = {"topic": "t"}
    assert Sample.parse(given, "sample")


def test_one_option_under_two_names_is_refused():
    message = refused({"topic": "t", "table": "a", "sample.table": "b"})
    assert message == "sample: option 'sample.table' is given under two names"


def test_one_option_under_two_names_with_one_value_is_no_contradiction():
    assert parse(**{"table": "a", "sample.table": "a"}).table == "a"


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("maxFilePerTrigger", "maxFilesPerTrigger"),
        ("maxfilespertriger", "maxFilesPerTrigger"),
        ("FETCHSIZES", "fetchSize"),
        ("Topics", "topic"),
        ("partitionsBy", "partitionBy"),
        ("sample.tabel", "sample.table"),
        ("sasl.pasword", "sasl.password"),
    ],
)
def test_an_unknown_option_names_the_nearest_one(typo, meant):
    assert f"unknown option {typo!r}; did you mean {meant!r}?" in refused({"topic": "t", typo: "1"})


def test_an_option_like_no_other_lists_them_all():
    message = refused({"topic": "t", "zzzz": "1"})
    assert message.startswith("sample: unknown option 'zzzz'; known: apiKey, fetchSize, ")
    assert all(name in message for name in Sample.names())


@pytest.mark.parametrize("key", ["path", "PATH", "checkpointLocation", "queryName"])
def test_what_spark_adds_by_itself_is_no_error(key):
    assert parse(**{key: "x"}) == parse()


def test_what_spark_shows_while_a_table_is_created_is_refused_with_what_to_do():
    given = {"topic": "t", "option.topic": "t", "owner": "me", "provider": "sample"}
    assert "use CREATE TEMPORARY VIEW" in refused(given)


def test_a_missing_option_is_named():
    assert refused({}) == "sample: option 'topic' is required"


def test_all_problems_are_told_at_once():
    message = refused({"maxFilesPerTrigger": "0", "fetchSize": "much"})
    assert "option 'topic' is required" in message
    assert "option 'maxFilesPerTrigger' = '0'" in message
    assert "option 'fetchSize' = 'much'" in message


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("maxFilesPerTrigger", "0", "greater than 0"),
        ("maxFilesPerTrigger", "many", "write a whole number"),
        ("maxFilesPerTrigger", "1.5", "write a whole number"),
        ("mode", "quick", "there are fast, safe"),
        ("mode", "saf", "did you mean 'safe'? There are fast, safe"),
        ("verbose", "perhaps", "write true or false"),
        ("sessionTimeout", "30", "needs a unit of time"),
        ("fetchSize", "12 stone", "needs a unit of size"),
        ("topic", "a b", "a topic has no spaces"),
    ],
)
def test_a_bad_value_is_told_with_option_value_and_reason(name, value, reason):
    message = refused({"topic": "t", name: value})
    assert message.startswith(f"sample: option {name!r} = {value!r}: ")
    assert reason in message
    assert "Value error" not in message
    assert "pydantic" not in message


def test_a_rule_over_several_options_is_told_plainly():
    assert refused({"topic": "t", "mode": "fast"}) == "sample: mode 'fast' needs a table"


def test_the_options_given_are_left_as_they_are():
    given = {"topic": "t", "partitionBy": "a, b"}
    Sample.parse(given, "sample")
    assert given == {"topic": "t", "partitionBy": "a, b"}


def test_an_option_error_is_a_value_error_without_a_chain():
    with pytest.raises(ValueError, match="required") as caught:
        Sample.parse({}, "sample")
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


# --- secrets


@pytest.mark.parametrize("name", ["apiKey", "password", "sasl.password"])
def test_a_secret_is_in_no_text_of_the_options(name):
    options = parse(**{name: SECRET})
    texts = (repr(options), str(options), f"{options}", options.model_dump_json())
    assert not any(SECRET in text for text in texts)
    loaded = pickle.loads(pickle.dumps(options))
    assert loaded == options


@pytest.mark.parametrize(
    "given",
    [
        {"apiKey": "abc"},
        {"password": "abc"},
        {"sasl.password": "abc"},
        {"password": "abc", "sasl.password": "abcdefg"},
        {"password": "abc", "fetchSize": "-1"},
        {"apiKye": "abc"},
        {"password": "abc", "mode": "fast", "topic": "a b"},
    ],
    ids=str,
)
def test_a_secret_is_in_no_error(given):
    assert "abc" not in refused({"topic": "t", **given})


# --- units

DURATIONS = {
    "500 ms": 500,
    "500ms": 500,
    "1 millisecond": 1,
    "2 milliseconds": 2,
    "30s": 30_000,
    "30 S": 30_000,
    "1 second": 1_000,
    "2 seconds": 2_000,
    "5m": 300_000,
    "5 min": 300_000,
    "5 mins": 300_000,
    "10 minutes": 600_000,
    "1h": 3_600_000,
    "2 Hours": 7_200_000,
    "7d": 604_800_000,
    "7 days": 604_800_000,
    "1w": 604_800_000,
    "2 weeks": 1_209_600_000,
    "0 s": 0,
    "  3  s  ": 3_000,
}
SIZES = {
    "0": 0,
    "65536": 65536,
    "1b": 1,
    "1k": 1024,
    "1 KB": 1024,
    "1KiB": 1024,
    "128m": 128 * 2**20,
    "128 MB": 128 * 2**20,
    "1 GiB": 2**30,
    "1g": 2**30,
    "2T": 2**41,
}


@pytest.mark.parametrize(("text", "ms"), DURATIONS.items())
def test_durations(text, ms):
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "-1 s", "1.5 s", "1e3 s", "ten s", "10 parsecs", "1 s 2 s", "1 ss", "1 mss"],
)
def test_bad_durations(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_duration(text)


@pytest.mark.parametrize(("text", "count"), SIZES.items())
def test_sizes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5m", "1 p", "1 bb", "1 ib", "1 mm", "0x10"])
def test_bad_sizes(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_bytes(text)


@given(st.text(max_size=8))
def test_any_text_is_a_quantity_or_a_value_error(text):
    for reader in (parse_duration, parse_bytes):
        with contextlib.suppress(ValueError):
            assert reader(text) >= 0


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("a", ("a",)), ("a,b", ("a", "b")), (" a , b ,", ("a", "b")), (",,", ())],
)
def test_lists_of_names(text, names):
    assert parse(partitionBy=text).partition_by == names


def test_an_option_of_another_connector_has_its_alternative():
    text = "sample: there is no option 'maxRows': set 'maxFilesPerTrigger'"
    assert refused({"topic": "t", "maxRows": "1"}) == text
    found = Sample.find_errors({"topic": "t", "maxRows": "1"}, "sample")
    assert [(fault.key, fault.text) for fault in found] == [("maxRows", text)]
