"""Jars are used only if they are those that this package knows."""

import hashlib
import re
import shutil

import pytest
from wheels import ROOT

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev import maven
from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION
from krishiv_spark.kafka.dev.maven import Jar, bring

JARS = {"one-1.0.jar": b"of the first", "two-2.0.jar": b"of the second"}
WANTED = [Jar("org.example", "one", "1.0")]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache, and a package that knows one folder with two jars."""
    hashes = tmp_path / "jars.sha256"
    lines = [f"{hashlib.sha256(data).hexdigest()}  some-1.0/{name}" for name, data in JARS.items()]
    hashes.write_text("\n".join(lines))
    monkeypatch.setattr(maven, "_HASHES", hashes)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "krishiv-spark"


@pytest.fixture
def folder(cache):
    there = cache / "some-1.0"
    there.mkdir(parents=True)
    for name, data in JARS.items():
        (there / name).write_bytes(data)
    return there


def test_known_jars_are_used(folder):
    assert bring("some-1.0", WANTED, transitive=False) == folder


def test_a_jar_that_was_changed_in_the_cache_is_refused_also_by_a_process_that_has_used_it(folder):
    bring("some-1.0", WANTED, transitive=False)
    (folder / "two-2.0.jar").write_bytes(b"of a stranger")
    with pytest.raises(
        KrishivError, match=r"some-1\.0/two-2\.0\.jar has the SHA-256 .* instead of"
    ):
        bring("some-1.0", WANTED, transitive=False)
    shutil.copy(folder / "one-1.0.jar", folder / "two-2.0.jar")
    with pytest.raises(KrishivError, match=rf"Delete {re.escape(str(folder))} if it exists"):
        bring("some-1.0", WANTED, transitive=False)


def test_a_folder_with_other_jars_is_refused(folder):
    (folder / "three-3.0.jar").write_bytes(b"of a stranger")
    with pytest.raises(KrishivError, match=r"other files than expected \(three-3\.0\.jar\)"):
        bring("some-1.0", WANTED, transitive=False)
    (folder / "three-3.0.jar").rename(folder / "one-1.0.jar")
    (folder / "two-2.0.jar").unlink()
    with pytest.raises(KrishivError, match=r"other files than expected \(two-2\.0\.jar\)"):
        bring("some-1.0", WANTED, transitive=False)


def test_a_download_of_another_file_is_refused_and_not_kept(cache, monkeypatch):
    def answer(aside, _jars, *, transitive):
        assert not transitive
        (aside / "libs").mkdir()
        for name in JARS:
            (aside / "libs" / name).write_bytes(b"of a stranger")

    monkeypatch.setattr(maven, "_retrieve", answer)  # stands for the server
    with pytest.raises(KrishivError, match="the server sent another file"):
        bring("some-1.0", WANTED, transitive=False)
    assert list(cache.iterdir()) == []


def test_jars_of_an_unknown_version_are_used_with_a_warning(folder):
    folder.rename(folder.with_name("some-1.1"))
    with pytest.warns(UserWarning, match=r"some-1\.1: krishiv-spark has no SHA-256"):
        assert bring("some-1.1", WANTED, transitive=False).name == "some-1.1"


def test_the_table_is_sorted_and_has_the_default_broker():
    lines = (ROOT / "krishiv_spark/kafka/dev/jars.sha256").read_text().splitlines()
    assert lines == sorted(lines, key=lambda line: line.split()[1])
    assert all(
        re.fullmatch(r"[0-9a-f]{64}  [\w.-]+/[\w.-]+\.(?:jar|tar\.gz)", line) for line in lines
    )
    assert any(
        line.endswith(f" kafka-{KAFKA_VERSION}/kafka_2.13-{KAFKA_VERSION}.jar") for line in lines
    )


def test_the_lock_of_npm_has_a_hash_of_each_package_and_no_address():
    text = (ROOT / "servers/azurite/package-lock.json").read_text()
    packages = len(re.findall(r'^    "node_modules/', text, re.MULTILINE))
    assert packages > 100
    assert len(re.findall(r'^      "integrity": "sha512-', text, re.MULTILINE)) == packages
    assert '"resolved"' not in text
    assert "registry" not in text
