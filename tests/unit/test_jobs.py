"""Job files: what they may say, and that everything that is wrong with one is said at once."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from krishiv_spark.cli import main
from krishiv_spark.errors import ManifestError, QueryFailed
from krishiv_spark.jobs import job_schema, load
from krishiv_spark.jobs.depots import Address
from krishiv_spark.jobs.plan import add_json_options
from krishiv_spark.jobs.supervisor import Supervisor

FILES = Path(__file__).parents[1] / "support" / "spark" / "job_files"
SMALL = """
inputs:
  - name: rows
    format: krishiv-parquet
    isStream: true
    options: {{path: /data/in}}
outputs:
  - name: rows
    format: krishiv-parquet
    options: {{path: /data/out}}
streaming:
  checkpointLocation: /data/checkpoint
{more}
"""


@pytest.fixture
def write(tmp_path):
    def written(text, name="job.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


@pytest.fixture
def small(write):
    return lambda more="": write(SMALL.format(more=more))


def refused(file, **given):
    with pytest.raises(ManifestError) as caught:
        load(file, **given)
    return caught.value.lines


# --- mistakes


def test_a_mapping_that_is_a_text_is_shown_with_its_keys(write):
    text = SMALL.format(more="restart: 5").replace(
        "isStream: true", "isStream: true\n    watermark: 1 hour"
    )
    lines = refused(write(text))
    assert [line.split(": ", 1)[1] for line in lines] == [
        "'watermark' must be a mapping, such as {column: …, delay: …}",
        "'restart' must be a mapping, such as {attempts: …, pause: …, longestPause: …}",
    ]


def planted():
    """By line, what has to be said of it."""
    for number, line in enumerate((FILES / "mistakes.yaml").read_text().splitlines(), 1):
        _, marker, text = line.partition("  # ")
        if marker:
            yield number, text


def test_every_planted_mistake_is_told_at_once_and_nothing_else():
    lines = refused(FILES / "mistakes.yaml", depots=FILES / "depots.yaml", variables=FOLDER)
    told = [re.fullmatch(r".*mistakes\.yaml:(\d+):\d+: (.*)", line) for line in lines]
    assert None not in told
    left = list(planted())
    assert len(left) >= 25
    unexpected = []
    for number, text in ((int(match[1]), match[2]) for match in told):
        found = next((one for one in left if one[0] == number and one[1] in text), None)
        unexpected.append((number, text)) if found is None else left.remove(found)
    assert (left, unexpected) == ([], [])


FOLDER = {"FOLDER": "/data"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("inputs: [", r":1:10: this is no YAML"),
        ("schema: a STRUCT<id: STRING>", r":1:20: this is no YAML: .*put a text .* in quotes"),
        ("- a", r":1:1: there is no mapping"),
        ("", r":1:1: there is no mapping"),
        ("a: &a [*a]\n", "levels deep"),
        ("name: x\n---\nname: y\n", "single document"),
        ("jobs: []\n", "'jobs' is empty"),
        ("inputs: 3\noutputs: []\n", "'inputs' must be a list"),
    ],
)
def test_what_is_no_job_file_is_said_with_its_place(write, text, said):
    assert any(re.search(said, line) for line in refused(write(text)))


def test_a_missing_file_is_one_line(tmp_path):
    (line,) = refused(tmp_path / "job.yaml")
    assert "cannot be read" in line


def test_the_command_tells_all_and_ends_with_2(small):
    done = CliRunner().invoke(main, ["validate", str(small("timeout: 3\nlogLevel: X"))])
    assert (done.exit_code, len(done.output.splitlines())) == (2, 2)
    assert CliRunner().invoke(main, ["validate", str(small())]).exit_code == 0


# --- variables


def test_variables_have_values_from_the_command_the_environment_or_a_default(small, monkeypatch):
    monkeypatch.setenv("OF_ENVIRONMENT", "from the environment")
    texts = {"a": "${GIVEN}", "b": "${OF_ENVIRONMENT}", "c": "${NONE:-nothing}", "d": "$${GIVEN}"}
    file = small(f"spark: {json.dumps(texts)}")
    (job,) = load(file, variables={"GIVEN": "from the command"}).jobs
    assert list(job.model.spark.values()) == [
        "from the command",
        "from the environment",
        "nothing",
        "${GIVEN}",
    ]


RULE = "inputs: [rows], arguments: {positive: 'amount > ${MIN}'}"


@pytest.mark.parametrize(
    "step",
    [
        f"python: krishiv_spark:with_rules, {RULE}",
        f"{RULE}, python: '${{F:-krishiv_spark:with_rules}}'",
        f"{RULE}, python: krishiv_spark.sinks.fanout.letter_rules:with_rules",
    ],
)
def test_a_value_in_a_rule_of_dead_letters_never_becomes_sql(small, step):
    file = small(f"steps: [{{name: checked, {step}}}]")
    (line,) = refused(file, variables={"MIN": "0 OR true"})
    assert "${MIN} would become SQL" in line
    (job,) = load(file, variables={"MIN": "0.5"}).jobs
    assert job.model.flat_steps()[0].arguments == {"positive": "amount > 0.5"}


def test_arguments_of_other_functions_are_texts(small):
    file = small(
        "steps: [{name: x, python: job_steps:doubled, inputs: [rows], arguments: {t: 'a ${MIN}'}}]"
    )
    (job,) = load(file, variables={"MIN": "0 OR true"}).jobs
    assert job.model.flat_steps()[0].arguments == {"t": "a 0 OR true"}


def test_a_default_stands_for_an_empty_value_too_as_in_a_shell(small, monkeypatch):
    monkeypatch.setenv("EMPTY", "")
    texts = {"a": "${EMPTY:-nothing}", "b": "${GIVEN:-nothing}", "c": "${EMPTY}", "d": "${EMPTY:-}"}
    file = small(f"spark: {json.dumps(texts)}")
    (job,) = load(file, variables={"GIVEN": ""}).jobs
    assert list(job.model.spark.values()) == ["nothing", "nothing", "", ""]


def test_a_variable_that_is_given_and_used_nowhere_is_a_mistake(small):
    (line,) = refused(small("name: ${DAY}"), variables={"DYA": "x", "DAY": "y"})
    assert "--set DYA=...: no ${DYA} is in the file; did you mean 'DAY'?" in line


# --- workflows


def test_a_published_workflow_runs_unchanged_beside_its_depots():
    loaded = load(FILES / "workflow.yaml", depots=FILES / "depots.yaml", variables=FOLDER)
    (job,) = loaded.jobs
    (source,), (output,) = job.inputs, job.outputs
    assert job.name == "orders-stream"
    assert source.place.format == "krishiv-kafka"
    assert source.place.options["subscribe"] == "orders"
    assert source.place.options["failOnDataLoss"] == "false"
    assert output.place.format == "krishiv-iceberg"
    assert output.place.options["path"] == "shop.orders"
    assert output.place.options["tableProperty.write.metadata.previous-versions-max"] == "10"
    assert job.batches_checkpoint == "/data/checkpoints/flare/orders/_batches"
    assert [step.name for step in job.model.flat_steps()] == ["texts", "orders_out"]
    assert job.model.streaming.trigger_duration == 600_000
    notes = "\n".join(loaded.notes)
    assert "'steps' belongs in 'job'" in notes
    assert "not used here: compute, driver, executor, tags" in notes
    assert "not used here: '?acl=rw' of addresses" in notes


@pytest.mark.parametrize("key", ["logLevel", "outputs", "steps"])
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_parts_of_a_job_are_found_at_each_level_that_is_published(write, key, levels):
    tree = yaml.safe_load((FILES / "workflow.yaml").read_text())
    spec = tree["workflow"]["dag"][0]["spec"]
    places = [spec["stackSpec"]["job"], spec["stackSpec"], spec]
    value = next(place.pop(key) for place in places if key in place)
    places[levels][key] = value
    file = write(yaml.safe_dump(tree, sort_keys=False))
    (job,) = load(file, depots=FILES / "depots.yaml", variables=FOLDER).jobs
    assert (job.model.log_level, len(job.outputs), len(job.model.flat_steps())) == ("INFO", 1, 2)


@pytest.mark.parametrize("spelling", ["Continuous", "Continous", "continuous"])
def test_triggers_are_taken_in_any_case_and_as_they_are_misspelt(write, spelling):
    text = SMALL.format(more="").replace("streaming:", f"streaming:\n  triggerMode: {spelling}")
    assert load(write(text)).jobs[0].model.streaming.trigger_mode == "Continuous"


# --- depots


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("dataos://lake:shop/orders?acl=rw", ("lake", "shop", "orders", "acl=rw")),
        ("dataos://lake:none/orders", ("lake", "", "orders", "")),
        ("dataos://lake:default/a/b", ("lake", "", "a/b", "")),
        ("dataos://lake/orders", ("lake", "", "orders", "")),
        ("dataos://lake", ("lake", "", "", "")),
    ],
)
def test_addresses(text, parts):
    assert Address.parse(text) == parts


PLACES = """
inputs: [{{name: rows, format: rate, isStream: true}}]
outputs:
  - {{name: rows, dataset: "dataos://there:{dataset}", options: {{{option}}}}}
