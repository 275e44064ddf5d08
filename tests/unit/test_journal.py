"""Journals: an entry is whole or absent, and each name is created once."""

import errno
import os
import pickle
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest
from disk_calls import record_disk
from hypothesis import given
from hypothesis import strategies as st
from journals import entry, listing_of, snapshot
from log_racer import race

from krishiv_spark.errors import LogError
from krishiv_spark.offsets.journal import Listing, open_journal
from krishiv_spark.storage.disk import DiskFolder
from krishiv_spark.storage.objects import ObjectFolder


def body(text: str) -> bytes:
    return f'{{"kind":"owner","nonce":"n","v":1,"writer":"{text}"}}'.encode()


def numbers(journal) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of its entries and snapshots."""
    listing = journal.list()
    return listing.entries, listing.snapshots


# --- the contract, on every storage


def test_a_journal_that_nobody_wrote_is_empty(journal):
    assert numbers(journal) == ((), ())
    assert journal.read(entry(1)) is None
    journal.remove([entry(1), snapshot(1)])
    journal.destroy()


def test_a_name_is_created_once_and_keeps_what_the_first_one_wrote(journal):
    assert journal.create(entry(1), body("first")) is True
    assert journal.create(entry(1), body("second")) is False
    assert journal.read(entry(1)) == body("first")


def test_several_entries_are_read_in_the_order_in_which_they_are_named(journal):
    for number in (1, 2):
        journal.replace(entry(number), b"%d" % number)
    assert list(journal.read_each([entry(2), entry(3), entry(1)])) == [b"2", None, b"1"]


def test_a_name_that_was_removed_can_be_created_again(journal):
    journal.create(entry(1), body("first"))
    journal.remove([entry(1)])
    assert journal.read(entry(1)) is None
    assert journal.create(entry(1), body("second")) is True
    assert journal.read(entry(1)) == body("second")


def test_replacing_creates_or_overwrites(journal):
    journal.replace(snapshot(1), b"one")
    journal.replace(snapshot(1), b"two")
    assert journal.read(snapshot(1)) == b"two"


def test_a_listing_is_sorted_and_tells_entries_from_snapshots(journal):
    for number in (11, 2, 10, 1, 9):
        journal.create(entry(number), body("x"))
    for number in (10, 9):
        journal.replace(snapshot(number), b"{}")
    assert numbers(journal) == ((1, 2, 9, 10, 11), (9, 10))


def test_a_journal_destroys_all_of_itself(journal):
    journal.create(entry(1), body("x"))
    journal.replace(snapshot(1), b"{}")
    journal.destroy()
    assert numbers(journal) == ((), ())
    assert journal.create(entry(1), body("y")) is True


@pytest.mark.long
def test_two_objects_on_one_place_see_each_other(tmp_path, s3):
    for make in (lambda: open_journal(tmp_path / "log"), lambda: open_journal(f"{s3}/log")):
        one, other = make(), make()
        assert one.create(entry(1), b"one")
        assert not other.create(entry(1), b"other")
        assert other.read(entry(1)) == b"one"
        assert numbers(other) == ((1,), ())


def test_journals_side_by_side_in_a_bucket_keep_apart(s3):
    one, other = open_journal(f"{s3}/q1"), open_journal(f"{s3}/q10")
    assert one.create(entry(1), b"one")
    assert numbers(other) == ((), ())
    assert other.create(entry(1), b"other")
    one.destroy()
    assert other.read(entry(1)) == b"other"


def test_a_listing_that_comes_in_chunks_is_whole(s3):
    journal = open_journal(f"{s3}/log")
    for number in range(1, 61):
        journal.create(entry(number), b"x")
    assert journal.list().entries == tuple(range(1, 61))


def test_names_that_are_none_of_ours_are_passed_over():
    names = ["1.json", entry(1), entry(1) + ".tmp", f".{entry(2)}.0f", "x" + entry(3), "é", ""]
    names += ["٣" * 20 + ".json", "٣" * 20 + ".snapshot.json", snapshot(1) + ".tmp"]
    listing = Listing(dict.fromkeys(names, ""))
    assert (listing.entries, listing.snapshots) == ((1,), ())
    assert listing.entries_after(0) == list(listing.entries_up_to(9)) == [1]


@given(st.sets(st.integers(1, 200)), st.sets(st.integers(1, 200)), st.integers(0, 201))
def test_a_listing_finds_what_is_after_a_number_and_up_to_it(entries, snapshots, number):
    listing = listing_of(entries, snapshots)
    assert listing.entries_after(number) == sorted(n for n in entries if n > number)
    assert list(listing.entries_up_to(number)) == sorted(n for n in entries if n <= number)
    assert listing.has_entry(number) == (number in entries)
    assert (listing.entries, listing.snapshots) == (
        tuple(sorted(entries)),
        tuple(sorted(snapshots)),
    )


def test_threads_racing_for_a_name_in_a_bucket_have_one_winner(s3):
    wins: Counter[int] = Counter()

    def race(me: int) -> None:
        journal = open_journal(f"{s3}/log")
        for number in range(1, 16):
            if journal.create(entry(number), str(me).encode()):
                wins[number] += 1

    threads = [threading.Thread(target=race, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == Counter(range(1, 16))


def test_an_object_journal_is_pickled_without_its_connection(s3):
    journal = open_journal(f"{s3}/log")
    journal.create(entry(1), b"x")
    assert pickle.loads(pickle.dumps(journal)).read(entry(1)) == b"x"


# --- the disk


@pytest.mark.long
def test_processes_racing_for_numbers_have_one_winner_each(tmp_path):
    won = race("numbers", tmp_path, processes=8, count=50)
    assert Counter(number for numbers in won for number in numbers) == Counter(range(1, 51))


def test_what_a_crash_left_aside_is_no_entry_and_in_nobodys_way(tmp_path):
    (tmp_path / f".{entry(1)}.0123456789abcdef").write_bytes(b"half an en")
    (tmp_path / f".{snapshot(1)}.0123456789abcdef").write_bytes(b"")
    journal = open_journal(tmp_path)
    assert numbers(journal) == ((), ())
    assert journal.create(entry(1), b"x")


def test_a_finished_call_leaves_nothing_aside(tmp_path):
    journal = open_journal(tmp_path)
    journal.create(entry(1), b"x")
    journal.create(entry(1), b"y")
    journal.replace(snapshot(1), b"z")
    assert sorted(os.listdir(tmp_path)) == [entry(1), snapshot(1)]


def test_an_entry_is_on_the_disk_before_it_has_its_name_and_its_folders_after(
    tmp_path, monkeypatch
):
    steps = record_disk(monkeypatch, "fsync", "link")
    folder = tmp_path / "table" / "_krishiv" / "log"
    open_journal(folder).create(entry(1), b"x")
    linked = steps.index(("link", entry(1)))
    assert any(step[0] == "fsync" and step[1].startswith(f".{entry(1)}") for step in steps[:linked])
    assert ("fsync", "log") in steps[linked:]
    # A folder is on the disk when the folder above it is: each that was made, up to one that was
    # there. Otherwise a power failure takes the log away with its folder.
    synced = {name for call, name in steps if call == "fsync"}
    assert {"_krishiv", "table", tmp_path.name} <= synced


def test_folders_that_are_there_already_are_not_synced_again(tmp_path, monkeypatch):
    journal = open_journal(tmp_path / "log")
    journal.create(entry(1), b"x")
    steps = record_disk(monkeypatch, "fsync", "link")
    journal.create(entry(2), b"x")
    assert [step for step in steps if step == ("fsync", tmp_path.name)] == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK])
def test_a_disk_without_hard_links_is_told_with_what_to_do(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "link", failing(number))
    with pytest.raises(LogError, match=r"hard link.*'epochLog'"):
        open_journal(tmp_path).create(entry(1), b"x")
    assert os.listdir(tmp_path) == []


def test_another_failure_of_the_disk_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        open_journal(tmp_path).create(entry(1), b"x")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        open_journal(tmp_path).create(entry(1), b"x")
    assert os.listdir(tmp_path) == []


def failing(number: int):
    def fail(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    return fail


# --- places


@pytest.mark.parametrize(
    ("location", "folder"),
    [("/a/b", "/a/b"), ("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("/a/b c%20", "/a/b c%20")],
)
def test_paths_and_file_urls_are_folders(location, folder):
    journal = open_journal(location)
    assert isinstance(journal.folder, DiskFolder)
    assert journal.folder.path == Path(folder)
    assert str(journal) == folder


@pytest.mark.parametrize("url", ["s3://b/p", "gs://b/p", "az://c/p", "abfss://c@a/p"])
def test_object_stores_are_opened_when_they_are_used(url):
    journal = open_journal(url)
    assert isinstance(journal.folder, ObjectFolder)
    assert str(journal) == url


@pytest.mark.parametrize("url", ["http://x/y", "ftp://x", "S4://x"])
def test_a_place_that_is_not_known_is_refused_with_what_to_do(url):
    with pytest.raises(LogError, match=r"not known; known: .*s3:.*hdfs:.*'epochLog'"):
        open_journal(url)


@pytest.mark.long  # waits 5 s
def test_a_bucket_that_cannot_be_reached_is_an_error_and_no_empty_journal(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    # Without AWS_ALLOW_HTTP the client refuses at once, where it would else retry for minutes.
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(Exception, match="http"):
        open_journal("s3://nowhere/log").list()
