"""The message format v2 of Kafka 0.11 and later in numbers, and the tables of the kernels.

A batch consists of a header of 61 bytes and its records, which may be compressed as a whole. The
checksum covers everything from the attributes on; the broker sets the base offset and the leader
epoch before them.

https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct

MAGIC = 2

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61

# Positions of fields that are read or written separately.
LENGTH_AT = 8
LOG_OVERHEAD = 12  # base offset and length; the length counts the bytes after them
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_DELTA_AT = 23
BASE_STAMP_AT = 27
MAX_STAMP_AT = 35
PRODUCER_AT = 43
COUNT_AT = 57

# Bits of a batch's attributes.
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Size of the shortest record: seven fields of one byte, without key, value and headers.
RECORD_BYTES = 7

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

# Type of the control record of an aborted transaction.
ABORT = 0

# Columns of a table of batches, which has a row of 64-bit numbers for each batch.
START, BEGIN, END, BASE, LAST, ATTRIBUTES, BASE_STAMP, MAX_STAMP, PRODUCER, COUNT = range(10)
CRC, SIZE = 10, 11
BATCH_WIDTH = 12

# State of a walk over batches: their number, their bytes, and the offset after them.
FOUND, CONSUMED, NEXT = range(3)

# State of parsing a table: batch, record in it, position, last offset delta; number of rows.
BATCH, RECORD, AT, PRIOR, ROWS = range(5)

# Rows of a table of records: position of the key, the value or the headers; the next row has their
# size (-1: null).
KEY, VALUE, HEADERS = 0, 2, 4

# Codes of faults, in the order of `scanner.FAULTS`.
GOOD = 0
OLD_FORMAT, NEW_FORMAT, BAD_LENGTH, BAD_OFFSETS, BAD_ORDER, BAD_COUNT, BAD_CODEC = range(1, 8)
MALFORMED, BAD_DELTA, BAD_STAMP, LEFT_OVER, MANY_HEADERS = range(8, 13)
