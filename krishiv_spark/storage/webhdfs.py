"""HDFS over HTTP: WebHDFS of the NameNodes, or HttpFS.

No wheel has Hadoop's own client, and what others have over HTTP takes a DataNode's error page for
a file's content, and does not read whether a rename was refused. So its five calls are here, on
``requests``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.retry import Backoff
from krishiv_spark.storage.hints import refusal, silence

if TYPE_CHECKING:
    import requests

    from krishiv_spark.storage.settings import HdfsSettings

__all__ = ["WebHdfs"]

_ROOT = "/webhdfs/v1"
_STANDBY = {"StandbyException", "RetriableException", "429", "502", "503", "504"}
"""Answers after which another NameNode is asked, or the same one again."""

_NO_FOLDER = "(is not a directory)"
"""Of a place below a file the NameNode says that access is denied (``FSPermissionChecker``)."""


class WebHdfs:
    """The calls of HDFS's REST interface. Any process; one thread.

    Args:
        addresses: Where to ask, as ``http://host:port``; of several NameNodes one is active.
        settings: Who asks, and how long.
    """

    def __init__(self, addresses: Sequence[str], settings: HdfsSettings) -> None:
        self._addresses = list(addresses)
        self._settings = settings
        self._session = _session(settings)

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes | None:
        """The content of a file, or of a range of its bytes; None if there is no file."""
        part = {"offset": str(start)} if start else {}
        if end is not None:
            part["length"] = str(end - start)
        answer = self._ask("GET", "OPEN", path, part)
        return None if answer is None else answer.content

    def listing(self, folder: str) -> Iterator[Mapping[str, Any]]:
        """Hadoop's ``FileStatus`` of what is in a folder, as many at once as the NameNode likes.

        Raises:
            FileNotFoundError: If there is no folder.
        """
        after = ""
        while True:
            answer = self._ask("GET", "LISTSTATUS_BATCH", folder, {"startAfter": after})
            if answer is None:
                raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
            page = answer.json()["DirectoryListing"]
            found = page["partialListing"]["FileStatuses"]["FileStatus"]
            yield from found
            if not found or not page["remainingEntries"]:
                return
            after = found[-1]["pathSuffix"]

    def status(self, path: str) -> Mapping[str, Any] | None:
        """Hadoop's ``FileStatus`` of a file or folder; None if there is none."""
        answer = self._ask("GET", "GETFILESTATUS", path)
        return None if answer is None else answer.json()["FileStatus"]

    def touch(self, path: str, modified_ms: int) -> bool:
        """Set the time of a file; False if there is none."""
        times = {"modificationtime": str(modified_ms), "accesstime": "-1"}
        return self._ask("PUT", "SETTIMES", path, times) is not None

    def names(self, path: str) -> list[str]:
        """What is in a folder; nothing if it is not there."""
        return [name for name, _ in self.entries(path)]

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """The names in a folder, and whether each is a folder; nothing if it is not there."""
        found = self.statuses(path)
        return [(item["pathSuffix"], item["type"] == "DIRECTORY") for item in found]

    def statuses(self, path: str) -> list[dict[str, Any]]:
        """What is in a folder, as ``FileStatus`` of the interface; nothing if it is not there."""
        answer = self._ask("GET", "LISTSTATUS", path)
        found = [] if answer is None else answer.json()["FileStatuses"]["FileStatus"]
        return [item for item in found if item["pathSuffix"]]

    def length(self, path: str) -> int | None:
        """Bytes of a file; None if there is none."""
        answer = self._ask("GET", "GETFILESTATUS", path)
        return None if answer is None else int(answer.json()["FileStatus"]["length"])

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return self._ask("GET", "GETFILESTATUS", path) is not None

    def write(self, path: str, data: bytes) -> None:
        """Create or overwrite a file, and the folders above it. Readers may see a part of it."""
        self._ask("PUT", "CREATE", path, {"overwrite": "true"}, data)

    def stream(self, path: str, pieces: Iterable[bytes]) -> None:
        """Create or overwrite a file with what comes; it cannot be sent again.

        Raises:
            StorageError: If it is not taken, to the last piece.
        """
        import requests

        asked = self._ask("PUT", "CREATE", path, {"overwrite": "true", "noredirect": "true"})
        if asked is None:
            raise StorageError(f"HDFS does not say where {path} is to be written")
        headers = {"Content-Type": "application/octet-stream"}
        within_s = self._settings.timeout / 1000
        try:
            answer = self._session.put(
                asked.json()["Location"], data=iter(pieces), headers=headers, timeout=within_s
            )
        except requests.RequestException as error:
            name = type(error).__name__
            raise StorageError(f"HDFS broke off while {path} was written ({name})") from error
        _checked(answer, f"CREATE of {path}")

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; one that is there is no error."""
        self._ask("PUT", "MKDIRS", path)

    def rename(self, path: str, to: str, *, overwrite: bool = False) -> bool:
        """Rename a file in one step; False if it is not there, or the new name is taken."""
        more = {"renameoptions": "OVERWRITE"} if overwrite else {}
        answer = self._ask("PUT", "RENAME", path, {"destination": to, **more})
        if answer is None:
            return False
        return not answer.content or bool(answer.json()["boolean"])

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or a folder with all in it; what is gone already is no error."""
        self._ask("DELETE", "DELETE", path, {"recursive": str(recursive).lower()})

    # --- asking

    def _ask(
        self,
        method: str,
        op: str,
        path: str,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> requests.Response | None:
        """The answer of the active NameNode; None where it says that a file is not there.

        Raises:
            StorageError: If none answers in time, or it refuses.
        """
        patience = self._settings.patience(tuple(sorted(self._addresses)))
        backoff = Backoff(patience.total_s)
        asked, query = 0, {"op": op, **(query or {})}
        while True:
            address = self._addresses[0]
            url = f"{address}{_ROOT}{quote(path)}"
            answer = self._send(method, url, data, query, patience.request_s)
            if not isinstance(answer, str):
                self._settings.note_answer(tuple(sorted(self._addresses)))
                return _checked(answer, f"{op} of {path} on {address}")
            asked += 1
            self._addresses.append(self._addresses.pop(0))  # the next one may be active
            if asked % len(self._addresses) == 0 and not backoff.pause():
                raise StorageError(f"HDFS cannot be asked for {op} of {path}: {answer}")

    def _send(
        self,
        method: str,
        url: str,
        data: bytes | None,
        query: Mapping[str, str],
        within_s: float,
    ) -> requests.Response | str:
        """An answer, or why there is none that counts.

        A NameNode is sent no data: it says which DataNode takes them.
        """
        import requests

        who = self._who()
        try:
            answer = self._session.request(
                method, url, params={**query, **who}, allow_redirects=data is None, timeout=within_s
            )
            if data is not None and answer.is_redirect:
                answer = self._session.put(
                    answer.headers["Location"],
                    data=data,
                    headers={"Content-Type": "application/octet-stream"},
                    timeout=within_s,
                )
        except (requests.ConnectionError, requests.Timeout) as error:
            why = str(error).partition("Caused by")[2] or type(error).__name__
            return silence("hdfs", url.partition(_ROOT)[0], why)
        return answer if _remote_error(answer)[0] not in _STANDBY else f"{url} is not active"

    def _who(self) -> dict[str, str]:
        if self._settings.token is not None:
            return {"delegation": self._settings.token.get_secret_value()}
        user = self._settings.user or os.environ.get("HADOOP_USER_NAME")
        return {} if user is None or self._settings.kerberos else {"user.name": user}


def _session(settings: HdfsSettings) -> requests.Session:
    import requests

    session = requests.Session()
    if settings.ca_file is not None:
        session.verify = settings.ca_file
    if settings.proxy is not None:
        session.proxies = dict.fromkeys(("http", "https"), settings.proxy.get_secret_value())
    if settings.kerberos:
        try:
            kerberos = import_module("requests_kerberos")
        except ImportError as error:
            raise OptionError(
                "'storage.hdfs.kerberos' needs the package requests-kerberos, on every machine"
            ) from error
        session.auth = kerberos.HTTPKerberosAuth()
    return session


def _remote_error(answer: requests.Response) -> tuple[str, str]:
    """The name of Java's exception and its message; twice nothing if all is well."""
    if answer.ok:
        return "", ""
    try:
        said = answer.json()["RemoteException"]
        return str(said["exception"]), str(said["message"]).partition("\n")[0]
    except (ValueError, LookupError, TypeError):
        return str(answer.status_code), str(answer.reason)


def _checked(answer: requests.Response, what: str) -> requests.Response | None:
    name, message = _remote_error(answer)
    if name == "FileNotFoundException" or _NO_FOLDER in message:
        return None
    if name:
        raise StorageError(
            f"HDFS refuses {what}: {refusal('hdfs', name, answer.status_code, message)}"
        )
    return answer
