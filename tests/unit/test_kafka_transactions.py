"""The state of a transaction's id, from which the outcome of the transaction follows."""

import pytest

from krishiv_spark.kafka.transaction_requests import (
    Transaction,
    TransactionDescription,
    TransactionVersion,
)
from krishiv_spark.kafka.transactions import Outcome, judge_outcome
from krishiv_spark.sinks.base import Epoch, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.sinks.kafka.task import StagedTransaction, list_transactional_ids

EPOCH = 7
TABLE = [
    # version, state, raised by, outcome: as a broker answered (Kafka 4.3)
    (1, "Ongoing", 0, Outcome.OPEN),
    (2, "Ongoing", 0, Outcome.OPEN),
    (1, "PrepareCommit", 0, Outcome.COMMITTED),
    (2, "PrepareCommit", 0, Outcome.COMMITTED),
    (1, "CompleteCommit", 0, Outcome.COMMITTED),
    (2, "CompleteCommit", 1, Outcome.COMMITTED),
    (1, "CompleteAbort", 0, Outcome.ABORTED),
    (1, "CompleteAbort", 1, Outcome.UNKNOWN),  # a time-out, or the id's next transaction
    (2, "CompleteAbort", 1, Outcome.ABORTED),
    (2, "PrepareEpochFence", 1, Outcome.ABORTED),
    (1, "CompleteCommit", 1, Outcome.UNKNOWN),  # somebody initialised the id, and committed
    (1, "Ongoing", 1, Outcome.UNKNOWN),
    (2, "Empty", 2, Outcome.UNKNOWN),
    (2, "CompleteCommit", 3, Outcome.UNKNOWN),
    (1, "Gone", -8, Outcome.UNKNOWN),
]


def transaction(epoch, version):
    return Transaction(
        transactional_id="t",
        producer_id=3,
        producer_epoch=epoch,
        version=TransactionVersion(version),
    )


@pytest.mark.parametrize(("version", "state", "raised", "became"), TABLE)
def test_outcomes(version, state, raised, became):
    one = transaction(EPOCH, version)
    assert judge_outcome(one, TransactionDescription(state, 3, EPOCH + raised, -1, 1, ())) is became


def test_another_producer_hides_the_outcome():
    one = transaction(EPOCH, 2)
    now = TransactionDescription("CompleteCommit", 4, 0, -1, 1, ())
    assert judge_outcome(one, now) is Outcome.UNKNOWN


OPEN, COMMITTED, ABORTED, UNKNOWN = (
    Outcome.OPEN,
    Outcome.COMMITTED,
    Outcome.ABORTED,
    Outcome.UNKNOWN,
)


@pytest.mark.parametrize(
    ("found", "aborted"),
    [
        ([ABORTED, OPEN], [1]),
        ([ABORTED, OPEN, UNKNOWN], []),  # it may be visible: an operator decides about all three
        ([ABORTED, OPEN, COMMITTED], []),
        ([OPEN, UNKNOWN], []),
    ],
)
def test_the_rest_of_an_epoch_is_aborted_only_if_nothing_of_it_can_be_visible(
    monkeypatch, found, aborted
):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    options = KafkaSinkOptions.parse(given, "krishiv-kafka")
    participant = KafkaParticipant(options, lambda _: True, streaming=True)
    staged = [
        StagedTransaction(transaction=transaction(EPOCH, 2), task=task, rows=1, checksum=0)
        for task in range(len(found))
    ]
    outcomes = dict(zip(staged, found, strict=True))
    ended, finished = [], []
    monkeypatch.setattr(participant, "_find_outcomes", lambda _: outcomes)
    monkeypatch.setattr(participant, "discard", ended.extend)
    monkeypatch.setattr(participant, "finish", lambda *_: finished.append(True))
    participant.finish_or_salvage(Epoch("q", 3, 1), staged)
    assert [item.task for item in ended] == aborted
    assert finished


LAST_EPOCH = 32_766


@pytest.mark.parametrize(
    ("version", "epoch", "now", "became"),
    [
        (2, LAST_EPOCH, ("CompleteCommit", 0), Outcome.COMMITTED),
        (2, LAST_EPOCH, ("CompleteAbort", 0), Outcome.ABORTED),
        (2, LAST_EPOCH, ("Empty", 0), Outcome.UNKNOWN),  # somebody initialised the id
        (2, LAST_EPOCH, ("Ongoing", 0), Outcome.UNKNOWN),
        (2, LAST_EPOCH, ("CompleteAbort", 1), Outcome.UNKNOWN),
        (2, LAST_EPOCH - 1, ("CompleteCommit", 0), Outcome.UNKNOWN),
        (1, LAST_EPOCH, ("CompleteCommit", 0), Outcome.UNKNOWN),
    ],
)
def test_after_the_last_epoch_comes_another_producer(version, epoch, now, became):
    one = transaction(epoch, version)
    state, raised_to = now
    assert judge_outcome(one, TransactionDescription(state, 1004, raised_to, -1, 1, ())) is became


def ids(turn, number=0):
    return list_transactional_ids("p", Task("q", 0, 5, attempt=70, attempt_number=number), turn)


def test_neighbouring_generations_share_no_id():
    assert not set(ids(40)) & set(ids(41))


def test_ids_are_few():
    assert (
        len({name for turn in range(9) for number in range(9) for name in ids(turn, number)}) == 8
    )


def test_each_attempt_may_take_any_id_of_its_generation():
    assert {frozenset(ids(40, number)) for number in range(9)} == {frozenset(ids(40))}


def test_an_attempt_and_its_speculative_copy_begin_with_different_ids():
    assert len({ids(40, number)[0] for number in range(4)}) == 4