streaming: {{checkpointLocation: /data/checkpoint}}
"""


@pytest.mark.parametrize(
    ("format_", "dataset", "option", "where"),
    [
        ("krishiv-parquet", "a/b", "path: /x", "/data/a/b"),
        ("csv", "a/b", "PATH: /x", "/data/a/b"),
        ("krishiv-kafka", "none/b", "topic: x", "b"),
        ("krishiv-iceberg", "a/b", "table: x", "a.b"),
        ("krishiv-memory", "none/b", "name: x", "b"),
    ],
)
def test_a_place_that_is_said_twice_is_a_mistake(write, format_, dataset, option, where):
    """The option would win, and lines of the log name the other one."""
    needed = {"krishiv-kafka": "kafka.bootstrap.servers: b", "krishiv-iceberg": "warehouse: /w"}
    options = f"{{{needed.get(format_, '')}}}"
    there = f"{{format: {format_}, folder: /data, options: {options}}}"
    depots = write(f"depots: {{there: {there}}}", "depots.yaml")
    lines = refused(write(PLACES.format(dataset=dataset, option=option)), depots=depots)
    key = option.partition(":")[0]
    assert f"is {where!r}, but the option {key!r} is" in lines[0]
    same = PLACES.format(dataset=dataset, option=f"{key}: {where}")
    assert load(write(same), depots=depots).jobs[0].outputs


def test_options_in_options_are_not_there_twice(write):
    text = SMALL.format(more="").replace(
        "{path: /data/in}", "{storage: {s3.region: a}, storage.s3.region: b, path: /data/in}"
    )
    (line,) = refused(write(text))
    assert ":6:40: 'storage.s3.region' occurs twice" in line


def test_secrets_come_from_the_environment_or_a_file_and_are_shown_nowhere(write, monkeypatch):
    monkeypatch.setenv("JAAS", "hunter2")
    secret = write("hunter3\n", "secret")
    depots = write(
        "depots:\n  lake:\n    format: krishiv-iceberg\n    options:\n      warehouse: /data\n"
        f"      catalog.token: {{env: JAAS}}\n      catalog.credential: {{file: {secret}}}\n",
        "depots.yaml",
    )
    text = SMALL.format(more="").replace("format: krishiv-parquet\n    options: {path: /data/out}",
                                         "dataset: dataos://lake:db/t")  # fmt: skip
    loaded = load(write(text), depots=depots)
    assert loaded.jobs[0].outputs[0].place.options["catalog.token"] == "hunter2"
    assert loaded.jobs[0].outputs[0].place.options["catalog.credential"] == "hunter3"
    assert "hunter" not in repr(loaded)
    assert loaded.redact("no hunter2, no hunter3") == "no ***, no ***"


def test_a_value_is_hidden_where_its_option_can_be_secret_or_the_file_says_so(write, monkeypatch):
    for name in ("ADDRESS", "JAAS", "HIDDEN", "SHOWN", "LOGIN"):
        monkeypatch.setenv(name, f"value-of-{name.lower()}")
    monkeypatch.setenv("LOGIN", "postgresql://u:value-of-login@db/c")
    depots = write(
        "depots:\n"
        "  broker:\n    format: kafka\n    options:\n"
        "      kafka.bootstrap.servers: {env: ADDRESS}\n"
        "      kafka.sasl.jaas.config: {env: JAAS}\n"
        "      groupId: {env: HIDDEN, secret: true}\n"
        "  other:\n    format: jdbc\n    options: {url: {env: SHOWN, secret: false}}\n"
        "  lake:\n    format: krishiv-iceberg\n    options: {catalog.uri: {env: LOGIN}}\n",
        "depots.yaml",
    )
    loaded = load(write(SMALL.format(more="")), depots=depots)
    shown = loaded.redact("value-of-address value-of-jaas value-of-hidden value-of-shown")
    assert shown == "value-of-address *** *** value-of-shown"
    assert "value-of-login" not in loaded.redact("no postgresql://u:value-of-login@db/c")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("kafak", "kafka"), ("kafkajso", "kafkajson"), ("parqet", "parquet"), ("JSON", None),
     ("com.example.kafak", None), ("mongodb", None)],
)  # fmt: skip
def test_a_format_that_nobody_may_know_is_noted(write, given, meant):
    text = SMALL.format(more="").replace("format: krishiv-parquet", f"format: {given}")
    notes = [note for note in load(write(text)).notes if "is none of this package's" in note]
    assert bool(notes) == (meant is not None)
    assert all(f"did you mean {meant!r}?" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("depots: {lake: {formt: x}}", "unknown key 'formt'; did you mean 'format'"),
        ("depots: {lake: {options: {token: {env: NOT_THERE}}}}", "has no variable NOT_THERE"),
        ("depots: {lake: {options: {token: {file: /not/there}}}}", "/not/there cannot be read"),
        ("depots: {lake: {options: {token: {}}}}", "give 'env'"),
    ],
)
def test_what_is_wrong_with_depots_is_said_with_its_place(small, write, text, said):
    (line,) = refused(small(), depots=write(text, "depots.yaml"))
    assert re.search(rf"depots\.yaml:1:\d+: .*{said}", line)


# --- the time is up, or a signal comes, while a query waits to start again

NO_BROKER = QueryFailed("no broker", passes=True, name="KafkaFailedError")
PATIENT = "restart: {attempts: 5, pause: 1 hour}\n"


def cannot_start():
    raise NO_BROKER


def has_failed(failure=NO_BROKER):
    return SimpleNamespace(
        spark=None, is_active=False, failure=failure, name="rows", id="1", last_progress=None
    )  # fmt: skip


class Running:
    """A query that runs until it is stopped."""

    spark = SimpleNamespace(lastProgress=None, status={"message": "", "isDataAvailable": False})
    name, id, failure = "rows", "2", None

    def __init__(self, last_progress=None, fails=None, *, given_up=False):
        self.last_progress, self._fails = last_progress, fails
        self.is_active, self.given_up, self.was_unready = True, given_up, False
        self.made_no_progress = given_up and last_progress is None

    def stop(self, _grace):
        self.is_active, self.failure = False, self._fails


def supervised(file, make, stop, said):
    (job,) = load(file).jobs
    return Supervisor(job.model, [make], stop, lambda _: False, said.append)


@pytest.mark.parametrize("make", [cannot_start, has_failed])
@pytest.mark.parametrize("timeout", ["1 ms", "300 ms"])  # 1 ms: nobody has seen it fail yet
def test_a_job_whose_time_is_up_before_a_new_start_has_failed(small, make, timeout):
    file = small(f"timeout: {timeout}\n{PATIENT}")
    with pytest.raises(QueryFailed, match="no broker"):
        supervised(file, make, threading.Event(), []).run()


SOON = "restart: {attempts: 5, pause: 1 ms}\n"


def one_after_the_other(*queries):
    """Return a function that starts the queries one after the other."""
    left = iter(queries)
    return lambda: next(left)


def test_a_job_whose_time_is_up_before_its_new_start_is_seen_to_work_has_failed(small):
    make = one_after_the_other(has_failed(), Running())
    with pytest.raises(QueryFailed, match="no broker"):
        supervised(small(f"timeout: 300 ms\n{SOON}"), make, threading.Event(), []).run()
    make = one_after_the_other(has_failed(), Running(last_progress="an epoch"))
    supervised(small(f"timeout: 300 ms\n{SOON}"), make, threading.Event(), []).run()


@pytest.mark.parametrize("name", ["CatalogFailedError", "OptionError"])
def test_a_read_that_fails_for_a_while_before_a_query_starts_is_repeated(small, name):
    begun = []

    def make():
        begun.append(name)
        if len(begun) == 1:
            raise RuntimeError(f"krishiv_spark.errors.{name}: x")
        return Running(last_progress="an epoch")

    supervisor = supervised(small(f"timeout: 300 ms\n{SOON}"), make, threading.Event(), [])
    if name == "CatalogFailedError":
        supervisor.run()
    else:
        with pytest.raises(RuntimeError, match="OptionError"):
            supervisor.run()


def test_a_job_whose_time_is_up_while_such_a_read_fails_has_failed(small):
    def make():
        raise RuntimeError("krishiv_spark.errors.CatalogFailedError: no catalog")

    file = small(f"timeout: 1 ms\n{PATIENT}")
    with pytest.raises(QueryFailed, match="no catalog"):
        supervised(file, make, threading.Event(), []).run()


def test_an_epoch_that_fails_while_the_time_is_up_is_an_error(small):
    make = one_after_the_other(Running(last_progress="an epoch", fails=NO_BROKER))
    with pytest.raises(QueryFailed, match="no broker"):
        supervised(small("timeout: 100 ms\n"), make, threading.Event(), []).run()


@pytest.mark.parametrize("progress", [None, "an epoch"])
def test_an_epoch_that_was_given_up_is_said_and_counts_if_there_was_no_other(small, progress):
    said = []
    make = one_after_the_other(Running(progress, given_up=True))
    supervisor = supervised(small("timeout: 100 ms\n"), make, threading.Event(), said)
    supervisor.run()
    (line,) = said
    assert line.startswith("rows: the epoch under way was aborted after 60 s ('graceTime')")
    assert supervisor.stalled == ([] if progress else ["rows"])


@pytest.mark.parametrize("make", [cannot_start, has_failed])
def test_what_waits_for_a_new_start_when_a_signal_comes_is_said(small, make):
    stop, said = threading.Event(), []
    supervisor = supervised(small(PATIENT), make, stop, said)
    # It has been seen to fail by then, on a busy machine too.
    threading.Timer(1, stop.set).start()
    supervisor.run()
    (line,) = said
    assert "waited for a restart, which the next run does, after: no broker" in line
    assert supervisor.stalled == ["a query that had failed"]


def test_what_has_failed_for_good_when_a_signal_comes_is_an_error(small):
    stop = threading.Event()

    def make():
        stop.set()
        return has_failed(QueryFailed("rows do not fit"))

    with pytest.raises(QueryFailed, match="do not fit"):
        supervised(small(PATIENT), make, stop, []).run()


# --- several jobs


def test_jobs_that_are_never_reached_are_noted(write):
    job = yaml.safe_load(SMALL.format(more=""))
    other = {**job, "streaming": {"checkpointLocation": "/data/other"}}
    file = write(yaml.safe_dump({"jobs": [{**job, "name": "a"}, {**other, "name": "b"}]}))
    assert any("job 'a' never ends" in note for note in load(file).notes)
    file = write(yaml.safe_dump({"order": "sideBySide", "jobs": [job, other]}))
    loaded = load(file)
    assert (loaded.notes, [job.name for job in loaded.jobs]) == ((), ["job-1", "job-2"])


def test_two_jobs_of_one_name_are_a_mistake(write):
    job = {**yaml.safe_load(SMALL.format(more="")), "name": "a"}
    other = {**job, "streaming": {"checkpointLocation": "/data/other"}}
    (line,) = refused(write(yaml.safe_dump({"jobs": [job, other]})))
    assert "two jobs are called 'a'" in line


def test_two_queries_of_one_checkpoint_are_a_mistake(write):
    """The second would go on where the first one is."""
    job = yaml.safe_load(SMALL.format(more=""))
    (line,) = refused(write(yaml.safe_dump({"jobs": [job, job]})))
    assert "two queries would have the checkpoint /data/checkpoint/rows" in line


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/tmp/a", "file:/tmp/a"),
        ("/tmp/a", "file:///tmp//b/.././a/"),
        ("checkpoints", "./checkpoints/"),
        ("s3a://lake/a", "s3://lake//a/."),
        ("hdfs:///a/b", "hdfs:/a//b"),
        ("other://x/a", "OTHER://x/./a/"),
    ],
)
def test_one_checkpoint_is_known_by_any_spelling(write, one, other):
    job = yaml.safe_load(SMALL.format(more=""))
    places = [{**job, "streaming": {"checkpointLocation": place}} for place in (one, other)]
    (line,) = refused(write(yaml.safe_dump({"jobs": places})))
    assert "two queries would have the checkpoint" in line


@pytest.mark.parametrize(
    ("one", "other"),
    [("/tmp/a", "/tmp/b"), ("s3://lake/a", "s3://sea/a"), ("other://x/a", "other://y/a")],
)
def test_other_places_are_other_checkpoints(write, one, other):
    job = yaml.safe_load(SMALL.format(more=""))
    places = [{**job, "streaming": {"checkpointLocation": place}} for place in (one, other)]
    assert len(load(write(yaml.safe_dump({"jobs": places}))).jobs) == 2


# --- the schema


def test_the_schema_takes_what_is_right():
    import jsonschema  # in one process only: it compiles grammars for two seconds

    checker = jsonschema.Draft202012Validator(job_schema())
    workflow = yaml.safe_load((FILES / "workflow.yaml").read_text())
    stack = workflow["workflow"]["dag"][0]["spec"]["stackSpec"]
    assert list(checker.iter_errors(workflow))  # its steps stand in the wrong place
    stack["job"]["steps"] = stack.pop("steps")
    assert not list(checker.iter_errors(workflow))
    assert not list(checker.iter_errors(yaml.safe_load(SMALL.format(more=""))))
    wrong = yaml.safe_load(SMALL.format(more="explian: true"))
    assert list(checker.iter_errors(wrong))


def test_the_command_prints_the_schema():
    done = CliRunner().invoke(main, ["job-schema"])
    assert json.loads(done.output) == job_schema()


# --- JSON of Kafka

KAFKA_JSON = """
inputs:
  - name: rows
    format: {format}
    isStream: true
{keys}
    options: {{kafka.bootstrap.servers: "b:1", subscribe: t{options}}}
