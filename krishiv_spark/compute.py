"""Arrow's functions.

pyarrow.compute makes them while it is imported, so that checkers do not find them there.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute

__all__ = ["pc"]

pc: Any = pyarrow.compute
