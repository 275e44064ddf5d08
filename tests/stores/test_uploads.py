"""The contract of uploads, on each store: they are invisible until they are completed."""

import threading

import pytest

from krishiv_spark.errors import UploadGoneError
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.storage import Storage, UploadState, azure, gcs, s3
from krishiv_spark.storage.uploads import part_size

KINDS = ["s3", "versity", "azure", "gcs", "hdfs"]
WITH_EMPTY_FILES = ["s3", "versity", "gcs", "hdfs"]
WITH_LISTS = WITH_EMPTY_FILES
THAT_TELL_WRITERS = ["s3", "versity"]
ODD = "a b+c%20ä=1/x.parquet"


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch):
    monkeypatch.setattr(s3, "_SETTLED_S", 0.2)


def in_groups(kinds):
    return [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in kinds]


@pytest.fixture(params=in_groups(KINDS))
def place(request, servers, tmp_path):
    """Uploads to a place of its own in each of the stores, and that place as a folder."""
    store = servers(request.param)
    url = f"{store.url}/{tmp_path.name}"
    storage = Storage.of(store.options)
    request.node.identity = lambda key: storage.files(url).identity(f"{url}/{key}")
    return storage.uploads(url), storage.folder(url)


def seen(folder):
    """Return the files that readers see; they skip staged ones."""
    return [name for name in folder.iter_files() if not name.startswith("_krishiv/")]


def uploaded(uploads, key, data=b"data"):
    file = uploads.open(key)
    file.write(data)
    return file.close()


def test_a_file_is_invisible_until_it_is_completed(place):
    uploads, folder = place
    upload = uploaded(uploads, ODD)
    assert uploads.state(upload) is UploadState.OPEN
    assert seen(folder) == []
    assert uploads.complete(upload)
    assert seen(folder) == [ODD]
    assert folder.tail(ODD, 3) == b"ata"


def test_completing_again_changes_nothing(place, request):
    uploads, _ = place
    upload = uploaded(uploads, "x")
    assert uploads.complete(upload)
    first = request.node.identity("x")
    assert [uploads.complete(upload) for _ in range(2)] == [True] * 2
    assert uploads.state(upload) is UploadState.VISIBLE
    assert request.node.identity("x") == first


def test_threads_that_complete_side_by_side_all_see_the_file(place):
    uploads, _ = place
    upload, answers = uploaded(uploads, "x"), []
    threads = [
        threading.Thread(target=lambda: answers.append(uploads.complete(upload))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 8


def test_many_are_completed_side_by_side_without_a_word(place, caplog):
    uploads, folder = place
    many = map_in_parallel(lambda number: uploaded(uploads, str(number)), list(range(40)))
    assert all(map_in_parallel(uploads.complete, many))
    assert len(seen(folder)) == 40
    assert [record.getMessage() for record in caplog.records] == []


def test_what_was_aborted_is_gone_and_stays_so(place):
    uploads, folder = place
    upload = uploaded(uploads, "x")
    uploads.abort(upload)
    uploads.abort(upload)
    assert uploads.state(upload) is UploadState.MISSING
    assert not uploads.complete(upload)
    assert seen(folder) == []


def test_what_was_completed_and_removed_is_not_brought_back(place):
    uploads, folder = place
    upload = uploaded(uploads, "x")
    uploads.complete(upload)
    folder.remove(["x"])
    assert not uploads.complete(upload)
    assert seen(folder) == []


def test_aborting_what_is_complete_leaves_the_file(place):
    uploads, folder = place
    upload = uploaded(uploads, "x")
    uploads.complete(upload)
    uploads.abort(upload)
    assert seen(folder) == ["x"]


@pytest.mark.parametrize("place", in_groups(["azure"]), indirect=True)
def test_an_abort_that_died_halfway_is_done_by_the_next(place, monkeypatch):
    uploads, folder = place
    upload = uploaded(uploads, "x")
    with monkeypatch.context() as patched:
        patched.setattr(azure, "_remove", died)
        with pytest.raises(KeyboardInterrupt):
            uploads.abort(upload)
    assert seen(folder) == ["x"]
    assert uploads.state(upload) is UploadState.MISSING
    uploads.abort(upload)
    assert not uploads.complete(upload)
    assert seen(folder) == []


@pytest.mark.parametrize("place", in_groups(["gcs"]), indirect=True)
def test_what_was_copied_is_no_longer_aside_once_somebody_has_completed_it(place, monkeypatch):
    uploads, folder = place
    upload = uploaded(uploads, "x")
    with monkeypatch.context() as patched:
        patched.setattr(gcs.CopiedObjects, "delete", died)
        with pytest.raises(KeyboardInterrupt):
            uploads.complete(upload)
    assert seen(folder) == ["x"]
    assert [item.upload.id for item in uploads.pending()] == [upload.id]
    assert uploads.complete(upload)
    assert list(uploads.pending()) == []
    folder.remove(["x"])
    assert not uploads.complete(upload)


def died(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", in_groups(WITH_EMPTY_FILES), indirect=True)
def test_an_empty_file_is_one_too(place):
    uploads, folder = place
    assert uploads.complete(uploads.open("x").close())
    assert folder.read("x") == b""


def test_a_file_of_several_parts_has_them_in_their_order(place):
    uploads, folder = place
    file = uploads.open("x")
    for number in range(20):
        file.write(bytes([number]) * 2**20)
    upload = file.close()
    assert len(upload.parts) in {0, 3}  # none where it is written aside
    assert uploads.complete(upload)
    assert folder.read("x") == b"".join(bytes([number]) * 2**20 for number in range(20))


@pytest.mark.parametrize("place", in_groups(WITH_LISTS), indirect=True)
def test_what_is_pending_is_listed_and_what_is_complete_or_elsewhere_is_not(place):
    uploads, _ = place
    uploads.complete(uploaded(uploads, "complete"))
    open_one = uploaded(uploads, "d/open")
    (found,) = uploads.pending()
    assert found.upload.key.endswith("open")
    uploads.discard(found.upload)
    assert uploads.state(open_one) is UploadState.MISSING


@pytest.mark.parametrize("place", in_groups(THAT_TELL_WRITERS), indirect=True)
def test_a_file_that_was_aborted_while_it_is_written_says_so(place):
    uploads, _ = place
    file = uploads.open("x")
    file.write(b"x" * part_size(0))
    file._sent[0].result()
    (found,) = uploads.pending()
    uploads.abort(found.upload)
    file.write(b"y")
    with pytest.raises(UploadGoneError):
        file.close()
    file.abort()


def test_a_file_that_is_dropped_leaves_nothing(place):
    uploads, folder = place
    file = uploads.open("x")
    file.write(b"x" * 3 * part_size(0))
    file.abort()
    file.abort()
    assert list(uploads.pending()) == []
    assert seen(folder) == []


def test_discarding_shows_nothing(place):
    uploads, folder = place
    uploads.discard(uploaded(uploads, "x"))
    assert seen(folder) == []


def test_what_is_tried_before_the_first_row_leaves_nothing(place):
    uploads, folder = place
    uploads.verify()
    assert list(folder.iter_files()) == []


def test_ten_thousand_parts_hold_five_terabytes():
    sizes = [part_size(number) for number in range(10_000)]
    assert sum(sizes) > 5 * 2**40
    assert min(sizes) >= 5 * 2**20
    assert max(sizes) < 5 * 2**30
