"""Known vulnerabilities of the packages that a user installs with the wheel, by pip-audit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from release.steps import Refused

__all__ = ["audit", "read_report"]

SERVICES = ("pypi", "osv")
"""Those that pip-audit can ask, in this order."""

_PATIENCE_S = 600


def audit(packages: Path) -> str:
    """Return a line for the summary: how many packages were audited, or that no service answered.

    Args:
        packages: The folder ``site-packages`` of an environment.

    Raises:
        Refused: If a package has a known vulnerability.
    """
    for service in SERVICES:
        answer = _ask(service, packages)
        if answer is not None and (line := read_report(service, answer)):
            return line
    return (
        f"NOT DONE  pip-audit: no advisory service answers here ({', '.join(SERVICES)} were asked)"
    )


def read_report(service: str, dependencies: Sequence[dict[str, Any]]) -> str:
    """Return a line for the summary; empty if the service knew none of the packages.

    An index that mirrors files only answers so: it has no advisories.

    Raises:
        Refused: If a package has a known vulnerability.
    """
    audited = [each for each in dependencies if "skip_reason" not in each]
    skipped = sorted(each["name"] for each in dependencies if "skip_reason" in each)
    wrong = [
        f"{each['name']} {each['version']}: {one['id']}, fixed in "
        f"{', '.join(one['fix_versions']) or 'no version'}"
        for each in audited
        for one in each["vulns"]
    ]
    if wrong:
        raise Refused(f"known vulnerabilities, by pip-audit ({service}): {'; '.join(wrong)}")
    if not audited:
        return ""
    left = f"; unknown to it: {', '.join(skipped)}" if skipped else ""
    return f"pip-audit ({service}): nothing known of {len(audited)} packages{left}"


def _ask(service: str, packages: Path) -> list[dict[str, Any]] | None:
    """Return what pip-audit reports of each package; None if it fails, as without the network."""
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service]
    options = ["--format", "json", "--progress-spinner", "off", "--path", packages]
    try:
        done = subprocess.run(  # noqa: S603  our own tool
            [*command, *options], capture_output=True, check=False, text=True, timeout=_PATIENCE_S
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, subprocess.TimeoutExpired):
        return None
    return found
