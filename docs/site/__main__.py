"""Makes the site: ``python -m docs.site``, without network.

The pages are gathered in a folder (`pages`), from which MkDocs makes a site. A link or an anchor
that leads nowhere is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from docs.site.pages import ROOT, BrokenLink, gather

__all__ = ["main"]

_WORK = ROOT / ".krishiv" / "site"
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|link(?=[^>]*rel="?(?:stylesheet|preload|preconnect|icon)))"""
    r"""[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'\s>]+"""
)
"""Parts of a page that a browser would load from another host."""


def main(arguments: list[str]) -> int:
    """Gather the pages, and build.

    Returns:
        The exit code: 1 for a link that leads nowhere, or a page that loads parts from other hosts.
    """
    parser = argparse.ArgumentParser(prog="./run site", description=__doc__)
    parser.add_argument("--out", type=Path, default=_WORK / "html", help="folder for the site")
    parser.add_argument(
        "--pages", type=Path, default=_WORK / "pages", help="folder for the gathered pages"
    )
    given = parser.parse_args(arguments)
    try:
        gather(given.pages)
    except BrokenLink as broken:
        print(broken, file=sys.stderr)  # noqa: T201
        return 1
    if status := build(given.pages, given.out):
        return status
    for found in (elsewhere := sorted(fetched(given.out))):
        print(f"fetched from elsewhere: {found}", file=sys.stderr)  # noqa: T201
    print(f"open {given.out / 'index.html'}")  # noqa: T201
    return int(bool(elsewhere))


def build(pages: Path, out: Path) -> int:
    """Run MkDocs on the gathered pages, and return its exit code; its output is shown if it fails.

    Its option ``--quiet`` would drop warnings before ``--strict`` counts them.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    done = subprocess.run(  # noqa: S603  MkDocs
        [*command, "--config-file", ROOT / "mkdocs.yml", "--site-dir", out.absolute()],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "KRISHIV_SITE_PAGES": str(pages.absolute())},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)  # noqa: T201
    return done.returncode


def fetched(out: Path) -> set[str]:
    """Return the parts of a site's pages that come from another host."""
    return {
        f"{page.relative_to(out)}: {found}"
        for page in out.rglob("*.html")
        for found in _FETCHED.findall(page.read_text())
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
