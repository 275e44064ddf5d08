"""File systems of a test's own that can be full."""

import os
import subprocess

import pytest


class Disk:
    """A small file system of its own."""

    def __init__(self, folder, options):
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "-o", options, "tmpfs")

    def _mount(self, *words):
        done = subprocess.run(["mount", *words, self.folder], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")

    def make_read_only(self):
        self._mount("-o", "remount,ro")

    def close(self):
        subprocess.run(["umount", "-l", self.folder], check=True)


def fill(disk, *, pages):
    """Leave so much room, in the pages by which such a disk is counted."""
    free = os.statvfs(disk.folder)
    left = free.f_bavail * free.f_frsize - 4096 * pages
    (disk.folder / "filler").write_bytes(b"x" * left)
