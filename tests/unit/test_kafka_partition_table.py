"""Numbers of many partitions in arrays: they are mappings like any other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.kafka.partition_table import FoundOffsets, PartitionNumbers, PartitionTable
from krishiv_spark.kafka.topic_partition import FoundOffset, TopicPartition

int64 = st.integers(-(2**63), 2**63 - 1)
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "ab"]), st.integers(0, 9))
found = st.dictionaries(partitions, st.builds(FoundOffset, int64, int64, int64))


def in_arrays(values, rows=None):
    rows = rows or PartitionTable(values)
    columns = zip(*(values[tp] for tp in rows.partitions), strict=True)
    given_columns = [np.array(column, np.int64) for column in columns] or [
        np.zeros(0, np.int64)
    ] * 3
    return FoundOffsets(rows, *given_columns)


@given(found)
def test_they_are_what_a_dict_of_objects_is(values):
    made = in_arrays(values)
    assert made == values
    assert dict(made) == dict(made.items()) == values
    assert sorted(made.values()) == sorted(values.values())
    assert made.keys() == values.keys()
    assert set(made) == set(values)
    assert len(made) == len(values)
    assert made.numbers == {tp: each.offset for tp, each in values.items()}


@given(found, found)
def test_two_are_equal_where_their_dicts_are(one, other):
    assert (in_arrays(one) == in_arrays(other)) == (one == other)
    rows = PartitionTable(one)
    again = {tp: other.get(tp, each) for tp, each in one.items()}
    assert (in_arrays(one, rows) == in_arrays(again, rows)) == (one == again)


def test_what_is_not_there_is_missed():
    made = PartitionNumbers(PartitionTable([TopicPartition("a", 1)]), np.array([7]))
    assert made.get(TopicPartition("a", 2)) is None
    assert TopicPartition("a", 1) in made


def test_partitions_of_a_topic_follow_one_another():
    rows = PartitionTable([TopicPartition("b", 2), TopicPartition("a", 10), TopicPartition("b", 1)])
    assert [str(tp) for tp in rows.partitions] == ["a-10", "b-1", "b-2"]
    assert (rows.topics, rows.counts.tolist()) == (["a", "b"], [1, 2])
    assert rows.topic_numbers.tolist() == [0, 1, 1]
