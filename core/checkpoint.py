"""What a sink can learn from Spark's checkpoint folder."""

from __future__ import annotations

import json
from typing import Any

from pyarrow import fs

from krishiv_spark.errors import OptionError

__all__ = ["epoch_offsets", "query_id"]


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


def _read(path: str) -> str:
    if path.startswith("file:/"):  # file:/x or file:///x: Hadoop escapes nothing in it
        path = "/" + path.removeprefix("file:").lstrip("/")
    if ":" in path.split("/", 1)[0]:
        filesystem, inner = fs.FileSystem.from_uri(path)
    else:
        filesystem, inner = fs.LocalFileSystem(), path
    with filesystem.open_input_stream(inner) as stream:
        return bytes(stream.read()).decode()
