"""Entries of epoch logs, changed at random: a `LogError`, or harmless to all files outside."""

import json
import os
import random
import time

import pyarrow as pa
import pytest
from sink_life import Life, rows

from krishiv_spark.errors import KrishivError, LogError
from krishiv_spark.offsets import EpochLog, State
from krishiv_spark.offsets.journal import open_journal
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.writer import FanoutWriter
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from krishiv_spark.sinks.parquet.writer import ParquetWriter

SAME = {"v": 1, "writer": "host:1", "at": 1_700_000_000_000}
OWNER = {**SAME, "kind": "owner", "nonce": "a", "claim": {"query": "q1", "target": "Parquet"}}
FILES = {
    "folder": "_krishiv/q1/staged/1",
    "files": [
        {
            "name": "part-0000000000-00000-000-c75de8c1b7c3-38dcad75a19f-1of1.parquet",
            "folder": "day=2013-01-01/k=a%2Fb",
            "rows": 5,
            "size": 700,
        }
    ],
    "removes": ["day=2013-01-01/old.parquet"],
}
TRANSACTION = {
    "transaction": {"id": "krishiv.q1.0.1", "producer": {"id": 7, "epoch": 1}},
    "task": 0,
    "rows": 5,
    "checksum": 17,
    "topic": "t",
    "partition": 0,
    "offset": 3,
}
STAGED = {
    "parquet": [FILES],
    "kafka": [TRANSACTION],
    "fanout": [{"parts": {"good": [FILES], "bad": [FILES]}}],
}


def committer_of(kind, folder):
    options = {
        "parquet": {"path": f"{folder}/good"},
        "kafka": {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "epochLog": str(folder)},
        "fanout": {
            "epochLog": str(folder),
            **{f"route.{one}.format": "krishiv-parquet" for one in ("good", "bad")},
            **{f"route.{one}.path": f"{folder}/{one}" for one in ("good", "bad")},
        },
    }
    writer = {"parquet": ParquetWriter, "kafka": KafkaWriter, "fanout": FanoutWriter}[kind]
    parsed = writer.options_type.parse(options[kind], "test")
    columns = [(one, pa.struct([("id", pa.int64())])) for one in ("good", "bad")]
    schema = pa.schema(columns if kind == "fanout" else [("value", pa.string())])
    return writer(parsed, schema, OutputMode.APPEND).committer()


def changed(random_, data):
    """Bytes of an entry, with some of them, or of its values, replaced."""
    if random_.random() < 0.5:
        value = json.loads(data)
        for _ in range(random_.randint(1, 3)):
            value = changed_value(random_, value)
        return json.dumps(value).encode()
    found = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(found))
        found[at : at + random_.randint(0, 3)] = bytes(
            random_.choice(b'0123456789-{}[]",:.\\/\x00\xff aeEntu') for _ in range(2)
        )
    return bytes(found)


ODD = [None, True, -1, 10**40, 1.5, "", "..", "/", "../../../x", "a\0", "\ud800", [], {}, [[]]]


def changed_value(random_, value):
    if isinstance(value, dict) and value and random_.random() < 0.9:
        key = random_.choice(list(value))
        return {**value, key: changed_value(random_, value[key])}
    if isinstance(value, list) and value and random_.random() < 0.9:
        at = random_.randrange(len(value))
        return [*value[:at], changed_value(random_, value[at]), *value[at + 1 :]]
    return random_.choice([*ODD, f"{'../' * random_.randint(1, 12)}precious"])


def fuzz(kind, folder, seconds, seed):
    """Read changed entries for a while, as drivers do; returns how many were of use."""
    random_ = random.Random(seed)
    committer, until, used = committer_of(kind, folder), time.monotonic() + seconds, 0
    intent = {**SAME, "kind": "intent", "nonce": "b", "epoch": 0, "staged": STAGED[kind]}
    originals = [json.dumps(entry).encode() for entry in (OWNER, intent)]
    log_folder = folder / "fuzzed"
    log_folder.mkdir()
    while time.monotonic() < until:
        for number, data in enumerate(originals, 1):
            path = log_folder / f"{number:020d}.json"
            path.write_bytes(changed(random_, data) if random_.random() < 0.7 else data)
        try:
            log = EpochLog(open_journal(log_folder))
            state = log.state()
            assert isinstance(state, State)
            if state.intent is not None:
                loaded = committer.decode(log, state.intent.staged)
                assert not any(outside(text) for text in texts([x.model_dump() for x in loaded]))
                used += 1
        except LogError:
            continue
    return used


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def outside(text):
    return text.startswith("../") or "/../" in text


@pytest.mark.parametrize("kind", ["parquet", "fanout"])
def test_changed_entries_are_log_errors_or_harmless(kind, tmp_path):
    assert fuzz(kind, tmp_path, 1.0, 0) > 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["parquet", "kafka", "fanout"])
