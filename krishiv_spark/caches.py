"""Where this package keeps what can be made again, for one user of a machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/krishiv-spark``, or else ``~/.cache/krishiv-spark``; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "krishiv-spark"
