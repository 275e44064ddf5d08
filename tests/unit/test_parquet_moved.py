"""A query that finds another ``path``: refused, unless its files were moved."""

import pytest
from parquet_reading import FIRST, drain, put, reader, reload_offset, rows

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets import Start
from krishiv_spark.sources.base import UNLIMITED


@pytest.fixture
def years(tmp_path):
    """Two folders with a file of one name, and where a query stands that has read the first."""
    put(tmp_path / "2024", "a.parquet", [1, 2])
    put(tmp_path / "2025", "a.parquet", [3, 4])
    found, end = drain(reader(tmp_path / "2024"))
    assert found == [1, 2]
    return tmp_path, reload_offset(end)


def put_another(folder):
    put(folder, "b.parquet", [5])


@pytest.mark.parametrize("path", ["2025", "*", "2024/a.parquet", "2024*/*"])
def test_another_path_is_refused_before_it_is_listed(years, path):
    folder, end = years
    said = r"has read files below .*2024, and 'path' is now"
    with pytest.raises(OptionError, match=said) as caught:
        reader(folder / path).latest(end, UNLIMITED)
    assert f".option('movedFrom', '{folder}/2024')" in str(caught.value)


def test_so_is_a_batch_that_is_read_again(years):
    folder, end = years
    with pytest.raises(OptionError, match="'path' is"):
        reader(folder / "2025").plan(FIRST, end)
    assert rows(reader(folder / "2024"), FIRST, end) == [1, 2]


def test_and_a_query_that_began_with_what_came_later(years):
    folder, _ = years
    end = reader(folder / "2024").resolve(Start(at="latest"))
    with pytest.raises(OptionError, match="'path' is"):
        reader(folder / "2025").latest(reload_offset(end), UNLIMITED)


@pytest.mark.parametrize("spelt", ["{}/2024/", "file:{}/2024", "{}/./2024", "{}//2024"])
def test_a_path_that_is_spelt_in_another_way_is_the_same(years, spelt):
    folder, end = years
    put_another(folder / "2024")
    assert drain(reader(spelt.format(folder)), end)[0] == [5]


def test_a_pattern_below_the_same_folder_names_the_same_files(years):
    folder, end = years
    put_another(folder / "2024")
    assert drain(reader(folder / "2024/*.parquet"), end)[0] == [5]


def test_files_that_were_moved_are_not_read_again(years):
    folder, end = years
    (folder / "2024").rename(folder / "old")
    put_another(folder / "old")
    moved = {"movedFrom": f"file:{folder}/2024/"}
    assert rows(reader(folder / "old", **moved), FIRST, end) == [1, 2]  # a batch, repeated
    found, end = drain(reader(folder / "old", **moved), end)
    assert found == [5]
    put(folder / "old", "c.parquet", [6])
    for options in ({}, moved):  # it may go, and may stay
        assert drain(reader(folder / "old", **options), reload_offset(end))[0] == [6]
    with pytest.raises(OptionError, match="'path' is"):
        reader(folder / "2025", movedFrom=folder / "other").latest(end, UNLIMITED)


def test_a_position_of_an_earlier_release_takes_the_place_that_it_is_given(years):
    folder, end = years
    before = end.model_copy(update={"root": None})
    put_another(folder / "2024")
    found, end = drain(reader(folder / "2024"), before)
    assert found == [5]
    assert end.root == f"{folder}/2024"
