"""Where streams of Spark's keep what they have."""

import pytest
from store_or_skip import open_when_possible

from servers.stores import Store


@pytest.fixture
def store(request, tmp_path) -> Store:
    """The store that a test names by its kind; its server is the test's own, to be killed."""
    (tmp_path / "store").mkdir()
    with open_when_possible(request.param, tmp_path / "store") as store:
        yield store
