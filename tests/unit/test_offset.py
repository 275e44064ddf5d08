"""Offsets: one text for one position, for ever."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from krishiv_spark.errors import OffsetError, OffsetVersionError
from krishiv_spark.formats import every_format
from krishiv_spark.offsets import Offset, Start, Value, Watermark, canonical_json

GOLDEN = Path(__file__).parents[1] / "golden" / "offsets"
READERS = [source.reader_type for source in every_format() if source.reader_type]
FORMS = {form.kind: form for form in (Start, *(reader.offset_type for reader in READERS))}


class Segment(Value):
    low: int
    high: int | None = None


class Sample(Offset):
    """Every shape that a connector's offset may have."""

    kind = "sample"
    version = 2

    name: str = ""
    cursor: str | None = None
    ends: dict[str, int] = Field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    limit: int = 5
    state: Literal["open", "closed"] = "open"
    done: bool = False

    @classmethod
    def upgrade(cls, version, fields):
        return {"name": fields.pop("called"), **fields} if version == 1 else fields


big = st.integers(-(2**70), 2**70)
watermarks = st.none() | st.builds(
    Watermark, ms=st.none() | big, held=st.none() | st.text(max_size=5)
)
samples = st.builds(
    Sample,
    watermark=watermarks,
    name=st.text(max_size=5),
    cursor=st.none() | st.text(max_size=5),
    ends=st.dictionaries(st.text(max_size=3), big, max_size=4),
    segments=st.lists(st.builds(Segment, low=big, high=st.none() | big), max_size=3).map(tuple),
    limit=big,
    state=st.sampled_from(["open", "closed"]),
    done=st.booleans(),
)
starts = st.builds(
    Start,
    watermark=watermarks,
    at=st.sampled_from(["earliest", "latest", "timestamp"]),
    ms=st.none() | big,
)
json_values = st.recursive(
    st.none() | st.booleans() | big | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(samples | starts)
def test_an_offset_survives_its_text(offset):
    assert type(offset).from_json(offset.to_json()) == offset
    assert type(offset).from_dict(offset.to_dict()) == offset


@given(samples | starts)
def test_the_text_that_spark_makes_of_an_offset_does_not_change_on_the_way_back(offset):
    text = json.dumps(offset.to_dict())
    assert json.dumps(type(offset).from_dict(json.loads(text)).to_dict()) == text


@given(samples, samples)
def test_offsets_are_equal_exactly_when_their_texts_are(one, other):
    assert (one == other) == (one.to_json() == other.to_json())
    assert (one == other) == (json.dumps(one.to_dict()) == json.dumps(other.to_dict()))


@given(samples)
def test_the_order_in_which_an_offset_was_filled_does_not_show(offset):
    reversed_ends = dict(reversed(offset.ends.items()))
    assert offset.model_copy(update={"ends": reversed_ends}).to_json() == offset.to_json()


@given(json_values)
def test_canonical_json_is_sorted_ascii_without_white_space_and_loads_again(value):
    text = canonical_json(value)
    assert json.loads(text) == value
    assert text == canonical_json(json.loads(text))
    assert text.isascii()
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    "value",
    [1.5, 0.0, float("nan"), float("inf"), [1, 2.0], {"a": {"b": [(1.0,)]}}, {1.5: "a"}, {1: "a"}],
    ids=repr,
)
def test_canonical_json_refuses_what_has_no_unique_text(value):
    with pytest.raises(TypeError):
        canonical_json(value)


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"x", object(), {"a": b"x"}],
    ids=["set", "bytes", "object", "bytes in a dict"],
)
def test_canonical_json_refuses_what_is_no_json(value):
    with pytest.raises(TypeError):
        canonical_json(value)


@pytest.mark.long
def test_the_text_is_the_same_under_every_hash_seed():
    code = (
        "from krishiv_spark.offsets import canonical_json\n"
        "print(canonical_json({k: [k] for k in {'alpha', 'beta', 'gamma', 'delta', 'epsilon'}}))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(texts) == 1


# --- texts that some other version, or nobody, wrote


def test_an_older_version_is_upgraded():
    assert Sample.from_json('{"called":"a","kind":"sample","v":1}') == Sample(name="a")


def test_an_upgrade_that_meets_a_damaged_text_is_an_offset_error():
    with pytest.raises(OffsetError, match="damaged sample offset"):
        Sample.from_json('{"kind":"sample","v":1}')


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 10**30])
def test_an_unknown_version_is_an_error_of_its_own(version):
    with pytest.raises(OffsetVersionError, match="supports versions up to 2: upgrade"):
        Sample.from_json(f'{{"kind":"sample","v":{version},"name":"a","cursor":null}}')


