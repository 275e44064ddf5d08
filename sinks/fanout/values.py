"""What tasks tell the driver, and what planner tells them: by route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

__all__ = ["RoutePlans", "StagedParts"]


class StagedParts(BaseModel, frozen=True):
    """What one task has staged, or what an intent names.

    Attributes:
        parts: By route, what its participant calls staged: models, or as an intent keeps them.
    """

    parts: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class RoutePlans:
    """What tasks have to know of an epoch.

    Attributes:
        plans: By route, what `Writer.plan` of it returned.
    """

    plans: Mapping[str, Any]
