"""The offsets of a batch of the Kafka source, and their distribution over tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.sources.kafka.event_time import find_idle_partitions
from krishiv_spark.sources.kafka.offset import KafkaOffset, QueryPosition, nest_by_topic
from krishiv_spark.sources.kafka.planner import MinRowsDelay, find_backlog, rate_limit
from krishiv_spark.sources.kafka.ranges import OffsetRange, split_range, spread_over_tasks
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

A, B, C = (TopicPartition("t", n) for n in range(3))

sizes = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 4)),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)),
)


def taken(begins, ends):
    return sum(find_backlog(begins, ends).values())


def test_everything_is_taken_without_a_limit():
    assert rate_limit({A: 3}, {A: 9}, None) == {A: 9}


def test_a_limit_is_shared_in_proportion():
    begins, ends = {A: 0, B: 100, C: 7}, {A: 90, B: 110, C: 7}
    assert rate_limit(begins, ends, 50) == {A: 45, B: 105, C: 7}


def test_small_partitions_never_starve():
    assert rate_limit({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


@given(sizes, st.integers(1, 2**40))
def test_a_limited_batch_moves_every_partition_and_passes_no_end(found, most):
    begins = {tp: begin for tp, (begin, _) in found.items()}
    ends = {tp: begin + size for tp, (begin, size) in found.items()}
    limited = rate_limit(begins, ends, most)
    assert limited.keys() == ends.keys()
    assert all(begins[p] <= limited[p] <= ends[p] for p in ends)
    assert find_backlog(begins, limited).keys() == find_backlog(begins, ends).keys()
    assert taken(begins, limited) <= most + len(find_backlog(begins, ends))


def test_a_small_batch_is_held_back_but_not_for_ever():
    delay = MinRowsDelay(least=10, longest_s=60)
    assert not delay.should_wait(1, now_s=0)  # the first one never waits
    assert delay.should_wait(9, now_s=30)
    assert not delay.should_wait(10, now_s=31)
    assert delay.should_wait(9, now_s=91)
    assert not delay.should_wait(9, now_s=92)


def offset_range(tp, start, end):
    return OffsetRange(tp, "id", start, end)


def test_each_partition_is_a_task_where_it_is_large():
    ranges = [offset_range(A, 0, 20_000), offset_range(B, 5, 5), offset_range(C, 3, 20_000)]
    assert spread_over_tasks(ranges, together=10_000) == [(ranges[0],), (ranges[2],)]


def test_small_partitions_share_a_task():
    ranges = [offset_range(A, 0, 4), offset_range(B, 0, 5), offset_range(C, 0, 6)]
    assert spread_over_tasks(ranges, together=10) == [(ranges[0], ranges[1]), (ranges[2],)]
    assert spread_over_tasks(ranges, together=0) == [(each,) for each in ranges]
    assert spread_over_tasks(ranges, together=100, most_offsets=9) == [
        (ranges[0], ranges[1]),
        (ranges[2],),
    ]


def test_large_partitions_are_split_for_more_tasks():
    # KafkaOffsetRangeCalculator: small ones stay whole, the others share what is left
    ranges = [offset_range(A, 0, 5), offset_range(B, 0, 20), offset_range(C, 0, 1)]
    found = spread_over_tasks(ranges, fewest=4, together=100)
    assert [(p.tp, p.start, p.end) for (p,) in found] == [
        (A, 0, 5), (B, 0, 10), (B, 10, 20), (C, 0, 1),
    ]  # fmt: skip
    assert spread_over_tasks(ranges, fewest=2) == [(each,) for each in ranges]


def test_no_task_has_more_offsets_than_asked():
    found = spread_over_tasks([offset_range(A, 0, 10)], most_offsets=4)
    assert [p.size for (p,) in found] == [3, 3, 4]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 400),
    st.integers(0, 2000),
)
def test_every_offset_is_in_one_task(found, fewest, most, together):
    ranges = [
        offset_range(TopicPartition("t", n), b, b + size) for n, (b, size) in enumerate(found)
    ]
    tasks = spread_over_tasks(ranges, fewest=fewest, most_offsets=most, together=together)
    parts = sorted((p.tp, p.start, p.end) for task in tasks for p in task)
    for whole in ranges:
        mine = [(start, end) for tp, start, end in parts if tp == whole.tp]
        ends = [whole.start, *(end for _, end in mine)]
        assert [start for start, _ in mine] == ends[:-1]
        assert ends[-1] == whole.end
    if most is not None and fewest is None:
        assert all(sum(p.size for p in task) <= most for task in tasks)


def test_parts_of_a_range_differ_by_one():
    assert [p.size for p in split_range(offset_range(A, 7, 17), 4)] == [2, 3, 2, 3]
    assert len(split_range(offset_range(A, 0, 2), 5)) == 2


# --- plans


def planned(start, end, **given):
    options = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", **given}
    reader = KafkaReader(KafkaSourceOptions.parse(options, "krishiv-kafka"), None, streaming=True)
    return [[(p.tp, p.topic_id, p.start, p.end) for p in task] for task in reader.plan(start, end)]


def offset(numbers, **fields):
    return KafkaOffset(topics=nest_by_topic(numbers), ids={"t": "i"}, **fields)


def test_a_plan_needs_nothing_but_two_offsets():
    found = planned(offset({A: 3}), offset({A: 5, B: 9}, began=nest_by_topic({B: 4})))
    assert found == [[(A, "i", 3, 5), (B, "i", 4, 9)]]


def test_what_was_passed_over_is_not_planned():
    found = planned(offset({A: 3}), offset({A: 50}, began=nest_by_topic({A: 40})))
    assert found == [[(A, "i", 40, 50)]]


def test_the_first_batch_begins_where_its_end_says():
    first = offset({A: 5}, began=nest_by_topic({A: 2}))
    assert planned(KafkaOffset(at="earliest"), first) == [[(A, "i", 2, 5)]]
    assert planned(first, first) == []


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.text(max_size=3), st.integers(0, 99)), st.integers()
    )
)
def test_numbers_by_partition_come_back(numbers):
    assert QueryPosition.from_offset(KafkaOffset(topics=nest_by_topic(numbers))).offsets == numbers


# --- event time


def test_the_slowest_partition_holds_the_watermark():
    known = find_idle_partitions({A: 100, B: 70}, {}, {A: 1, B: 1}, {A: 1, B: 1}, 50)
    assert (known.idle, known.find_slowest()) == (set(), 70)


def test_a_partition_that_is_read_and_far_behind_is_idle():
    known = find_idle_partitions({A: 100, B: 40}, {}, {A: 1, B: 1}, {A: 1, B: 1}, 50)
    assert (known.idle, known.find_slowest()) == ({B}, 100)


def test_a_partition_with_a_backlog_is_not_idle():
    known = find_idle_partitions({A: 100, B: 40}, {}, {A: 1, B: 1}, {A: 1, B: 2}, 50)
    assert (known.idle, known.find_slowest()) == (set(), 40)


def test_a_partition_without_records_holds_the_watermark_until_it_is_idle():
    ends = {A: 1, B: 0}
    first = find_idle_partitions({A: 100}, {}, ends, ends, 50)
    assert (dict(first.quiet), first.find_slowest()) == ({B: 100}, None)
    later = find_idle_partitions({A: 151}, first.quiet, ends, ends, 50)
    assert (later.idle, later.find_slowest()) == ({B}, 151)


def test_without_any_record_nothing_is_known():
    assert find_idle_partitions({}, {}, {A: 0}, {A: 0}, 50).find_slowest() is None


@pytest.mark.parametrize("order", [(A, B, C), (C, B, A)])
def test_offsets_have_one_text(order):
    numbers = {tp: tp.partition for tp in order}
    assert offset(numbers).to_json() == offset({A: 0, B: 1, C: 2}).to_json()
