"""The contract of folders, on each store."""

import pickle
import threading
import urllib.request
import uuid
from collections import Counter
from dataclasses import replace

import obstore
import pytest

from krishiv_spark.errors import StorageError
from krishiv_spark.offsets.epoch_log import EpochLog
from krishiv_spark.offsets.journal import check_exclusive, open_journal
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.clients import StoreClient
from krishiv_spark.storage.objects import ObjectFolder

ODD = "a b+c%20ä=1"


@pytest.fixture
def folder(store):
    return Storage.of(store.options).folder(f"{store.url}/{ODD}")


def test_a_folder_that_nobody_made_is_empty(folder):
    assert list(folder.names()) == []
    assert folder.read("x") is None
    folder.remove(["x"])
    folder.destroy()


def test_a_name_is_created_once_and_keeps_what_the_first_one_wrote(folder):
    assert folder.create(ODD, b"first") is True
    assert folder.create(ODD, b"second") is False
    assert folder.read(ODD) == b"first"
    assert list(folder.names()) == [ODD]


def test_several_files_are_read_in_the_order_in_which_they_are_named(folder):
    names = [f"{number}" for number in range(20)]
    for name in names[:-1]:
        folder.create(name, name.encode())
    assert list(folder.read_each(names)) == [*(name.encode() for name in names[:-1]), None]
    assert list(folder.read_each([])) == []


def test_the_end_of_a_file_is_read_however_short_it_is(folder):
    folder.create("x", b"12345")
    folder.create("empty", b"")
    assert (folder.tail("x", 2), folder.tail("x", 9)) == (b"45", b"12345")
    assert folder.tail("none", 2) is None
    assert folder.tail("empty", 2) == b""


def test_a_file_that_is_moved_has_its_new_path_alone(folder):
    folder.replace("x", b"one")
    folder.move("x", f"{ODD}/below/y")
    folder.move("x", f"{ODD}/below/y")  # again, after a death
    assert list(folder.iter_files()) == [f"{ODD}/below/y"]
    assert folder.tail(f"{ODD}/below/y", 9) == b"one"
    folder.replace("x", b"other")
    folder.move("x", f"{ODD}/below/y")
    assert folder.tail(f"{ODD}/below/y", 9) == b"other"
    folder.move(f"{ODD}/below/y", "z")
    assert list(folder.iter_files()) == ["z"]


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "not complete yet"])
def test_a_file_stays_as_long_as_its_copy_is_not_complete(folder, monkeypatch, is_refused):
    """S3 refuses to copy more than 5 GiB by one request; Azure may copy in the background."""
    if not isinstance(folder, ObjectFolder):
        pytest.skip("renames")
    folder.replace("x", b"one")

    def copy(store, _, to):
        if is_refused:
            raise ValueError("the source is larger than the maximum")
        obstore.put(store, to, b"o")

    with monkeypatch.context() as broken:
        broken.setattr(obstore, "copy", copy)
        with pytest.raises(StorageError, match="larger than" if is_refused else "3 bytes"):
            folder.move("x", "y")
    assert folder.tail("x", 9) == b"one"
    folder.move("x", "y")
    assert list(folder.iter_files()) == ["y"]
    assert folder.tail("y", 9) == b"one"


def test_files_are_discarded_whether_they_exist_or_not(folder, monkeypatch):
    names = [f"{ODD}{number}" for number in range(5)]
    for name in ["kept", *names[:2], *names[3:]]:
        folder.create(name, b"x")
    asked, ask = [], StoreClient.ask
    monkeypatch.setattr(StoreClient, "ask", lambda *given: asked.append(given[1]) or ask(*given))
    folder.discard(names)
    assert len(asked) == (1 if "s3" in str(folder) else len(asked))
    folder.discard(names)
    folder.discard([])
    assert list(folder.names()) == ["kept"]


@pytest.mark.xdist_group("s3")
def test_a_bucket_that_cannot_delete_many_files_deletes_one_after_the_other(servers, monkeypatch):
    store = servers("s3")
    folder = Storage.of(store.options).folder(f"{store.url}/{ODD}")
    for name in "abc":
        folder.create(name, b"x")
    ask = StoreClient.ask

    def refuse(self, what, function, *rest):
        if what.startswith("remove files"):
            raise StorageError("NotImplemented")
        return ask(self, what, function, *rest)

    monkeypatch.setattr(StoreClient, "ask", refuse)
    folder.discard(["a", "b"])
    assert list(folder.names()) == ["c"]


