"""What a release is refused for."""

import pytest
from wheels import ROOT

from release import artefacts
from release.artefacts import build, check_files, clean_copy, declared, version
from release.steps import Refused, output
from release.trial import first_example


def test_the_version_stands_in_one_place():
    number = version()
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
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "tag.gpgSign=false")
    for command in (
        ["init", "--quiet"],
        [*who, "commit", "--quiet", "--allow-empty", "--message", "x"],
        [*who, "tag", "v1.2.3"],
    ):
        output(["git", *command], cwd=tmp_path)
    monkeypatch.setattr(artefacts, "ROOT", tmp_path)
    with pytest.raises(Refused, match=r"has the tags \['v1.2.3'\]"):
        version()


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