outputs:
  - name: rows
    format: krishiv-parquet
    options: {{path: /data/out}}
streaming:
  checkpointLocation: /data/checkpoint
"""
FIELDS_OF_VALUES = "    schema: id BIGINT, at TIMESTAMP"


def kafka_json(write, keys=FIELDS_OF_VALUES, name="kafkajson", **options):
    given = "".join(f", {key}: {json.dumps(value)}" for key, value in options.items())
    return write(KAFKA_JSON.format(format=name, keys=keys, options=given))


@pytest.mark.parametrize("keys", [FIELDS_OF_VALUES, "    sampleValues: 10"])
def test_kafkajson_takes_the_options_of_json_values(write, keys):
    given = {"badRecords": "divert", "nullValues": "drop", "unknownFields": "keep"}
    (job,) = load(kafka_json(write, keys, **given, timeZone="Europe/Berlin")).jobs
    columns = add_json_options(job.inputs[0].place.options, "id BIGINT, offset STRING")["columns"]
    assert columns.split(",") == [
        "key", "value", "topic", "partition", "timestamp", "timestampType", "id", "offset",
        "_raw", "_error", "_unknown",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"keys": ""}, {"badRecords": "divert"}, "give 'schema', as 'id BIGINT, name STRING', or"),
        ({"keys": "    schema: _raw BINARY"}, {}, "'_raw' is among the fields"),
        ({"keys": "    schema: id BIGINT, m MAP<INT, INT>"}, {}, "'m' is a MAP with keys of type"),
        ({"keys": "    schema: id BIGNUM"}, {}, "a type"),
        ({}, {"epochUnit": '{"when": "ms"}'}, "names 'when'"),
        ({}, {"columns": "ids"}, "did you mean 'id'"),
        ({"name": "kafka"}, {"valueFormat": "json", "badRecords": "divert"}, "needs a column _raw"),
        ({"name": "kafka", "keys": ""}, {"valueFormat": "json"}, "must be given"),
        ({"name": "kafka"}, {}, "column 'id', which Kafka does not have"),
    ],
)
def test_columns_that_the_run_would_refuse_are_mistakes(write, given, options, message):
    assert any(message in line for line in refused(kafka_json(write, **given, **options)))


def test_a_schema_with_a_type_that_only_spark_knows_is_left_to_spark(write):
    load(kafka_json(write, "    schema: at TIME(3), value STRING", "kafka"))
