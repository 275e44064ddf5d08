"""The message format v2 of Kafka 0.11 and later, in numbers.

A batch is a header of 61 bytes and then its records, which may be compressed as a whole. The
checksum covers everything from the attributes on; the base offset and the leader epoch before it
are set by the broker.

https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct

MAGIC = 2

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61

# Where fields begin that are read or written by themselves.
LENGTH_AT = 8
LOG_OVERHEAD = 12  # base offset and length; the length counts what follows them
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

# The shortest record: seven fields of one byte each, with neither key, value nor headers.
RECORD_BYTES = 7

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

# Type of a control record that ends a transaction by aborting it.
ABORT = 0
