"""Entries of Spark's offset log, which Spark writes for an epoch before it runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.errors import OptionError

__all__ = ["OffsetSeq", "with_offsets"]


@dataclass(frozen=True)
class OffsetSeq:
    """An entry of Spark's offset log, written before the epoch runs.

    Attributes:
        metadata: Spark's own metadata, with ``batchWatermarkMs``.
        sources: The offset of each source at the end of the epoch, as text, by the name of the
            source; "-" if it has none yet. A source without a name has its index as name.
    """

    metadata: dict[str, Any]
    sources: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> OffsetSeq:
        """Parse the text of ``<checkpointLocation>/offsets/<epoch>``.

        The first line is the version, the second the metadata; then there is a line for each
        source. In version 1 it is the offset, in the order of the sources (``OffsetSeqLog``). In
        version 2, of Spark 4.2, it is the name of the source, a colon and the offset
        (``OffsetMap``).

        Raises:
            ValueError: If it is damaged, or of an unknown version.
            OptionError: If an unfinished command of ``krishiv-spark`` has replaced it by a text
                that names the command that finishes it. It is a ValueError too.
        """
        # Not `splitlines`: an offset of a third-party source may contain U+2028 and the like.
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
        # Spark writes 0 while there is no watermark.
        return self.metadata.get("batchWatermarkMs") or None

    @property
    def source_watermarks_ms(self) -> list[int]:
        """The watermarks in the offsets of krishiv-spark's sources, as far as they have one."""
        marks = (offset.get("watermark") for offset in self.objects)
        found = [mark.get("ms") for mark in marks if isinstance(mark, dict)]
        return [ms for ms in found if isinstance(ms, int)]


def with_offsets(text: str, changes: Mapping[str, str]) -> str:
    """Return an entry with other offsets for some sources, and otherwise unchanged.

    Args:
        text: The entry, as Spark wrote it.
        changes: New offsets by name of the source, as in `OffsetSeq.sources`.

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
