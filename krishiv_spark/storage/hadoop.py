"""Where a cluster's HDFS answers over HTTP, as Hadoop's own configuration says it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from krishiv_spark.errors import OptionError
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["web_addresses"]

_HTTP_PORT, _HTTPS_PORT = 9870, 9871
"""Of NameNodes, from Hadoop 3 on."""


def web_addresses(url: StoreUrl, endpoint: str | None = None) -> list[str]:
    """Where to ask, each as ``http://host:port``; of several NameNodes one is active.

    Args:
        url: Of HDFS. If it names a service of several NameNodes, or nothing at all, the files
            ``core-site.xml`` and ``hdfs-site.xml`` in ``HADOOP_CONF_DIR`` say which they are.
        endpoint: What the user says of it, which goes before: addresses, separated by commas.

    Raises:
        OptionError: If nothing names an address.
    """
    if endpoint is not None:
        return [_with_scheme(part.strip().rstrip("/")) for part in endpoint.split(",")]
    if url.scheme in {"webhdfs", "swebhdfs"}:
        return [f"{'https' if url.scheme == 'swebhdfs' else 'http'}://{url.authority}"]
    found = [] if url.scheme == "viewfs" else _from_hadoop(url, _configuration())
    if not found:
        raise OptionError(
            f"{url} does not say where HDFS answers over HTTP: set 'storage.hdfs.endpoint' to the "
            "addresses of its NameNodes (http://host:9870), or of an HttpFS; or HADOOP_CONF_DIR"
        )
    return found


def _with_scheme(address: str) -> str:
    return address if "://" in address else f"http://{address}"


def _from_hadoop(url: StoreUrl, values: Mapping[str, str]) -> list[str]:
    default = StoreUrl.parse(values.get("fs.defaultFS", "file:/"))
    authority = url.authority or (default.authority if default.scheme == "hdfs" else "")
    scheme = "https" if values.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    nodes = values.get(f"dfs.ha.namenodes.{authority}", "").split(",")
    keys = [f".{authority}.{node.strip()}" for node in nodes if node.strip()]
    is_described = bool(keys) or authority == default.authority
    known = values if is_described else {}  # another cluster's are not in these files
    found = [_address(scheme, key, authority, known) for key in keys or [""]]
    return [f"{scheme}://{address}" for address in found if address]


def _address(scheme: str, key: str, authority: str, values: Mapping[str, str]) -> str:
    """Host and port of a NameNode; empty if no host is known.

    Where it listens on every interface, its host is that of the calls of Hadoop's own clients.
    """
    said = values.get(f"dfs.namenode.{scheme}-address{key}", "")
    host, _, port = said.partition(":")
    if host in {"", "0.0.0.0"}:  # noqa: S104  read, not bound
        host = values.get(f"dfs.namenode.rpc-address{key}", authority).partition(":")[0]
    port = port or str(_HTTPS_PORT if scheme == "https" else _HTTP_PORT)
    return f"{host}:{port}" if host else ""


def _configuration() -> dict[str, str]:
    """What Hadoop's files on this machine say; nothing without them."""
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else None)
    values: dict[str, str] = {}
    for name in ("core-site.xml", "hdfs-site.xml") if folder else ():
        path = Path(f"{folder}/{name}")
        for item in ET.parse(path).iter("property") if path.is_file() else ():  # noqa: S314  own
            values[item.findtext("name", "")] = item.findtext("value", "").strip()
    return values
