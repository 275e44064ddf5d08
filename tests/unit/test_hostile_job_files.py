"""Job files of strangers: bounded time and memory, no value of a variable shown, nothing run."""

import json
import os
import resource
import subprocess
import sys
import time

import pytest
import yaml

from krishiv_spark.errors import ManifestError
from krishiv_spark.jobs import load
from krishiv_spark.jobs.variables import Variables
from krishiv_spark.jobs.yaml_nodes import Problems, read_yaml
from krishiv_spark.options.references import read_small, resolve

JOB = """
inputs: [{name: rows, format: krishiv-parquet, options: {path: /data/in}}]
outputs: [{name: rows, format: krishiv-parquet, options: {path: /data/out}}]
"""
LAKE = "dataset: 'dataos://lake:db/t'"
MEMORY = 2 * 2**30


@pytest.fixture
def write(tmp_path):
    def written(text, name="job.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        return tmp_path / name

    return written


def refused(file, **given):
    with pytest.raises(ManifestError) as caught:
        load(file, **given)
    assert caught.value.__cause__ is None
    return caught.value.lines


def validate(file, environment=None, *arguments):
    """The command, in a process that may take 2 GiB and a minute."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    return subprocess.run(
        [sys.executable, "-m", "krishiv_spark", "validate", str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=limit,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def levels(first, each, count=11):
    """A bomb: each level has ten of the one before."""
    made = [f"a0: &a0 {first}"]
    made += [f"a{n}: &a{n} {each.format(','.join([f'*a{n - 1}'] * 10))}" for n in range(1, count)]
    return "\n".join(made)


# --- bombs

BOMBS = {
    "lists of aliases": levels("[x,x,x,x,x,x,x,x,x,x]", "[{}]"),
    "merges of merges": levels("{a: 1, b: 2, c: 3, d: 4, e: 5}", "{{<<: [{}]}}"),
    "one long text, often": f"a: &a {'x' * 100_000}\nb: [{'*a,' * 5000}]",
    "many values": f"a: [{'x,' * 300_000}]",
    "many keys": "".join(f"key{n}: 1\n" for n in range(60_000)),
}


@pytest.mark.long
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_before_it_takes_time_or_memory(write, bomb):
    begun = time.process_time()
    (line,) = refused(write(bomb))
    assert "more than 10000 values here, with each alias in full" in line
    assert time.process_time() - begun < 10


@pytest.mark.long
def test_a_bomb_ends_the_command_as_any_mistake_does(write):
    done = validate(write(levels("[x,x,x,x,x,x,x,x,x,x]", "[{}]", 9)))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert ":1:6: there are more than 10000 values" in done.stderr or ":1:" in done.stderr


DEEP = {
    "brackets": "a: " + "[" * 5000,
    "braces": "a: " + "{b: " * 5000,
    "a list of itself": "a: &a [*a]",
    "a mapping of itself": "a: &a {b: *a}",
    "merged into itself": "a: &a\n  b: 1\n  <<: *a",
    "merged in turns": "a: &a {b: &b {<<: *a, c: *b}}",
    "as a key": "? " + "[" * 5000,
}


@pytest.mark.long
@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_values_are_a_mistake_with_its_place(write, text):
    (line,) = [one for one in refused(write(text)) if "levels deep" in one]
    assert int(line.split(":")[1]) in {1, 2, 3}


NO_YAML = {
    "a number no character has": ('a: "\\U00110000"', "1:"),
    "a version of 5000 digits": (f"%YAML 1.{'9' * 5000}\n---\na: 1", "1:"),
    "an escape sequence": ("a: 1\nb: \x1b[31mred", "2:4: this is no YAML: it contains the character U+001B"),  # noqa: E501
    "a control character of C1": ("a: \x9b31m", "1:4: this is no YAML: it contains the character U+009B"),  # noqa: E501
    "half a character": ("a: \ud800", "cannot be read"),
    "a NUL": ("a: \0", "U+0000"),
    "an anchor twice": ("a: &a 1\nb: &a 2", "2:4: this is no YAML: found duplicate anchor"),
    "an alias of nothing": ("a: *b", "undefined alias"),
    "a key that is a list": ("? [a]\n: b", "a key must be a text"),
    "a merge of a text": ("a: {<<: b}", "1:9: '<<' merges a mapping"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), NO_YAML.values(), ids=NO_YAML)
def test_what_yaml_cannot_read_is_a_mistake_with_its_place(write, text, said):
    assert any(said in line for line in refused(write(text)))


def test_numbers_that_explode_are_texts_or_mistakes(write):
    digits = "9" * 5000
    file = write(
        f"{JOB}timeout: 1e999999999\nstopAfterIdle: 190:20:30.15\nshowPreviewLines: {digits}\n"
        f"graceTime: {digits} days\nrestart: {{pause: 999999999999999999 weeks, attempts: 1e9}}\n"
    )
    lines = refused(file)
    assert sorted(int(line.rsplit(".yaml:", 1)[1].split(":")[0]) for line in lines) == [
        4, 5, 6, 7, 8, 8,
    ]  # fmt: skip
    assert any("'pause': '999999999999999999 weeks' is longer than 100 years" in s for s in lines)
    assert all(len(line) < 3000 for line in lines)


def test_merged_keys_are_those_that_yaml_means(write):
    text = (
        "a: &a {one: a, two: a}\nb: &b {two: b, three: b}\n"
        "c: {<<: [*a, *b], one: own}\nd: {<<: *a}\ne: {two: own, <<: *b}\nf: {'<<': text}\n"
    )
    found = read_yaml(write(text).read_text(), Problems("f"), lambda text, *_: text).plain()
    assert found["c"] == {"one": "own", "two": "a", "three": "b"}
    assert found["d"] == {"one": "a", "two": "a"}
    assert found["e"] == {"two": "own", "three": "b"}
    assert found["f"] == {"<<": "text"}


def test_an_alias_of_a_collection_is_an_honest_value(write):
    text = f"{JOB}spark: &spark {{a: b}}\nx: *spark"
    (line,) = refused(write(text))
    assert "unknown key 'x'" in line
    shared = JOB.replace("options: {path: /data/in}", "options: &o {path: /data}")
    shared = shared.replace("options: {path: /data/out}", "options: *o")
    (job,) = load(write(shared)).jobs
    assert job.outputs[0].place.options == {"path": "/data"}


def test_tags_run_nothing(write, tmp_path):
    text = f"name: !!python/object/apply:os.system ['touch {tmp_path}/ran']\n{JOB}"
    assert refused(write(text))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["job.yaml", "depots.yaml"])
def test_a_file_larger_than_a_mebibyte_is_not_read(write, name):
    write(JOB)
    write(f"{JOB}\n#{'x' * 2**20}", name)
    (line,) = refused(write(JOB) if name == "depots.yaml" else write(f"#{'x' * 2**20}"))
    assert f"{name}: cannot be read: it is larger than 1048576 bytes" in line


def test_a_device_without_an_end_is_not_read(tmp_path):
    (tmp_path / "job.yaml").symlink_to("/dev/zero")
    (line,) = refused(tmp_path / "job.yaml")
    assert "is larger than 1048576 bytes" in line
    with pytest.raises(ValueError, match="is larger than 1048576 bytes"):
        resolve("${file:/dev/zero}")


def test_a_secret_without_an_end_is_a_mistake_of_the_depots(write):
    write("depots: {lake: {options: {token: {file: /dev/zero}}}}", "depots.yaml")
    (line,) = refused(write(JOB))
    assert "/dev/zero cannot be read: it is larger than 1048576 bytes" in line


def test_files_are_read_with_any_ends_of_lines(tmp_path):
    (tmp_path / "file").write_bytes(b"a\r\nb\rc\n")
    assert read_small(tmp_path / "file") == "a\nb\nc\n" == (tmp_path / "file").read_text()


@pytest.mark.long
def test_values_of_variables_cannot_make_a_text_of_any_length(write, monkeypatch):
    monkeypatch.setenv("LONG", "x" * 100_000)
    lines = refused(write(f"{JOB}spark: {{a: '{'${LONG}' * 100_000}'}}"))
    assert any("variables make more than 16777216 characters" in line for line in lines)


@pytest.mark.long  # 8 s
def test_thousands_of_mistakes_end_soon(write):
    names = ",".join(f"a_name_of_no_view{n}" for n in range(1500))
    views = "".join(f"  - {{name: a_name_of_a_view{n}}}\n" for n in range(1500))
    step = f"steps: [{{name: s, python: 'a:b', inputs: [{names}]}}]"
    begun = time.process_time()
    lines = refused(write(f"inputs:\n{views}{step}\noutputs: [{{name: s}}]"))
    assert len(lines) == 500
    assert time.process_time() - begun < 30


# --- values of variables

SECRETS = {
    "PLAIN": "CANARY-plain",
    "LIST": "CANARY-one,CANARY-two:x",
    "LINES": "CANARY line 1\nCANARY line 2 '\"\\",
    "ADDRESS": "CANARYdepot:CANARYcollection/CANARYset?CANARYquery",
    "URL": "sft://CANARYuser:CANARYpassword@CANARYhost/CANARYpath",
    "JSON_TEXT": '{"CANARYtopic": {"0": "CANARYoffset"}}',
    "OTHER": "${PLAIN} ${env:PLAIN} CANARY",
    "ESCAPES": "CANARY\x1b[31m\u202e\u2028red",
    "MANY": "CANARY" * 1000,
}
PLACES = """
name: {value}
logLevel: {value}
timeout: {value}
explain: {value}
showPreviewLines: {value}
streaming: {{triggerMode: {value}, triggerDuration: {value}, checkpointLocation: {address}}}
inputs:
  - {{name: {value}, format: {value}}}
  - {{name: a, format: {value}, isStream: {value}}}
  - {{name: b, dataset: {address}}}
  - {{name: c, dataset: {value}}}
  - {{name: d, format: krishiv-{value}, options: {{path: x}}}}
  - name: k
    format: krishiv-kafka
    options: {{kafka.bootstrap.servers: {value}, startingOffsets: {value}, subscribe: a}}
  - {{name: p, format: krishiv-parquet, options: {{path: {value}, maxFilesPerTrigger: {value}}}}}
  - {{name: q, format: krishiv-parquet, options: {{path: {value}, path: x{value}y}}}}
  - {{name: i, format: iceberg, options: {{path: {value}, catalog.uri: {value}, table: {value}}}}}
  - {{name: z, format: krishiv-parquet, sampleValues: {value}, watermark: {{delay: {value}}}}}
steps:
  - {{name: s, python: {value}}}
  - {{name: t, python: 'a:b', inputs: [{value}, a]}}
  - {{name: {value}, sql: {value}}}
outputs:
  - {{name: a, view: {value}, format: krishiv-parquet, options: {{path: {value}}}}}
  - {{name: b, format: krishiv-parquet, saveMode: {value}, outputMode: {value}}}
  - {{name: c, format: {nested}, keys: {value}, partitionBy: {value}, sort: {value}}}
  - {{name: d, dataset: {address}, checkpointLocation: {value}}}
  - {{name: e, view: k, format: krishiv-fanout, options: {{routes: {value}, targets: {value}}}}}
  - {{name: {value}, format: krishiv-console, options: {{numRows: {value}}}}}
"""


def written(name):
    quoted = json.dumps(f"${{{name}}}")
    return PLACES.format(
        value=quoted, address=json.dumps(f"dataos://${{{name}}}/a"), nested=f"'${{A${{{name}}}}}'"
    ).replace('krishiv-"', '"krishiv-').replace('x"', '"x').replace('"y', 'y"')  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_a_mistake_shows_the_name_of_a_variable_and_never_its_value(write, monkeypatch, name):
    for each, value in SECRETS.items():
        monkeypatch.setenv(each, value)
    lines = refused(write(written(name)))
    assert len(lines) >= 5
    assert not [line for line in lines if "canary" in line.lower()]
    assert any(f"${{{name}}}" in line for line in lines)


@pytest.mark.long  # 9 processes
@pytest.mark.parametrize("name", SECRETS)
def test_the_command_shows_no_value_either(write, name):
    done = validate(write(written(name)), SECRETS)
    assert done.returncode == 2
    assert "canary" not in (done.stdout + done.stderr).lower()
    assert f"${{{name}}}" in done.stderr


def test_a_value_that_was_given_on_the_command_line_is_hidden_too(write):
    (line,) = refused(write("name: x\ntimeout: ${T}\n" + JOB), variables={"T": "hunter22"})
    assert "'timeout': '${T}' is not a number and a unit" in line


def test_values_of_depots_are_hidden_in_mistakes_of_the_job(write, monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2")
    write(
        "depots: {lake: {format: krishiv-iceberg, options: {catalog.uri: {env: TOKEN}, "
        "catalog.token: {env: TOKEN}, formatVersion: {env: TOKEN}}}}",
        "depots.yaml",
    )
    text = JOB.replace("format: krishiv-parquet, options: {path: /data/in}", LAKE)
    lines = refused(write(text))
    assert lines
    assert "hunter2" not in "".join(lines)


def test_notes_show_no_value(write, monkeypatch):
    monkeypatch.setenv("QUERY", "acl=CANARY")
    write("depots: {files: {format: krishiv-parquet, folder: /data}}", "depots.yaml")
    text = JOB.replace(
        "format: krishiv-parquet, options: {path: /data/in}",
        "dataset: 'dataos://files:a/b?${QUERY}'",
    )
    notes = load(write(text)).notes
    assert any("?${QUERY}" in note for note in notes)
    assert "CANARY" not in "".join(notes)


def test_what_is_printed_while_a_job_runs_shows_no_value(write, monkeypatch):
    monkeypatch.setenv("PASSWORD", "hunter2 'x'\nsecond line")
    monkeypatch.setenv("ON", "true")
    monkeypatch.setenv("N", "7")
    loaded = load(write(JOB + "spark: {a: '${PASSWORD}', b: '${ON}', c: '${N}'}"))
    error = "[X] at 7 of hunter2 'x' and HUNTER2 'X'\nsecond line; second line is true"
    assert loaded.redact(error) == "[X] at 7 of ${PASSWORD} and ${PASSWORD}; ${PASSWORD} is true"
    assert loaded.redact(json.dumps("hunter2 'x'\nsecond line")) == '"${PASSWORD}"'
    assert loaded.redact(repr("hunter2 'x'\nsecond line")) == '"${PASSWORD}"'
    assert loaded.redact("hunter2%20%27x%27%0Asecond%20line") == "${PASSWORD}"


def test_honest_messages_stay_readable(write, monkeypatch):
    """A value that is a word of our messages hides neither keys nor hints."""
    monkeypatch.setenv("FOLDER", "/data/name/timeout")
    monkeypatch.setenv("MODE", "append")
    lines = refused(write("name: ${FOLDER}\ntimeout: 3\nsaveMod: ${MODE}\n" + JOB))
    assert any("'timeout': 3 has no unit" in line for line in lines)
    assert any("unknown key 'saveMod'" in line for line in lines)


def test_hiding_is_of_what_was_used_only():
    values = Variables({}, {"A": "first", "B": "second", "EMPTY": ""})
    values.substitute("${A} ${EMPTY} ${C:-default}")
    assert values.hide("first second default") == "${A} second default"
    assert values.substitute("$${A}") == "${A}"


def test_values_in_keys_are_not_put_in(write, monkeypatch):
    monkeypatch.setenv("KEY", "CANARY")
    (line,) = refused(write(JOB + "'${KEY}': 1"))
    assert "unknown key '${KEY}'" in line


# --- what validate does

AUDITED = """
import json, os, sys
seen = {"open": [], "others": []}
def heard(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        seen["open"].append(os.path.abspath(os.fsdecode(arguments[0])))
    elif event.startswith(("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.bind")):
        seen["others"].append(event)
    elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"):
        seen["others"].append(event)
sys.addaudithook(heard)
from krishiv_spark.cli import main
code = 0
try:
    main(["validate", *sys.argv[1:]])
except SystemExit as end:
    code = end.code
print(json.dumps({**seen, "code": code, "modules": {
    name: getattr(module, "__file__", None) for name, module in sys.modules.items()}}))
"""


@pytest.mark.long
def test_validate_opens_nothing_but_the_files_it_is_given_and_runs_nothing(tmp_path):
    folder, cwd = tmp_path / "job", tmp_path / "cwd"
    folder.mkdir()
    cwd.mkdir()
    for name in ("pandas", "pyspark_x", "mine", "kafka", "krishiv_spark_x", "sitecustomize"):
        for home in (folder, cwd):
            (home / f"{name}.py").write_text("raise SystemExit('imported')")
    secret = tmp_path / "secret"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    secret.write_text(f'{module} required username="u" password="hunter2";')
    (folder / "depots.yaml").write_text(
        "depots:\n  broker: {format: krishiv-kafka, options: {"
        "kafka.bootstrap.servers: '127.0.0.1:1', "
        "kafka.security.protocol: SASL_SSL, kafka.sasl.mechanism: PLAIN, "
        f"kafka.sasl.jaas.config: {{file: {secret}}}}}}}\n"
        "  lake: {format: krishiv-iceberg, options: {warehouse: /nowhere/at/all}}\n"
    )
    (folder / "job.yaml").write_text(
        "inputs:\n  - {name: a, dataset: 'dataos://broker:default/t', isStream: true}\n"
        "  - {name: s3, format: krishiv-parquet, options: {path: 's3://127.0.0.1/x'}}\n"
        f"steps: [{{name: b, python: 'mine:function', inputs: [a]}}]\n"
        "outputs:\n  - {name: b, dataset: 'dataos://lake:db/t'}\n"
        f"streaming: {{checkpointLocation: '{folder}/checkpoint'}}\n"
    )
    script = (
        tmp_path / "scripts" / "krishiv-spark"
    )  # as pip installs it: in no folder of the user's
    script.parent.mkdir()
    script.write_text(AUDITED)
    command = [sys.executable, str(script), str(folder / "job.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["code"] == 0, done
    assert seen["others"] == []
    own = {path for path in seen["open"] if path.startswith(str(tmp_path))}
    assert own == {str(folder / "job.yaml"), str(folder / "depots.yaml"), str(secret)}
    here = {file for file in seen["modules"].values() if file and file.startswith(str(tmp_path))}
    assert here == {str(script)}
    assert not (folder / "checkpoint").exists()


def test_yaml_is_the_library_s(write):
    """Test that other texts are parsed as by PyYAML, whose composer the reader bounds."""
    text = "a: [1, {b: c}]\nd: |\n  two\n  lines\ne: 'x'\nf: &x {g: h}\ni: *x\n"
    assert read_yaml(text, Problems("f"), lambda text, *_: text).plain() == yaml.safe_load(
        write(text).read_text()
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ["${a:-" * 200_000, "${env:" * 170_000], ids=["variables", "references"]
)
def test_beginnings_without_an_end_take_linear_time(write, text):
    begun = time.process_time()
    refused(write(f"unknown: {text}\n"))
    resolve(text)
    assert time.process_time() - begun < 20


def test_escaped_quotes_without_an_end_take_linear_time():
    values = Variables({}, {"A": "some value"})
    values.substitute("${A}")
    begun = time.process_time()
    assert values.hide("'" + r"\'" * 500_000).startswith("'")
    assert time.process_time() - begun < 20


def test_the_end_of_a_text_is_taken_as_before():
    values = Variables({"A": "1"}, {})
    assert values.substitute("$${A} ${A} $${B") == "${A} 1 ${B"
    assert values.substitute("${A:-x ${A}} ${A:-") == "1} ${A:-"
    assert resolve("${env:A") == "${env:A"
