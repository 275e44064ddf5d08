"""Licences of the packages that a user installs with the wheel."""

from __future__ import annotations

import json
import re
from pathlib import Path

from release.steps import Refused, output

__all__ = ["check_licences", "is_allowed"]

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause"),
        *("CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"),
        # Names of classifiers, and what packages without an SPDX expression write instead of one.
        *("Apache 2.0", "Apache License 2.0", "Apache Software License", "BSD License"),
        *("3-Clause BSD License", "BSD", "BSD 3-Clause License", "ISC License (ISCL)"),
        *("MIT License", "Mozilla Public License 2.0 (MPL 2.0)"),
        "Python Software Foundation License",
    }
)
_POSTGRESQL = "the extra `postgresql` only, imported unchanged, not shipped by us"
EXCEPTIONS = {
    "crc32c": "LGPL-2.1-or-later: of the extra `fast` only, imported unchanged, not shipped by us",
    "psycopg": f"LGPL-3.0-only: of {_POSTGRESQL}",
    "psycopg-binary": f"LGPL-3.0-only: of {_POSTGRESQL}",
}
"""Packages with another licence, and the reason why they are allowed."""

_READ = """
import importlib.metadata, json
found = {}
for each in importlib.metadata.distributions():
    of = each.metadata
    classifiers = of.get_all("Classifier", [])
    named = [each.split(" :: ")[-1] for each in classifiers if each.startswith("License ::")]
    text = (of.get("License") or "").strip().splitlines()[:1]
    expression = of.get("License-Expression")
    found[of["Name"]] = [expression] if expression else named or text
print(json.dumps(found))
"""


def check_licences(python: Path) -> dict[str, list[str]]:
    """Return the licences of all packages of an environment, by name.

    Raises:
        Refused: If a package has none, or one outside of `ALLOWED` without an exception.
    """
    found: dict[str, list[str]] = json.loads(output([python, "-c", _READ]))
    refused = [
        f"{name} ({', '.join(stated) or 'none stated'})"
        for name, stated in sorted(found.items())
        if name not in EXCEPTIONS and not (stated and all(map(is_allowed, stated)))
    ]
    if refused:
        raise Refused(f"licences that are not allowed (release/licences.py): {'; '.join(refused)}")
    return found


def is_allowed(expression: str) -> bool:
    """Return True if a licence, or an SPDX expression of several, is allowed.

    One side of an OR suffices, except between parentheses, where each licence has to be allowed.
    """
    if expression in ALLOWED:
        return True
    if "(" in expression:
        named = re.split(r"\s+(?:AND|OR)\s+|[()]", expression)
        return all(each.strip() in ALLOWED for each in named if each.strip())
    sides = expression.split(" OR ")
    return any(all(each in ALLOWED for each in side.split(" AND ")) for side in sides)
