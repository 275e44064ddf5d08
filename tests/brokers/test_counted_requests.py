"""A request more to the broker in each epoch is found by ``./run bench --counts``."""

import pytest
from planted_counts import count_regressions

from krishiv_spark.kafka.dev import open_cluster

ASKS_ONCE_MORE = """
from krishiv_spark.kafka import transactions as owner
name, more = "end_transactions", lambda client, *_: client.fetch_topics([])
"""


@pytest.mark.long  # what counts is in tests/project/test_counts.py
def test_a_request_more_in_each_epoch_is_a_regression():
    with open_cluster() as cluster:
        servers = {"kafka": {"bootstrap": cluster.bootstrap}}
        assert "Metadata" in count_regressions("sink.kafka", ASKS_ONCE_MORE, servers)
