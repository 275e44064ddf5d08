"""The log of a partition, as its leader keeps it: batches, producers, and open transactions."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

from krishiv_spark.kafka.records.batch_format import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER,
    LOG_OVERHEAD,
    MAGIC,
    MAX_INT32,
    TRANSACTIONAL,
)
from krishiv_spark.kafka.records.checksum import crc32c
from simulation.cluster.coordinator import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, KafkaRefusal

__all__ = ["Arrived", "Partition", "parse_batch_header"]

_OUT_OF_ORDER, _DUPLICATE = 45, 46
_REMEMBERED = 5


@dataclass(frozen=True)
class Arrived:
    """A batch as it was sent: what its header says, and its rows.

    Attributes:
        producer: Producer id.
        epoch: Of the producer.
        sequence: Of the first record.
        count: Records.
        transactional: Whether it belongs to a transaction.
        data: All bytes.
    """

    producer: int
    epoch: int
    sequence: int
    count: int
    transactional: bool
    data: bytes

    @property
    def last(self) -> int:
        """Sequence of the last record."""
        return (self.sequence + self.count - 1) & MAX_INT32


def parse_batch_header(data: bytes) -> Arrived:
    """Read the header of a batch."""
    fields = HEADER.unpack_from(data)
    attributes, producer, epoch, sequence, count = fields[5], *fields[9:13]
    return Arrived(producer, epoch, sequence, count, bool(attributes & TRANSACTIONAL), bytes(data))


@dataclass
class _Producer:
    """The state of a producer in a leader (``ProducerStateEntry``).

    Attributes:
        epoch: The newest epoch so far.
        batches: First and last sequence and offset of the newest batches.
        open_at: Start of its open transaction; None without one.
    """

    epoch: int = -1
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    open_at: int | None = None


@dataclass
class _Entry:
    """A batch in the log; `outcome` is None while its transaction is open."""

    offset: int
    batch: Arrived
    outcome: bool | None


class Partition:
    """One partition.

    Attributes:
        end: The next offset.
        start: The first offset that is still there.
    """

    def __init__(self) -> None:
        self.end = 0
        self.start = 0
        self._log: list[_Entry] = []
        self._producers: dict[int, _Producer] = {}

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset: after it, transactions are open."""
        opened = (each.open_at for each in self._producers.values() if each.open_at is not None)
        return min(opened, default=self.end)

    def is_open(self, producer: int, epoch: int) -> bool:
        """Return True if a producer has an open transaction here."""
        known = self._producers.get(producer)
        return known is not None and known.open_at is not None and known.epoch == epoch

    def append(self, batch: Arrived) -> int:
        """Add a batch; the offset of its first record."""
        known = self._producers.setdefault(batch.producer, _Producer())
        if batch.epoch < known.epoch:
            raise KafkaRefusal(INVALID_PRODUCER_EPOCH)
        repeated = self._repeated(known, batch)
        if repeated is not None:
            return repeated
        self._check_sequence(known, batch)
        if batch.epoch > known.epoch:
            known.epoch = batch.epoch
            known.batches.clear()
        offset = self.end
        known.batches.append((batch.sequence, batch.last, offset))
        if batch.transactional and known.open_at is None:
            known.open_at = offset
        self._log.append(_Entry(offset, batch, None if batch.transactional else True))
        self.end += batch.count
        return offset

    def _repeated(self, known: _Producer, batch: Arrived) -> int | None:
        if batch.epoch != known.epoch:
            return None
        key = (batch.sequence, batch.last)
        return next((at for first, last, at in known.batches if (first, last) == key), None)

    def _check_sequence(self, known: _Producer, batch: Arrived) -> None:
        if known.epoch == -1:
            return
        if batch.epoch != known.epoch or not known.batches:
            expected = 0
        else:
            expected = (known.batches[-1][1] + 1) & MAX_INT32
        if batch.sequence != expected:
            raise KafkaRefusal(_OUT_OF_ORDER)

    def open_batches(self, producer: int) -> list[Arrived]:
        """Those of a producer whose transaction has not ended here."""
        mine = (entry for entry in self._log if entry.batch.producer == producer)
        return [entry.batch for entry in mine if entry.outcome is None]

    def end_transaction(self, producer: int, epoch: int, *, commit: bool) -> list[Arrived]:
        """Write a marker; the batches that it decides about."""
        known = self._producers.setdefault(producer, _Producer())
        if epoch < known.epoch:
            raise KafkaRefusal(INVALID_TXN_STATE)
        if epoch > known.epoch:
            known.epoch = epoch
            known.batches.clear()
        decided = [e for e in self._log if e.batch.producer == producer and e.outcome is None]
        for entry in decided:
            entry.outcome = commit
        known.open_at = None
        data = _marker(producer, epoch, commit=commit)
        marker = Arrived(producer, epoch, -1, 1, transactional=True, data=data)
        self._log.append(_Entry(self.end, marker, outcome=True))
        self.end += 1
        return [entry.batch for entry in decided]

    def fetch(self, offset: int) -> bytes | None:
        """All batches from an offset on; None if that is not there."""
        if not self.start <= offset <= self.end:
            return None
        entries = (e for e in self._log if e.offset + e.batch.count > offset)
        return b"".join(struct.pack(">q", e.offset) + e.batch.data[8:] for e in entries)

    def age_out(self) -> None:
        """Retention removes all that is stable."""
        self.start = self.last_stable_offset
        self._log = [entry for entry in self._log if entry.offset >= self.start]


def _marker(producer: int, epoch: int, *, commit: bool) -> bytes:
    """A control batch (``EndTransactionMarker``): version and type as its key."""
    record = b"\0\0\0\x08" + struct.pack(">hh", 0, int(commit)) + b"\x0c" + bytes(6) + b"\0"
    records = bytes([2 * len(record)]) + record
    rest = (TRANSACTIONAL | CONTROL, 0, 0, 0, producer, epoch, -1, 1)
    length = HEADER.size + len(records) - LOG_OVERHEAD
    header = HEADER.pack(0, length, 0, MAGIC, 0, *rest)
    crc = crc32c(records, crc32c(header[ATTRIBUTES_AT:]))
    return HEADER.pack(0, length, 0, MAGIC, crc, *rest) + records
