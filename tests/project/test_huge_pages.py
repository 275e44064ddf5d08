"""The memory that the process of a test collapses into huge pages."""

import os

from huge_pages import collapse_memory, find_ranges

MAPS = """\
55d0c0000000-55d0c0400000 r-xp 00000000 fd:00 131 /usr/bin/python3
55d0c1234000-55d0c1a01000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
7f0000300000-7f00004ff000 rw-p 00000000 00:00 0
7f0010000000-7f0010400000 rw-s 00000000 00:01 9 /dev/shm/shared
7f0020000000-7f0020400000 rw-p 00000000 fd:00 7 /usr/lib/x.so
7fff00000000-7fff00400000 rw-p 00000000 00:00 0                          [stack]
"""


def test_only_whole_huge_pages_of_private_memory_are_collapsed():
    heap = (0x55D0C1400000, 0x55D0C1A00000)
    assert list(find_ranges(MAPS)) == [heap, (0x7F0000000000, 0x7F0000200000)]


def test_memory_has_the_same_content_afterwards_and_in_a_fork():
    kept = [bytearray(os.urandom(1 << 20)) for _ in range(8)]
    expected = [bytes(one) for one in kept]
    collapse_memory()
    assert kept == expected
    child = os.fork()
    if child == 0:
        os._exit(kept != expected)
    assert os.waitpid(child, 0)[1] == 0