def test_entries_that_are_changed_for_long_are_log_errors_or_harmless(kind, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"fuzz({kind!r}, folder, 60, {seed})")
    if kind == "kafka":  # names of transactions and topics are joined to no path
        fuzz_kafka(tmp_path, 60, seed)
    else:
        assert fuzz(kind, tmp_path, 60, seed) > 0


def fuzz_kafka(folder, seconds, seed):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"{__name__}.outside", lambda _: False)
        assert fuzz("kafka", folder, seconds, seed) > 0


@pytest.mark.soak
def test_a_planner_meets_changed_entries_for_long(tmp_path):
    """The whole way: jobs of other drivers are finished, or left alone, and nothing else."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    (tmp_path / "precious").write_text("x")
    table = tmp_path / "shared" / "table"
    intent = {**SAME, "kind": "intent", "nonce": "b", "epoch": 0, "staged": [FILES]}
    owner = {**OWNER, "claim": {"query": "batch-x"}}
    until, epoch = time.monotonic() + 60, 0
    while time.monotonic() < until:
        log = table / "_krishiv" / "batch-x" / "log"
        log.mkdir(parents=True, exist_ok=True)
        (log.parent / "staged" / "1").mkdir(parents=True, exist_ok=True)
        for number, entry in enumerate((owner, intent), 1):
            data = changed(random_, json.dumps(entry).encode())
            (log / f"{number:020d}.json").write_bytes(data)
        Life(ParquetWriter, {"path": str(table)}, "q1", OutputMode.APPEND).epoch(
            epoch, rows(epoch, 1)
        )
        epoch += 1
        assert sorted(os.listdir(tmp_path)) == ["precious", "shared"]
        assert os.listdir(tmp_path / "shared") == ["table"]
    assert (tmp_path / "precious").read_text() == "x"


BOMBS = {
    "deep": b'{"v":1,"kind":"owner","nonce":"a","writer":"x","staged":'
    + b"[" * 10**5
    + b"]" * 10**5,
    "huge": b'{"v":1,"kind":"owner","nonce":"a","writer":"x","epoch":1' + b"0" * 10**5 + b"}",
    "bytes": b'{"v":1,"kind":"owner","nonce":"\xff","writer":"x"}',
    "unknown": b'{"v":1,"kind":"owner","nonce":"a","writer":"x","zz":1}',
    "version": b'{"v":true,"kind":"owner","nonce":"a","writer":"x"}',
    "twice": b'{"v":1,"kind":"owner","kind":"intent","nonce":"a","writer":"x"}',
    "nan": b'{"v":1,"kind":"owner","nonce":"a","writer":"x","staged":NaN}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_entry_that_is_a_bomb_is_an_error_or_harmless_and_quick(name, tmp_path):
    (tmp_path / f"{1:020d}.json").write_bytes(BOMBS[name])
    begun = time.monotonic()
    log = EpochLog(open_journal(tmp_path))
    if name in {"twice", "nan", "version"}:
        assert log.state().number == 1
    else:
        with pytest.raises(LogError, match="is damaged or of a newer version"):
            log.state()
    assert time.monotonic() - begun < 10


def test_an_entry_of_a_number_beyond_all_is_a_gap(tmp_path):
    (tmp_path / f"{10**19:020d}.json").write_text("{}")
    with pytest.raises(LogError, match="has a gap"):
        EpochLog(open_journal(tmp_path)).state()


def test_a_part_of_a_fanout_is_left_to_the_fanout(tmp_path):
    """Another writer of one target would take what is staged there for finished, and remove it."""
    table, log_folder = tmp_path / "table", tmp_path / "log"
    Life(ParquetWriter, {"path": str(table)}, "q1", OutputMode.APPEND).epoch(0, rows(0, 1))
    own = table / "_krishiv" / "batch-x-good"
    (own / "staged" / "1").mkdir(parents=True)
    (own / "staged" / "1" / "file.parquet.staged").write_text("rows")
    (own / "epoch-log").write_text(f"{log_folder}\ngood")
    log_folder.mkdir()
    intent = {**SAME, "kind": "intent", "nonce": "b", "epoch": 0, "staged": STAGED["fanout"]}
    owner = {**OWNER, "claim": {"query": "batch-x"}}
    for number, entry in enumerate((owner, intent), 1):
        (log_folder / f"{number:020d}.json").write_text(json.dumps(entry))
    Life(ParquetWriter, {"path": str(table)}, "q1", OutputMode.APPEND).epoch(1, rows(1, 1))
    assert (own / "staged" / "1" / "file.parquet.staged").exists()


def test_no_part_of_a_forged_fanout_is_published_before_all_are_checked(tmp_path):
    committer = committer_of("fanout", tmp_path)
    log = EpochLog(open_journal(tmp_path / "log"))
    bad = {**FILES, "removes": ["../../precious"]}
    for parts in ({"good": [FILES], "bad": [bad]}, {"good": [bad], "bad": [FILES]}):
        with pytest.raises(LogError, match=r"precious' is not a path within a folder"):
            committer.decode(log, [{"parts": parts}])
    with pytest.raises(KrishivError):
        committer.decode(log, [{"parts": {"good": [7]}}])
