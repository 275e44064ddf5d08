"""The documentation as a site: whole, without dead links, and nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from wheels import ROOT

from docs.site.__main__ import build, fetched
from docs.site.pages import BrokenLink, rewritten
from docs.site.performance import performance_page


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, as ``./run site`` makes it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "docs.site", "--out", folder / "html"]
    done = subprocess.run(
        [*command, "--pages", folder / "pages"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long  # builds the site
def test_each_page_of_the_navigation_is_there(site):
    listed = re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    for name in listed:
        page = name.removesuffix(".md").replace("README", "index")
        assert "<h1" in (site / "html" / f"{page}.html").read_text()
    assert len(listed) > 25


@pytest.mark.long  # builds the site
def test_the_first_page_has_the_drawing_as_a_part_of_it(site):
    assert '<svg xmlns="http://www.w3.org/2000/svg"' in (site / "html/index.html").read_text()


@pytest.mark.long  # builds the site
def test_links_of_the_repository_are_links_of_the_site(site):
    page = (site / "html/design.html").read_text()
    assert 'href="model/index.html"' in page
    assert (site / "html/examples/flights.ipynb").is_file()


@pytest.mark.long  # builds the site
def test_public_names_are_described(site):
    for page, names in (("api", ["memory_source", "each_batch"]), ("api-authors", ["Writer"])):
        text = (site / f"html/{page}.html").read_text()
        assert all(re.search(rf'id="krishiv_spark[\w.]*\.{name}"', text) for name in names)


def test_what_would_be_fetched_from_elsewhere_is_found(tmp_path):
    page = '<script src="https://cdn.example.com/x.js"></script><a href="https://example.com">x</a>'
    (tmp_path / "index.html").write_text(page)
    (found,) = fetched(tmp_path)
    assert "cdn.example.com" in found


def test_a_link_to_a_file_that_is_not_there_is_an_error():
    with pytest.raises(BrokenLink, match=r"docs/a.md links ../nothing.md"):
        rewritten("See [it](../nothing.md).\n", "docs/a.md")


def test_links_in_code_are_left_alone():
    text = "```python\n[x](../nothing.md)\n```\n"
    assert rewritten(text, "docs/a.md") == (set(), text)


@pytest.mark.parametrize(
    ("page", "link", "of_the_site"),
    [
        ("docs/kafka.md", "secrets.md#references", "secrets.md#references"),
        ("CHANGELOG.md", "docs/kafka.md", "kafka.md"),
        ("docs/design.md", "../model/README.md", "model/README.md"),
        ("model/README.md", "../docs/design.md", "../design.md"),
        ("docs/index.md", "../README.md", "index.md"),
        ("docs/kafka.md", "https://example.com/x.md", "https://example.com/x.md"),
    ],
)
def test_a_link_leads_where_it_led(page, link, of_the_site):
    assert rewritten(f"[x]({link})\n", page) == (set(), f"[x]({of_the_site})\n")


def test_a_link_that_shows_the_name_of_a_file_shows_that_of_the_page():
    _, page = rewritten(
        "See [docs/kafka.md](docs/kafka.md#sink), [it](docs/kafka.md).\n", "README.md"
    )
    assert page == "See [kafka](kafka.md#sink), [it](kafka.md).\n"


def test_plots_come_before_the_text():
    page = performance_page((ROOT / "docs/performance.md").read_text())
    order = [page.index(part) for part in ("# Performance", "<svg", "## Ratios")]
    assert order == sorted(order)


def test_an_anchor_that_leads_nowhere_is_an_error(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("# One\n\n[x](#nowhere)\n")
    config = yaml.unsafe_load((ROOT / "mkdocs.yml").read_text().replace("!ENV", ""))
    config |= {"docs_dir": str(pages), "site_dir": str(tmp_path / "html"), "plugins": []}
    for name in ("nav", "theme", "markdown_extensions", "extra_css"):
        del config[name]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", tmp_path / "mkdocs.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "#nowhere" in done.stderr


@pytest.mark.long
def test_a_dead_anchor_fails_the_build_of_the_whole_site(site, tmp_path):
    pages = tmp_path / "pages"
    shutil.copytree(site / "pages", pages)
    with (pages / "glossary.md").open("a") as page:
        page.write("\n[x](errors.md#nowhere)\n")
    assert build(pages, tmp_path / "html") == 1