def test_what_is_replaced_has_the_new_content(folder):
    folder.replace("x", b"one")
    folder.replace("x", b"other")
    assert folder.read("x") == b"other"
    assert list(folder.names()) == ["x"]


def test_names_are_those_of_files_and_folders_right_below(folder, store):
    folder.create("x", b"")
    Storage.of(store.options).folder(f"{store.url}/{ODD}/below").create("y", b"")
    Storage.of(store.options).folder(f"{store.url}/{ODD}-beside").create("z", b"")
    assert sorted(folder.names()) == ["below", "x"]


def test_a_folder_is_destroyed_with_all_below_it_and_nothing_else(folder, store):
    beside = Storage.of(store.options).folder(f"{store.url}/{ODD}-beside")
    beside.create("z", b"")
    folder.create("x", b"")
    Storage.of(store.options).folder(f"{store.url}/{ODD}/below").create("y", b"")
    folder.destroy()
    assert list(folder.names()) == []
    assert list(beside.names()) == ["z"]


def test_the_root_of_a_store_is_a_folder(store):
    root = str(replace(StoreUrl.parse(store.url), path=""))
    folder, name = Storage.of(store.options).folder(root), f"root-{uuid.uuid4().hex}"
    assert folder.create(name, b"1")
    assert {name, "some"} <= set(folder.names())
    assert folder.read(name) == b"1"
    folder.remove([name])
    assert name not in folder.names()


@pytest.mark.xdist_group("s3")
def test_an_object_that_stands_for_a_folder_is_no_name_in_it(servers):
    store = servers("s3")  # Spark's client leaves such ones
    endpoint, key = store.options["storage.s3.endpoint"], f"some/{uuid.uuid4().hex}"
    for name in (key, f"{key}/below"):
        request = urllib.request.Request(f"{endpoint}/box/{name}/", data=b"", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
    folder = Storage.of(store.options).folder(f"s3://box/{key}")
    folder.create("x", b"1")
    assert sorted(folder.names()) == ["below", "x"]


def test_threads_racing_for_a_name_have_one_winner(store):
    wins: Counter[int] = Counter()

    def race(me: int) -> None:
        folder = Storage.of(store.options).folder(store.url)
        for number in range(10):
            if folder.create(str(number), str(me).encode()):
                wins[number] += 1

    threads = [threading.Thread(target=race, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == Counter(range(10))


def test_a_folder_travels_without_its_connection(folder):
    folder.create("x", b"1")
    assert pickle.loads(pickle.dumps(folder)).read("x") == b"1"


def test_an_epoch_log_lives_there(store):
    journal = open_journal(store.url, Storage.of(store.options))
    check_exclusive(journal)
    log = EpochLog(journal)
    log.intend(log.begin().owner, 0, [{"rows": 1}])
    assert EpochLog(journal).state().committed_epoch == 0


# --- what users get wrong


def wrong(store, **changes: str) -> dict[str, str]:
    kind = next(iter(store.options)).split(".")[1]
    return {**store.options, **{f"storage.{kind}.{key}": value for key, value in changes.items()}}


def refusal(url: str, options) -> str:
    with pytest.raises(StorageError) as caught:
        Storage.of(options).folder(url).create("x", b"")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_endpoint_where_nobody_listens_is_one_line_within_seconds(store):
    endpoint = "http://127.0.0.1:9/box"
    text = refusal(store.url, wrong(store, endpoint=endpoint))
    assert "127.0.0.1:9" in text
    assert not any(secret in text for secret in store.secrets)


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_a_bucket_that_is_not_there_is_named(servers, kind):
    store = servers(kind)
    text = refusal(store.url.replace("box", "nowhere"), store.options)
    assert "does not exist" in text
    assert "nowhere" in text


@pytest.mark.xdist_group("azure")
def test_a_wrong_key_is_told_and_not_shown(servers):
    store = servers("azure")
    key = store.secrets[0].replace("E", "F", 1)
    text = refusal(store.url, wrong(store, accountKey=key))
    assert "credentials" in text or "key is wrong" in text
    assert key not in text


@pytest.mark.xdist_group("hdfs")
def test_a_user_who_may_not_write_is_named(servers):
    store = servers("hdfs")
    Storage.of(store.options).folder(store.url).create("x", b"")
    text = refusal(store.url, wrong(store, user="somebody"))
    assert "user=somebody, access=WRITE" in text
