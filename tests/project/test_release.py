"""The reasons for which a release is refused."""

import re
import sys
import tarfile
import zipfile

import pytest
from wheels import ROOT, commit_all, run_git

from release import artefacts
from release.artefacts import (
    build,
    check_contents,
    check_files,
    clean_copy,
    declared,
    version,
)
from release.audit import read_report
from release.licences import EXCEPTIONS, check_licences, is_allowed
from release.steps import Refused
from release.trial import first_example


@pytest.fixture
def checkout(committed_clone, monkeypatch):
    """The checkout that a release is made from."""
    monkeypatch.setattr(artefacts, "ROOT", committed_clone)
    return committed_clone


def names_in(dist):
    for path in dist.iterdir():
        if path.suffix == ".whl":
            yield from zipfile.ZipFile(path).namelist()
        else:
            with tarfile.open(path) as archive:
                yield from archive.getnames()


def test_the_version_stands_in_one_place():
    number = declared((ROOT / "pyproject.toml").read_text())
    for path in (*ROOT.glob("krishiv_spark/*.py"), ROOT / "README.md", ROOT / "mkdocs.yml"):
        assert f'"{number}"' not in path.read_text(), path


@pytest.mark.parametrize(
    "text",
    ["", 'version = "1.2.3"\nversion = "1.2.4"\n', 'version = "one"\n', 'version = "1.02"\n'],
)
def test_a_version_that_is_none_is_refused(text):
    with pytest.raises(Refused, match=r"version|one"):
        declared(text)


def test_a_changelog_of_another_version_is_refused(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('version = "1.2.4"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-11-25)\n")
    monkeypatch.setattr(artefacts, "ROOT", tmp_path)
    with pytest.raises(Refused, match=r"begins with '1.2.3"):
        version()


def test_a_tag_of_another_version_is_refused(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('version = "1.2.4"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    run_git(tmp_path, "init", "--quiet")
    commit_all(tmp_path)
    run_git(tmp_path, "-c", "tag.gpgSign=false", "tag", "v1.2.3")
    monkeypatch.setattr(artefacts, "ROOT", tmp_path)
    with pytest.raises(Refused, match=r"has the tags \['v1.2.3'\]"):
        version()


@pytest.mark.long  # builds wheels
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("krishiv_spark/notes_with_password.txt", "secret"),
        (".env", "TOKEN=secret"),
        ("README.md", "another text"),
    ],
)
def test_a_checkout_with_what_is_not_committed_is_refused(checkout, name, text):
    assert version() == declared((checkout / "pyproject.toml").read_text())
    (checkout / name).write_text(text)
    with pytest.raises(Refused, match=rf"not committed \(.*{name}.*commit it, remove it"):
        version()


@pytest.mark.long  # builds a wheel
def test_a_release_is_built_from_the_files_of_the_commit(checkout, tmp_path):
    (checkout / "krishiv_spark/notes_with_password.txt").write_text("secret")
    (checkout / "krishiv_spark/derby.log").write_text("secret, and ignored by git")
    changed = checkout / "krishiv_spark/cli.py"
    committed = changed.read_text()
    changed.write_text(f"{committed}\n# not committed\n")
    source = clean_copy(tmp_path / "source")
    assert (source / "krishiv_spark/cli.py").read_text() == committed
    assert (source / "krishiv_spark/sinks").is_symlink()
    dist = build(source, tmp_path / "dist")
    check_contents(dist, source)
    names = list(names_in(dist))
    assert [name for name in names if "notes" in name or name.endswith((".log", ".env"))] == []
    assert sum(name.endswith("krishiv_spark/sinks/base.py") for name in names) == 2


@pytest.mark.long  # builds a wheel
@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("artefact", ["*.whl", "*.tar.gz"])
def test_a_file_that_git_does_not_know_is_refused(tmp_path, artefact):
    source = clean_copy(tmp_path / "source")
    (source / "krishiv_spark/sinks/notes.txt").write_text("secret")
    dist = build(source, tmp_path / "dist")
    for path in dist.iterdir():
        if not path.match(artefact):
            path.unlink()
    with pytest.raises(Refused, match=r"1 files that git does not know: .*sinks/notes\.txt"):
        check_contents(dist, source)


@pytest.mark.long  # builds a wheel
@pytest.mark.usefixtures("checkout")
def test_a_wheel_with_what_does_not_belong_there_is_refused(tmp_path):
    source = clean_copy(tmp_path / "source")
    (source / "krishiv_spark" / "left.pyc").write_text("")
    project = source / "pyproject.toml"
    project.write_text(
        project.read_text().replace(
            'dev-mode-dirs = [".", "discovery"]',
            'dev-mode-dirs = [".", "discovery"]\nartifacts = ["*.pyc"]',
        )
    )
    dist = build(source, tmp_path / "dist")
    with pytest.raises(Refused, match=r"W001|left\.pyc"):
        check_files(dist)


def test_the_first_example_is_the_script_that_is_followed_by_what_it_prints():
    text = "```python\nx\n```\n\nWords.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
    assert first_example(text) == ("print(1)\n", "1\n")
    with pytest.raises(Refused, match="no script"):
        first_example("```python\nx\n```\n")


def test_the_readme_has_one():
    code, printed = first_example((ROOT / "README.md").read_text())
    assert "krishiv-parquet" in code
    assert printed.startswith("[Row(")


def test_a_known_vulnerability_is_refused_and_a_service_that_knows_nothing_is_none():
    sound = {"name": "a", "version": "1", "vulns": []}
    unknown = {"name": "b", "skip_reason": "Dependency not found"}
    fault = {"id": "PYSEC-1", "fix_versions": ["2.1"]}
    assert read_report("osv", [unknown]) == ""
    assert read_report("osv", [sound, unknown]).endswith(
        "nothing known of 1 packages; unknown to it: b"
    )
    with pytest.raises(Refused, match=r"\(osv\): a 1: PYSEC-1, fixed in 2\.1"):
        read_report("osv", [{**sound, "vulns": [fault]}, unknown])


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("BSD-2-Clause AND Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND BSD-3-Clause", False),
        ("GNU Lesser General Public License v2 or later (LGPLv2+)", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_by_its_expression(expression, allowed):
    assert is_allowed(expression) is allowed


def test_a_package_without_an_allowed_licence_is_refused():
    """The environment of the tests has tools with other licences, which users do not install."""
    with pytest.raises(Refused) as refused:
        check_licences(sys.executable)
    assert "psycopg2-binary (" in str(refused.value)
    assert not [name for name in EXCEPTIONS if f"{name} (" in str(refused.value)]
    assert "pyarrow (" not in str(refused.value)


def test_each_promise_about_security_names_tests_that_are_there():
    rows = [line.split("|") for line in (ROOT / "SECURITY.md").read_text().splitlines()]
    promises = [
        row for row in rows if len(row) == 6 and "never" not in row[2] and "---" not in row[2]
    ]
    assert len(promises) > 15
    for _, _, _, shown_by, *_ in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)`", shown_by)
        assert named
        assert [path for path in named if not (ROOT / path).is_file()] == []
