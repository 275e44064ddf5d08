"""The targets that a checkpoint records, and their comparison with those of a job."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from krishiv_spark import jobs
from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.jobs.output_targets import JobTargets, describe_target_of_output
from krishiv_spark.options.references import Referenced
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.preflight import PreflightRequest
from krishiv_spark.spark.query_target import QueryTarget

QUERY = "0f-1"


def target(name="db.t", identity="Iceberg table 1", **given):
    return QueryTarget.of("krishiv-iceberg", name, identity, **given)


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    return SparkCheckpoint(str(tmp_path))


# --- the record


def test_a_target_with_an_identity_is_the_same_under_another_name():
    assert target().is_same(target("other.name"))
    assert not target().is_same(target(identity="Iceberg table 2"))
    assert not target().is_same(QueryTarget.of("krishiv-parquet", "db.t", "Iceberg table 1"))


def test_a_target_that_has_lost_its_identity_was_removed():
    assert not target().is_same(target(identity=None))


def test_a_target_that_may_be_restored_is_known_by_its_name_or_its_identity():
    before = QueryTarget.parse(target(may_be_restored=True).record())
    assert before == target(may_be_restored=True)
    assert before.is_same(target("other.name"))
    assert before.is_same(target(identity="Iceberg table 2"))
    assert before.is_same(target(identity=None))
    assert not before.is_same(target("other.name", identity="Iceberg table 2"))


def test_a_target_without_an_identity_is_known_by_its_name():
    before = target(identity=None)
    assert before.is_same(target(identity=None))
    assert before.is_same(target(identity="Iceberg table 1"))
    assert not before.is_same(target("db.z"))


def test_no_secret_is_in_a_record():
    found = target("s3://user:hunter2@lake/t?sig=hunter3 and hunter4", secrets={"hunter4"})
    assert "hunter" not in found.record() + str(found) + repr(found)
    assert "hunter" not in target("a hunter5 b").hiding({"hunter5"}).record()
    assert not found.is_same(target("s3://user:other@lake/t", identity=None))


def test_a_record_is_read_as_it_was_stored(checkpoint):
    assert checkpoint.recorded_target() is None
    assert checkpoint.record_target(target()) is None
    assert checkpoint.recorded_target() == target()
    file = Path(checkpoint.location, "krishiv", "target.json")
    first = file.stat().st_ino
    assert checkpoint.record_target(target()) is None
    assert file.stat().st_ino == first
    assert checkpoint.record_target(target("moved")) is None
    assert checkpoint.recorded_target().name == "moved"


def test_another_target_replaces_the_record_and_is_told(checkpoint):
    checkpoint.record_target(target())
    assert checkpoint.record_target(target("db.z", "Iceberg table 2")) == target()
    assert checkpoint.recorded_target().name == "db.z"


def test_outputs_have_records_of_their_own(checkpoint):
    checkpoint.record_target(target("a"), "a")
    checkpoint.record_target(target("b"), "b")
    assert {name: each.name for name, each in checkpoint.recorded_targets().items()} == {
        "a": "a",
        "b": "b",
    }
    assert checkpoint.recorded_target() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "{}", '{"format": 1, "target": "", "digest": ""}']
)
def test_a_damaged_record_is_named_with_the_way_on(checkpoint, text):
    folder = Path(checkpoint.location, "krishiv")
    folder.mkdir()
    (folder / "target.json").write_text(text)
    with pytest.raises(CheckpointMismatch, match=r"target\.json is damaged .* if it does, remove"):
        checkpoint.recorded_target()


def test_a_checkpoint_that_can_only_be_read_keeps_its_query(tmp_path, caplog):
    (tmp_path / "krishiv").write_text("no folder")
    checkpoint = SparkCheckpoint(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        try:
            checkpoint.record_target(target())
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"{type(error)} {error}")
    assert "the target krishiv-iceberg db.t" in caplog.text


def test_a_checkpoint_that_lost_its_id_is_no_new_one(checkpoint):
    assert checkpoint.known_query() == QUERY
    checkpoint.record_query_id(QUERY)
    Path(checkpoint.location, "metadata").unlink()
    with pytest.raises(CheckpointMismatch, match="its file 'metadata' is lost"):
        checkpoint.known_query()


def test_a_new_checkpoint_has_no_query(tmp_path):
    assert SparkCheckpoint(str(tmp_path / "new")).known_query() is None


def test_a_server_of_an_earlier_version_is_asked_in_its_own_form():
    (asked,) = PreflightRequest("{}", overwrite=False).to_options({}).values()
    assert json.loads(asked) == ["{}", False]
    given = PreflightRequest("{}", overwrite=False, new_target=True)
    assert PreflightRequest.from_options(given.to_options({})) == given


# --- jobs


def loaded(folder, *outputs, **streaming):
    job = {
        "name": "job",
        "inputs": [{"name": "rows", "format": "rate", "isStream": True}],
        "outputs": [
            {"name": name, "view": "rows", "format": form, "options": options}
            for name, form, options in outputs
        ],
        "streaming": {"checkpointLocation": f"{folder}/ck", **streaming},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (found,) = jobs.load(folder / "job.yaml").jobs
    return found


def check(job, *accepted):
    return list(JobTargets(job, accepted).check())


def started(job, *, record=True):
    """The checkpoints of its queries, as their starts leave them."""
    for location in job.checkpoints:
        Path(location).mkdir(parents=True, exist_ok=True)
        Path(location, "metadata").write_text(json.dumps({"id": QUERY}))
    if record:
        for output in job.outputs:
            if (found := describe_target_of_output(output)) is not None:
                SparkCheckpoint(output.checkpoint).record_target(found)


def test_the_form_of_a_path_does_not_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    os.symlink(tmp_path / "out", tmp_path / "link")
    forms = ["out", "./out/", f"{tmp_path}/out", f"file:{tmp_path}/out", "link"]
    found = {
        describe_target_of_output(loaded(tmp_path, ("a", "parquet", {"path": form})).outputs[0])
        for form in forms
    }
    assert len({each.digest for each in found}) == 1


def test_logins_and_addresses_of_foreign_formats_do_not_count(tmp_path):
    def described(**options):
        return describe_target_of_output(loaded(tmp_path, ("a", "jdbc", options)).outputs[0])

    before = described(url="jdbc:postgresql://a:hunter2@h/db?password=hunter3", dbtable="t")
    assert "hunter" not in before.record()
    assert before.is_same(described(url="jdbc:postgresql://h/db?password=new", dbtable="t"))
    assert not before.is_same(described(url="jdbc:postgresql://h/db", dbtable="z"))
    assert describe_target_of_output(loaded(tmp_path, ("a", "console", {})).outputs[0]) is None


@pytest.mark.parametrize(
    "forms",
    [
        ("s3a://b/x", "s3://b/x/", "s3n://b//x"),
        ("hdfs://nn1:8020/x", "hdfs:///x/", "hdfs://service/x"),
        ("abfss://c@a.dfs.core.windows.net/x", "wasbs://c@a.blob.core.windows.net/x"),
    ],
)
def test_the_scheme_of_a_url_and_a_slash_do_not_count(tmp_path, forms):
    found = [
        describe_target_of_output(loaded(tmp_path, ("a", "delta", {"path": each})).outputs[0])
        for each in (*forms, forms[0].replace("/x", "/z"))
    ]
    assert all(found[0].is_same(each) for each in found[1:-1])
    assert not found[0].is_same(found[-1])


def test_a_value_from_elsewhere_is_compared_and_not_stored(tmp_path):
    """It may be another one under the same reference, and the same one without a reference."""

    def described(text, reference=None):
        given = text if reference is None else Referenced(text, reference)
        (output,) = loaded(tmp_path, ("a", "delta", {"path": text})).outputs
        place = replace(output.place, options={"path": given})
        return describe_target_of_output(replace(output, place=place))

    before = described("/hunter2/a", "${env:LAKE}")
    assert before.is_same(described("/hunter2/a", "${env:OTHER}"))
    assert before.is_same(described("/hunter2/a"))
    assert not before.is_same(described("/hunter2/b", "${env:LAKE}"))
    assert "hunter2" not in before.record()


@pytest.mark.parametrize("login", ["", "scott/hunter2@", "scott/hun@ter2@"])
def test_a_login_in_a_url_of_oracle_is_not_stored(tmp_path, login):
    options = {"url": f"jdbc:oracle:thin:{login}//h:1521/x", "dbtable": "t"}
    found = describe_target_of_output(loaded(tmp_path, ("a", "jdbc", options)).outputs[0])
    assert found.name == "url=jdbc:oracle:thin://h:1521/x, dbtable=t"


@pytest.mark.parametrize(
    "location",
    [
        pytest.param("hdfs://nn/ck", marks=pytest.mark.long),  # looks for the host for 8 s
        "dbfs:/ck",
        "viewfs://c/ck",
        "cosn://b/ck",
    ],
)
@pytest.mark.parametrize("in_batches", [False, True])
def test_a_checkpoint_that_only_spark_can_read_blocks_nothing(
    tmp_path, location, in_batches, caplog
):
    job = loaded(tmp_path, ("a", "parquet", {"path": "/a"}), forEachBatchMode=in_batches)
    there = location if in_batches else f"{location}/a"
    job = replace(
        job,
        checkpoint=location,
        outputs=tuple(
            replace(each, checkpoint=None if in_batches else there) for each in job.outputs
        ),
    )
    assert check(job) == []
    JobTargets(job, ()).record(0)
    assert caplog.records == []


def test_no_record_is_made_where_spark_has_stored_no_query(tmp_path):
    """As on the machine of a client of Spark Connect: the checkpoint is on that of the server."""
    job = loaded(tmp_path, ("a", "parquet", {"path": "/a"}))
    JobTargets(job, ()).record(0)
    assert not (tmp_path / "ck").exists()


def test_a_foreign_format_with_another_path_is_refused_unless_that_is_accepted(tmp_path):
    job = loaded(tmp_path, ("a", "parquet", {"path": f"{tmp_path}/a"}))
    started(job)
    assert check(job) == []
    other = loaded(tmp_path, ("a", "parquet", {"path": f"{tmp_path}/b"}))
    with pytest.raises(CheckpointMismatch, match=r"/a, and would now write to parquet path=.*/b"):
        check(other)
    for accepted in ("a", "job.a"):
        assert check(other, accepted) == []


def test_a_new_target_is_accepted_once(tmp_path):
    """Also by a run without rows."""
    job = loaded(tmp_path, ("a", "parquet", {"path": f"{tmp_path}/a"}))
    started(job)
    targets = JobTargets(loaded(tmp_path, ("a", "parquet", {"path": f"{tmp_path}/b"})), ["a"])
    targets.forget_accepted()
    assert SparkCheckpoint(job.outputs[0].checkpoint).recorded_target() is None
    targets.record(0)
    assert SparkCheckpoint(job.outputs[0].checkpoint).recorded_target().name.endswith("/b")
    JobTargets(job, []).forget_accepted()
    assert SparkCheckpoint(job.outputs[0].checkpoint).recorded_target() is not None


def test_a_checkpoint_without_a_record_goes_on(tmp_path):
    job = loaded(tmp_path, ("a", "parquet", {"path": f"{tmp_path}/a"}))
    started(job, record=False)
    assert check(loaded(tmp_path, ("a", "parquet", {"path": f"{tmp_path}/b"}))) == []


def test_a_renamed_output_is_refused_with_both_names(tmp_path):
    at = {"path": f"{tmp_path}/t"}
    started(loaded(tmp_path, ("orders", "parquet", at)))
    job = loaded(tmp_path, ("order", "parquet", at))
    with pytest.raises(
        CheckpointMismatch, match=r"'order' is new.*the target of output 'orders'.*ck/order'"
    ):
        check(job)
    assert check(job, "order") == []
    os.rename(tmp_path / "ck/orders", tmp_path / "ck/order")
    assert check(job) == []


def test_outputs_come_and_go_and_jobs_are_renamed(tmp_path):
    a, b = (("a", "parquet", {"path": "/a"}), ("b", "parquet", {"path": "/b"}))
    started(loaded(tmp_path, a))
    assert check(loaded(tmp_path, a, b)) == []
    started(loaded(tmp_path, a, b))
    assert check(loaded(tmp_path, b)) == []
    assert check(loaded(tmp_path, ("c", "parquet", {"path": "/c"}))) == []


def test_two_jobs_of_a_file_may_share_a_root_and_a_target(tmp_path):
    job = {
        "inputs": [{"name": "rows", "format": "rate", "isStream": True}],
        "streaming": {"checkpointLocation": f"{tmp_path}/ck", "batchMode": True},
    }
    to = {"view": "rows", "format": "parquet", "options": {"path": "/t"}}
    both = [
        {**job, "name": "x", "outputs": [{"name": "x", **to}]},
        {**job, "name": "y", "outputs": [{"name": "y", **to}]},
    ]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"jobs": both}))
    one, other = jobs.load(tmp_path / "job.yaml").jobs
    started(one)
    assert check(other) == []


def test_a_folder_without_a_record_and_without_an_output_is_named(tmp_path):
    started(loaded(tmp_path, ("orders", "parquet", {"path": "/t"})), record=False)
    (line,) = check(loaded(tmp_path, ("order", "parquet", {"path": "/t"})))
    assert "ck/orders is the checkpoint of no output, and output 'order' is new" in line


@pytest.mark.parametrize("is_over", [True, False])
def test_in_batches_a_name_changes_between_two_batches(tmp_path, is_over):
    at = {"path": f"{tmp_path}/t"}
    streaming = {"forEachBatchMode": True}
    started(loaded(tmp_path, ("orders", "parquet", at), **streaming), record=False)
    checkpoint = SparkCheckpoint(f"{tmp_path}/ck/_batches")
    old = loaded(tmp_path, ("orders", "parquet", at), **streaming)
    JobTargets(old, ()).record(0)
    for log in ("offsets", "commits")[: 1 + is_over]:
        checkpoint.folder(log).replace("3", b"v1\n{}\n{}")
    job = loaded(tmp_path, ("order", "parquet", at), **streaming)
    if is_over:
        assert check(job) == []
    else:
        with pytest.raises(CheckpointMismatch, match="epoch 3 is not completed, and its rows"):
            check(job)