@pytest.mark.long
def test_who_is_to_be_upgraded_is_the_package_that_has_the_offset():
    with pytest.raises(OffsetVersionError, match="upgrade krishiv-spark,"):
        Start.from_json('{"at":"latest","kind":"start","v":2}')
    theirs = type("Theirs", (Sample,), {"__module__": "acme_http.offsets"})
    with pytest.raises(
        OffsetVersionError, match="this acme-http supports versions up to 2: upgrade acme-http"
    ):
        theirs.from_json('{"kind":"sample","v":3}')


@pytest.mark.parametrize("version", ["true", "0", "-1", "1.0", '"1"', "null", "NaN", "[]"])
def test_what_is_no_version_is_damage(version):
    with pytest.raises(OffsetError, match="no version") as caught:
        Sample.from_json(f'{{"kind":"sample","v":{version},"name":"a","cursor":null}}')
    assert type(caught.value) is OffsetError


@pytest.mark.parametrize("kind", ['"start"', '"Sample"', "null", "1", "[]", "{}"])
def test_an_offset_of_another_kind_is_named(kind):
    with pytest.raises(OffsetError, match="instead of 'sample'"):
        Sample.from_json(f'{{"kind":{kind},"v":1,"name":"a"}}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "1",
        "[]",
        '"start"',
        "{",
        '{"at":"latest","kind":"start"}',
        '{"kind":"start","v":1}',
        '{"at":"noon","kind":"start","v":1}',
        '{"at":"latest","kind":"start","v":1,"more":1}',
        '{"at":"latest","kind":"start","ms":1.5,"v":1}',
        '{"at":"latest","kind":"start","ms":1.0,"v":1}',
        '{"at":"latest","kind":"start","ms":"1","v":1}',
        '{"at":"latest","kind":"start","ms":true,"v":1}',
        '{"at":"latest","kind":"start","ms":NaN,"v":1}',
        '{"at":"latest","kind":"start","ms":Infinity,"v":1}',
        '{"at":"latest","kind":"start","ms":1e400,"v":1}',
        '{"at":"latest","kind":"start","v":1,"watermark":{"ms":-Infinity}}',
        '{"at":"latest","kind":"start","v":1,"watermark":{"ms":0,"hold":"x"}}',
        '{"at":"latest","kind":"start","ms":' + "9" * 5000 + ',"v":1}',
        '{"at":"latest","at":"earliest","kind":"start","v":1}',
        '{"at":"latest","kind":"start","v":1,"watermark":' + '{"ms":' * 300 + "1" + "}" * 301,
        '{"at":"\\ud800","kind":"start","v":1}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=lambda text: text[:60] + f"({len(text)})",
)
def test_damage_is_an_offset_error(text):
    with pytest.raises(OffsetError):
        Start.from_json(text)


def test_a_key_that_stands_twice_is_damage_and_never_a_choice():
    with pytest.raises(OffsetError, match="'ms' occurs twice"):
        Start.from_json('{"at":"timestamp","kind":"start","ms":1,"ms":2,"v":1}')


@given(samples | starts, st.data())
def test_damaged_text_is_refused_with_an_offset_error_and_nothing_else(offset, data):
    text = offset.to_json()
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 6))
    put = data.draw(
        st.text(alphabet=st.sampled_from('{}[]",:0123456789-eE.nulltrfasvkidm \\u'), max_size=4)
    )
    damaged = text[:at] + put + text[at + cut :]
    try:
        loaded = type(offset).from_json(damaged)
    except OffsetError:
        return
    assert type(offset).from_json(loaded.to_json()) == loaded


@given(json_values)
def test_any_json_value_is_an_offset_or_an_offset_error(value):
    with contextlib.suppress(OffsetError):
        Start.from_dict(value)


def test_an_error_shows_no_more_than_the_beginning_of_a_long_offset():
    with pytest.raises(OffsetError) as caught:
        Start.from_json('{"at":"' + "x" * 100_000)
    assert len(str(caught.value)) < 500


def test_offsets_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Start(at="latest").ms = 1


def test_a_field_cannot_take_the_name_of_a_part_of_the_form():
    with pytest.raises(TypeError, match="'v'"):

        class Clash(Offset):
            v: int


def test_a_field_that_may_be_none_must_be_none_by_default():
    with pytest.raises(TypeError, match=r"Lossy.limit may be None: make None its default"):

        class Lossy(Offset):
            limit: int | None = 5


# --- released forms


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_every_released_form_still_loads_and_keeps_its_text(path):
    text = path.read_text().strip()
    cls = FORMS[path.stem.split("-")[0]]
    again = cls.from_json(text).to_json()
    assert again == text or f"-v{cls.version}" not in path.stem
    assert cls.from_json(again) == cls.from_json(text)


def test_every_form_has_a_golden_file_of_its_version():
    named = {tuple(path.stem.split("-")[:2]) for path in GOLDEN.glob("*.json")}
    assert {(kind, f"v{form.version}") for kind, form in FORMS.items()} <= named
