"""What a sink can learn from Spark's checkpoint folder."""

from __future__ import annotations

import json
from typing import Any

from pyarrow import fs

from krishiv_spark.errors import OptionError

__all__ = ["epoch_offsets", "has_commits", "is_committed", "query_id", "source_watermark"]


def query_id(location: str) -> str:
    """The id of the streaming query that a checkpoint belongs to. Driver.

    Spark writes ``<checkpointLocation>/metadata`` before the first batch (``StreamMetadata``).

    Raises:
        OptionError: If there is no readable checkpoint at the location.
    """
    try:
        return str(json.loads(_read(f"{location}/metadata"))["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OptionError(
            f"no query id in {location}/metadata: {error}; 'checkpointLocation' must be the one "
            "that Spark uses, readable from the driver's machine"
        ) from error


def epoch_offsets(location: str, epoch: int) -> list[dict[str, Any]]:
    """What Spark wrote down for an epoch before it ran it: its own metadata, then each source's.

    From ``<checkpointLocation>/offsets/<epoch>`` (``OffsetSeqLog``): a version line, a line of
    metadata with ``batchWatermarkMs``, and a line per source.

    Returns:
        The parsed lines, without those of sources that have no offset yet ("-"); an empty list
        when the file is not there.
    """
    try:
        lines = _read(f"{location}/offsets/{epoch}").splitlines()[1:]
        return [json.loads(line) for line in lines if line.startswith("{")]
    except (OSError, ValueError):
        return []


def source_watermark(offset: dict[str, Any]) -> int | None:
    """The watermark inside an offset of a source of ours, milliseconds; None if it has none."""
    watermark = offset.get("watermark")
    found = watermark.get("ms") if isinstance(watermark, dict) else None
    return found if isinstance(found, int) else None


def is_committed(location: str, epoch: int) -> bool:
    """Whether Spark has written down that an epoch is over (``<location>/commits/<epoch>``).

    It does so when the sink's commit has returned, and before the next epoch begins.
    """
    try:
        _read(f"{location}/commits/{epoch}")
    except (OSError, ValueError):
        return False
    return True


def has_commits(location: str) -> bool:
    """Whether Spark has written down that some epoch is over."""
    filesystem, inner = _opened(f"{location}/commits")
    found = filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True))
    return any(info.base_name.isdigit() for info in found)


def _read(path: str) -> str:
    filesystem, inner = _opened(path)
    with filesystem.open_input_stream(inner) as stream:
        return bytes(stream.read()).decode()


def _opened(path: str) -> tuple[Any, str]:
    if path.startswith("file:/"):  # file:/x or file:///x: Hadoop escapes nothing in it
        path = "/" + path.removeprefix("file:").lstrip("/")
    if ":" in path.split("/", 1)[0]:
        found: tuple[Any, str] = fs.FileSystem.from_uri(path)
        return found
    return fs.LocalFileSystem(), path
