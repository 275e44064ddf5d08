"""Decode mutated batches of records for some seconds: SECONDS SEED.

Each input has a seed of its own, which is written before it is decoded: the last one is that of an
input that ends the process. Run with `0 SEED` and that seed to decode it alone.
"""

import faulthandler
import random
import struct
import sys
import time
from collections import Counter

import bombs
from batches import CODECS, varint

from krishiv_spark.kafka.records import (
    BatchPolicy,
    RecordError,
    RecordRange,
    decode,
    scanner,
    warm_up,
)

LIMIT = 2**20
EDGES = [-1, 0, 1, 5, 6, 7, 63, 64, 127, 128, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)]
SKIPPABLE = bytes.fromhex("5a2a4d18")


class Fuzzer:
    """Inputs that depend on a seed alone."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def some(self, most):
        return self.random.randbytes(self.random.randrange(most))

    def is_so(self, chance):
        return self.random.random() < chance

    def number(self, usual, chance=0.98):
        return usual if self.is_so(chance) else self.random.choice(EDGES)

    def span(self):
        if self.is_so(0.1):
            return varint(-1)
        if self.is_so(0.01):
            return varint(self.random.choice(EDGES)) + self.some(4)
        data = self.some(9) if self.is_so(0.9) else bytes(self.random.randrange(3000))
        return varint(len(data)) + data

    def record(self, number):
        count = self.random.randrange(4)
        body = bytes(1) + varint(self.number(0)) + varint(self.number(number))
        body += self.span() + self.span() + varint(self.number(count))
        body += b"".join(self.span() + self.span() for _ in range(count))
        return varint(self.number(len(body))) + body

    def mutated(self, data):
        out = bytearray(data)
        for _ in range(self.random.randrange(1, 4)):
            if out:
                out[self.random.randrange(len(out))] = self.random.randrange(256)
        return bytes(out[: self.random.randrange(len(out) + 1)] if self.is_so(0.2) else out)

    def packed(self, records, codec):
        """Compressed in one of the ways that there are, and damaged now and then."""
        ways = [bombs.compress_at_once, bombs.compress_as_stream, self.frames]
        if codec == "snappy":
            ways = [bombs.compress_at_once, lambda data, _: bombs.compress_as_xerial(data, 7)]
        data = self.random.choice(ways)(records, codec)
        if self.is_so(0.1):
            data = SKIPPABLE + struct.pack("<I", 3) + b"abc" + data
        return self.mutated(data) if self.is_so(0.1) else data

    def frames(self, records, codec):
        middle = self.random.randrange(len(records) + 1)
        return bombs.compress_at_once(records[:middle], codec) + bombs.compress_at_once(
            records[middle:], codec
        )

    def batch(self, base):
        count = self.random.randrange(1, 6)
        records = b"".join(self.record(number) for number in range(count))
        if self.is_so(0.02):
            records += bytes(2 * LIMIT)
        if self.is_so(0.1):
            records = self.mutated(records)
        codec = self.random.choice(CODECS)
        packed = records if codec == "none" else self.packed(records, codec)
        count = count if self.is_so(0.9) else self.random.choice([0, 1, count + 1, 2**31 - 1])
        return bombs.batch(b"", count, base=base, codec=codec, packed=packed, last_delta=9)

    def input(self):
        data = b"".join(self.batch(10 * number) for number in range(self.random.randrange(1, 4)))
        return data[: self.random.randrange(len(data))] if self.is_so(0.1) else data


def decode_rows(data, aborted=(), skip=None):
    wanted = RecordRange("t", 0, 0, 2**62)
    rows = 0
    for batch in decode(data, wanted, aborted=aborted, policy=BatchPolicy(LIMIT, skip)).batches:
        batch.validate(full=True)
        rows += len(batch)
    return rows


def describe_outcome(data, **options):
    try:
        return decode_rows(data, **options)
    except RecordError as error:
        return str(error).partition(".")[0]


def main(seconds, seed):
    faulthandler.enable()
    warm_up()
    seeds, counts = random.Random(seed), Counter()
    end = time.monotonic() + seconds
    while not counts["inputs"] or time.monotonic() < end:
        one = seed if not seconds else seeds.randrange(2**32)
        print(one, end="\r", flush=True)
        fuzzer = Fuzzer(one)
        data = fuzzer.input()
        found = describe_outcome(data)
        counts["inputs"] += 1
        counts["decoded" if isinstance(found, int) else "refused"] += 1
        dead = []
        rest = describe_outcome(data, skip=dead.append)
        # What is skipped is what fails otherwise, unless the whole response makes no sense.
        assert found == rest if not dead else isinstance(found, str), (one, found, rest, dead)
        usual = scanner._ROOM
        scanner._ROOM = fuzzer.random.choice([1, 7, 100, 5000])
        again = []
        in_pieces = describe_outcome(data, skip=again.append)
        scanner._ROOM = usual
        assert (rest, {d.first_offset for d in dead}) == (
            in_pieces,
            {d.first_offset for d in again},
        ), one
    print()
    for name, count in counts.items():
        print(f"{name}\t{count}")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
