"""Spark's offset log: what it wrote down for an epoch before it ran it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.errors import OptionError

__all__ = ["OffsetSeq", "with_offsets"]


@dataclass(frozen=True)
class OffsetSeq:
    """What Spark wrote down for an epoch before it ran it: an entry of its offset log.

    Attributes:
        metadata: Spark's own, with ``batchWatermarkMs``.
        sources: By name, the offset of each source at the end of the epoch, as text; "-" where it
            has none yet. A source without a name has its place among the sources as its name.
    """

    metadata: dict[str, Any]
    sources: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> OffsetSeq:
        """From the text of ``<checkpointLocation>/offsets/<epoch>``.

        A line with the version, one of metadata, then a line a source: in version 1 its offset, in
        the order of the sources (``OffsetSeqLog``); in version 2, of Spark 4.2, its name, a colon
        and its offset (``OffsetMap``).

        Raises:
            ValueError: If it is damaged, or of a version that is not known.
            OptionError: If a command of ``krishiv-spark`` has left its own text there, which names
                the command that finishes it. It is a ValueError too.
        """
        # Not `splitlines`: an offset of somebody else's source may hold U+2028 and the like.
        version, metadata, *lines = text.removesuffix("\n").split("\n")
        if version == "v1":
            sources = {str(place): line for place, line in enumerate(lines)}
        elif version == "v2":
            sources = {name: text for name, _, text in (line.partition(":") for line in lines)}
        elif version.startswith("unfinished: "):
            raise OptionError(f"the checkpoint is {version}")
        else:
            raise ValueError(
                f"Spark's offset log has the form {version[:20]!r}, which this version of "
                "krishiv-spark does not know: upgrade it"
            )
        return cls(json.loads(metadata), sources)

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The offsets that are JSON objects, parsed, in the order of the sources."""
        return [json.loads(text) for text in self.sources.values() if text.startswith("{")]

    @property
    def watermark_ms(self) -> int | None:
        """Spark's own watermark, milliseconds since 1970 UTC; None if it has none."""
        # Spark writes 0 as long as there is none.
        return self.metadata.get("batchWatermarkMs") or None

    @property
    def source_watermarks_ms(self) -> list[int]:
        """The watermarks inside the offsets of sources of ours, where there are any."""
        marks = (offset.get("watermark") for offset in self.objects)
        found = [mark.get("ms") for mark in marks if isinstance(mark, dict)]
        return [ms for ms in found if isinstance(ms, int)]


def with_offsets(text: str, changes: Mapping[str, str]) -> str:
    """An entry in which some sources have other offsets; all else in it stays as it is.

    Args:
        text: As Spark wrote it.
        changes: By name of the source, as `OffsetSeq.sources` has it.

    Raises:
        ValueError: As `OffsetSeq.parse`.
    """
    sources = OffsetSeq.parse(text).sources
    version, metadata, *_ = text.split("\n")
    is_named = version == "v2"
    lines = [
        f"{name}:{offset}" if is_named else offset
        for name, offset in {**sources, **changes}.items()
    ]
    return "\n".join([version, metadata, *lines])
