"""Which files of the repository become which pages, and their links.

Pages are read on GitHub too, so they link each other, and files, as they lie in the repository. In
the site, those of ``docs/`` lie at the top; a file that is linked and is no page comes along.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from docs.site.performance import performance_pages, report

__all__ = ["ROOT", "BrokenLink", "gather", "place", "rewritten"]

ROOT = Path(__file__).parents[2]
_OWN = ROOT / "docs" / "site"
_PERFORMANCE = "docs/performance.md"
_MADE = {"docs/performance-recorded.md", "docs/report.html"}
_FOLDERS = ("docs", "docs/advisories", "docs/authors", "docs/design", "docs/upstream")
_PATTERNS = (*(f"{folder}/*.md" for folder in _FOLDERS), "model/README.md", "[CRS]*.md")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FILE_NAME = re.compile(r"\[(?:[\w-]+/)*([\w-]+)\.md(?=\]\()")
_DRAWING = re.compile(r"!\[[^\]]*\]\(([\w/-]+\.svg)\)")


class BrokenLink(Exception):  # noqa: N818  it names what the link is
    """A page links a file that is not there."""


def gather(target: Path) -> None:
    """Put all pages, and what they show and link, into a folder, which is emptied before.

    Raises:
        BrokenLink: If a page links a file of the repository that is not there.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    linked: set[str] = set()
    for name, text in _pages():
        files, page = rewritten(text, name)
        linked |= files
        _write(target / place(name), page)
    for name in linked:
        (target / place(name)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target / place(name))
    _write(target / "report.html", report())
    for own in (*_OWN.glob("*.css"), *_OWN.glob("*.md")):
        shutil.copyfile(own, target / own.name)


def _pages() -> Iterator[tuple[str, str]]:
    """Each page by its path in the repository, and its text."""
    for pattern in _PATTERNS:
        for path in ROOT.glob(pattern):
            name = path.relative_to(ROOT).as_posix()
            if name == _PERFORMANCE:
                yield from performance_pages(path.read_text())
            elif name != "README.md":  # docs/index.md is the first page here
                yield name, path.read_text()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def place(name: str) -> str:
    """Where a file of the repository lies in the site, by their paths."""
    return "index.md" if name == "README.md" else name.removeprefix("docs/")


def rewritten(text: str, name: str) -> tuple[set[str], str]:
    """A page whose links are those of the site.

    Args:
        text: As it stands in the repository.
        name: Its path there.

    Returns:
        The files that it links and that are no pages, by their paths in the repository; the text.

    Raises:
        BrokenLink: If it links a file that is not there.
    """
    files: set[str] = set()
    lines, fenced = [], False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        lines.append(line if fenced else _DRAWING.sub(_drawn(name), _relinked(line, name, files)))
    return files, "".join(lines)


def _relinked(line: str, name: str, files: set[str]) -> str:
    def relink(match: re.Match[str]) -> str:
        begin, link, anchor, end = match.groups(default="")
        if ":" in link:
            return match[0]
        wanted = normpath(join(dirname(name), link))
        if wanted not in _MADE and not (ROOT / wanted).is_file():
            raise BrokenLink(f"{name} links {link}, and there is no file {wanted}")
        if not wanted.endswith((".md", ".html")):
            files.add(wanted)
        return f"{begin}{relpath(place(wanted), dirname(place(name)) or '.')}{anchor}{end}"

    return _FILE_NAME.sub(r"[\1", _LINK.sub(relink, line))  # a site has pages, not files


def _drawn(name: str) -> Callable[[re.Match[str]], str]:
    """A drawing as a part of the page, so that it takes the colours that are switched to."""

    def draw(match: re.Match[str]) -> str:
        text = (ROOT / "docs" / normpath(join(dirname(place(name)), match[1]))).read_text()
        return " ".join(line.strip() for line in text.splitlines() if line.strip())

    return draw
