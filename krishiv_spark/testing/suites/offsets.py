"""The suite for an offset: inherit `OffsetConformance`, return examples, run pytest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_spark.errors import OffsetError, OffsetVersionError
from krishiv_spark.offsets import Offset
from krishiv_spark.testing.processes.interpreters import run_under_seed
from krishiv_spark.testing.suites.base import Suite

__all__ = ["OffsetConformance"]


class OffsetConformance(Suite):
    """Every case is a promise to checkpoints that outlive the version that wrote them.

    Attributes:
        golden: Folder with a file for each text that was released,
            ``<kind>-v<version>[-<what>].json``; None before the first release.
    """

    golden: ClassVar[Path | None] = None

    def offsets(self) -> Sequence[Offset]:
        """Return different offsets of one type, the earlier position first. Override it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method offsets(self)")

    @pytest.fixture
    def examples(self) -> Sequence[Offset]:
        """Return `offsets`, after a check that they suffice."""
        found = self.offsets()
        assert len(found) > 1, "give two different offsets at least"
        assert len({type(offset) for offset in found}) == 1, "give offsets of one type"
        return found

    def test_a_text_brings_its_offset_back(self, examples: Sequence[Offset]) -> None:
        """An offset is stored as text and comes back equal, with the same text."""
        for offset in examples:
            again = type(offset).from_json(offset.to_json())
            assert (again, again.to_json()) == (offset, offset.to_json())

    def test_spark_may_carry_it(self, examples: Sequence[Offset]) -> None:
        """Spark sends a dict through ``json.dumps``: its keys keep the order of the stored text."""
        for offset in examples:
            assert json.loads(json.dumps(offset.to_dict())) == json.loads(offset.to_json())
            assert json.dumps(offset.to_dict(), separators=(",", ":")) == offset.to_json()

    def test_equal_offsets_have_equal_texts(self, examples: Sequence[Offset]) -> None:
        """Two texts of one position are two positions for Spark, and one text is one position."""
        for one, other in combinations(examples, 2):
            assert one != other, f"given twice: {one}"
            assert one.to_json() != other.to_json(), f"one text for {one} and {other}"

    def test_order(self, examples: Sequence[Offset]) -> None:
        """If offsets can be compared, a later position is greater; key order is irrelevant."""
        for one, other in combinations(examples, 2):
            earlier, later = _comparable(one), _comparable(other)
            assert earlier is None or earlier < later, f"{one} is not before {other}"
        for offset in examples:
            backwards = dict(reversed(offset.to_dict().items()))
            assert type(offset).from_dict(backwards) == offset

    def test_the_text_is_the_same_everywhere(self, examples: Sequence[Offset]) -> None:
        """The text is the same in every process, whatever its hash seed."""
        here = " ".join(offset.to_json() for offset in examples)
        for seed in (0, 1):
            assert run_under_seed(seed, _texts, *examples) == here

    def test_a_newer_version_is_refused(self, examples: Sequence[Offset]) -> None:
        """A text of an unknown version is an error that names the version, not a guess."""
        for offset in examples:
            newer = {**offset.to_dict(), "v": offset.version + 1}
            with pytest.raises(OffsetVersionError, match=str(offset.version + 1)):
                type(offset).from_dict(newer)

    def test_damage_is_refused(self, examples: Sequence[Offset]) -> None:
        """A truncated or changed text is an `OffsetError` or another valid offset."""

        @settings(max_examples=200, deadline=None)
        @given(st.sampled_from(examples), st.integers(0, 2**16), st.text(max_size=3))
        def damaged(offset: Offset, at: int, put: str) -> None:
            text = offset.to_json()
            place = at % len(text)
            _loads_or_refuses(type(offset), text[:place] + put)
            _loads_or_refuses(type(offset), text[:place] + put + text[place + 1 :])

        damaged()

    def test_other_values_are_refused(self, examples: Sequence[Offset]) -> None:
        """No JSON value but an object of this kind is an offset."""
        others: tuple[Any, ...] = (None, 0, "", [], {}, {"kind": "another", "v": 1}, {"v": 1}, [[]])
        for value in others:
            with pytest.raises(OffsetError):
                type(examples[0]).from_dict(value)

    def test_golden_files(self, examples: Sequence[Offset]) -> None:
        """Every released text can still be loaded; the current form has a file too."""
        if self.golden is None:
            pytest.skip("declared: nothing was released yet (golden is None)")
        kind = type(examples[0])
        files = sorted(self.golden.glob(f"{kind.kind}-v*.json"))
        for file in files:
            loaded = kind.from_json(file.read_text().strip())
            if f"-v{kind.version}" in file.stem:
                assert loaded.to_json() == file.read_text().strip(), f"{file} is written otherwise"
        wanted = self.golden / f"{kind.kind}-v{kind.version}.json"
        assert wanted in files, f"write {wanted}, with this text: {examples[-1].to_json()}"


def _loads_or_refuses(kind: type[Offset], text: str) -> None:
    try:
        loaded = kind.from_json(text)
    except OffsetError:
        return
    assert kind.from_json(loaded.to_json()) == loaded


def _comparable(offset: Offset) -> Any:
    """Return the offset, or None if its type has no order."""
    has_order = any("__lt__" in vars(base) for base in type(offset).__mro__[:-1])
    return offset if has_order else None


def _texts(*offsets: Any) -> str:
    return " ".join(offset.to_json() for offset in offsets)
