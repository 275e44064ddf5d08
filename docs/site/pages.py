"""The pages of the site: gathered from the repository, with their links rewritten.

Pages are read on GitHub too, so their links are paths of the repository. In the site, the pages of
``docs/`` are at the top; a linked file that is no page is copied.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from docs.site.performance import performance_page

__all__ = ["ROOT", "BrokenLink", "gather", "place", "rewritten"]

ROOT = Path(__file__).parents[2]
_OWN = ROOT / "docs" / "site"
_PERFORMANCE = "docs/performance.md"
_FOLDERS = tuple(f"docs{name}" for name in ("", "/authors", "/design", "/guides"))
_PATTERNS = (
    *(f"{folder}/*.md" for folder in _FOLDERS),
    "benchmarks/README.md",
    "model/README.md",
    "[CRS]*.md",
)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FILE_NAME = re.compile(r"\[(?:[\w-]+/)*([\w-]+)\.md(?=\]\()")
_DRAWING = re.compile(r"!\[[^\]]*\]\(([\w/-]+\.svg)\)")


class BrokenLink(Exception):  # noqa: N818  the name says what is broken
    """A page links a file that does not exist."""


def gather(target: Path) -> None:
    """Copy all pages, and the files that they show and link, into a folder, which is emptied first.

    Raises:
        BrokenLink: If a page links a file of the repository that does not exist.
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
    for own in (*_OWN.glob("*.css"), *_OWN.glob("*.md")):
        shutil.copyfile(own, target / own.name)


def _pages() -> Iterator[tuple[str, str]]:
    """Yield the path in the repository and the text of each page."""
    for pattern in _PATTERNS:
        for path in ROOT.glob(pattern):
            name = path.relative_to(ROOT).as_posix()
            if name == _PERFORMANCE:
                yield name, performance_page(path.read_text())
            elif name != "README.md":  # docs/index.md is the first page here
                yield name, path.read_text()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def place(name: str) -> str:
    """Return the path in the site of a file of the repository."""
    return "index.md" if name == "README.md" else name.removeprefix("docs/")


def rewritten(text: str, name: str) -> tuple[set[str], str]:
    """Rewrite the links of a page to paths of the site.

    Args:
        text: The page, as in the repository.
        name: Its path there.

    Returns:
        The linked files that are no pages, as paths of the repository; and the text.

    Raises:
        BrokenLink: If it links a file that does not exist.
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
        if not (ROOT / wanted).is_file():
            raise BrokenLink(f"{name} links {link}, and there is no file {wanted}")
        if not wanted.endswith(".md"):
            files.add(wanted)
        return f"{begin}{relpath(place(wanted), dirname(place(name)) or '.')}{anchor}{end}"

    return _FILE_NAME.sub(r"[\1", _LINK.sub(relink, line))  # a site has pages, not files


def _drawn(name: str) -> Callable[[re.Match[str]], str]:
    """Return a function that embeds a drawing in a page, so that it follows the colour scheme."""

    def draw(match: re.Match[str]) -> str:
        text = (ROOT / "docs" / normpath(join(dirname(place(name)), match[1]))).read_text()
        return " ".join(line.strip() for line in text.splitlines() if line.strip())

    return draw
