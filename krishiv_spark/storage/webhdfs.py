"""The client of HDFS over HTTP: WebHDFS of the NameNodes, or HttpFS.

No wheel contains Hadoop's own client. Other packages that use HTTP mistake a DataNode's error page
for a file's content, and do not read whether a rename was refused. So the calls are implemented
here, with ``requests``.

Functions whose variables contain credentials return an error instead of raising it, since Spark can
show the variables of each function in a traceback. `_ask` and `_check` raise these errors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urljoin

import requests
from urllib3.exceptions import HTTPError

from krishiv_spark.errors import StorageError
from krishiv_spark.messages.exception_chains import describe
from krishiv_spark.messages.redaction import first_line
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.storage.base import BaseStore, check_stays
from krishiv_spark.storage.clients import explain_refusal, explain_silence
from krishiv_spark.storage.http_sessions import bound_errors, origin_of

__all__ = ["HdfsStatus", "WebHdfs"]

_T = TypeVar("_T")

_ROOT = "/webhdfs/v1"
_STANDBY = {"StandbyException", "RetriableException", "429", "502", "503", "504"}
"""Answers after which another NameNode, or the same one again, is requested."""

_TO_DATANODES = frozenset({"OPEN", "CREATE"})
"""Operations that a NameNode redirects to a DataNode, with the needed credentials in the URL."""

_MOST_REDIRECTS = 4

_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

_BYTES = {"Content-Type": "application/octet-stream"}

_UNREACHABLE = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)
_FAILURES = (OSError, ValueError, HTTPError)
"""Errors of requests, whose own base class is OSError, and errors about the text of an answer, such
as a bad URL or encoding."""

_NOT_JSON = (ValueError, LookupError, TypeError)

_NO_FOLDER = "(is not a directory)"
"""A part of the answer for a path below a file, to which the NameNode denies access
(``FSPermissionChecker``)."""


class HdfsStatus(NamedTuple):
    """Hadoop's ``FileStatus`` of a file or folder.

    Attributes:
        name: Its name in its folder; empty in an answer about one path.
        is_folder: True for a folder.
        size: Size in bytes.
        modified_ms: Time of the last modification, milliseconds since 1970 UTC.
    """

    name: str
    is_folder: bool
    size: int
    modified_ms: int


def _status(found: Mapping[str, Any]) -> HdfsStatus:
    return HdfsStatus(
        found["pathSuffix"],
        found["type"] == "DIRECTORY",
        int(found["length"]),
        int(found["modificationTime"]),
    )


class WebHdfs:
    """The calls of HDFS's REST interface. Any process; one thread.

    Args:
        store: The store, whose settings apply.
        addresses: Addresses of NameNodes, as ``http://host:port``; one of them is active.
        login: Returns the parameters of each request that contain credentials.
        auth: Authentication of ``requests``, as for Kerberos; None if `login` suffices.
    """

    def __init__(
        self,
        store: BaseStore,
        addresses: Sequence[str],
        login: Callable[[], Mapping[str, str]],
        auth: Any = None,
    ) -> None:
        self._store = store
        self._addresses = list(addresses)
        self._login = login
        self._session = _session(store, auth)

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Return the content of a file, or a range of its bytes; None if it does not exist."""
        part = {"offset": str(start)} if start else {}
        if end is not None:
            part["length"] = str(end - start)
        answer = self._ask("GET", "OPEN", path, part)
        return None if answer is None else answer.content

    def pages(self, folder: str) -> Iterator[list[HdfsStatus]]:
        """Yield the entries of a folder, in pages of the NameNode's size.

        Raises:
            FileNotFoundError: If the folder does not exist.
        """
        after = ""
        while True:
            answer = self._ask("GET", "LISTSTATUS_BATCH", folder, {"startAfter": after})
            if answer is None:
                raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
            page, is_last = self._parse("LISTSTATUS_BATCH", folder, answer, _page)
            yield page
            if is_last:
                return
            after = page[-1].name

    def list_folder(self, path: str) -> list[HdfsStatus]:
        """Return the entries of a folder; none if it does not exist."""
        answer = self._ask("GET", "LISTSTATUS", path)
        if answer is None:
            return []
        found = self._parse("LISTSTATUS", path, answer, _entries)
        return [status for status in found if status.name]  # a file has an entry without a name

    def status(self, path: str) -> HdfsStatus | None:
        """Return the status of a file or folder; None if it does not exist."""
        answer = self._ask("GET", "GETFILESTATUS", path)
        if answer is None:
            return None
        return self._parse("GETFILESTATUS", path, answer, _own_status)

    def exists(self, path: str) -> bool:
        """Return True if a file or folder exists."""
        return self._ask("GET", "GETFILESTATUS", path) is not None

    def touch(self, path: str, modified_ms: int) -> bool:
        """Set the time of a file; return False if it does not exist."""
        times = {"modificationtime": str(modified_ms), "accesstime": "-1"}
        return self._ask("PUT", "SETTIMES", path, times) is not None

    def write(self, path: str, data: bytes) -> None:
        """Create or overwrite a file, and create its folders.

        Readers may see an incomplete file.
        """
        self._ask("PUT", "CREATE", path, {"overwrite": "true"}, data)

    def stream(self, path: str, pieces: Iterable[bytes]) -> None:
        """Create or overwrite a file from the pieces of an iterator, which are sent once.

        Raises:
            StorageError: If a piece is refused, or the connection breaks.
        """
        query = {"overwrite": "true", "noredirect": "true"}
        asked = self._ask("PUT", "CREATE", path, query)
        self._check(self._send_pieces(asked, path, pieces), f"CREATE of {path}")

    def make_folder(self, path: str) -> None:
        """Create a folder, and those above it. An existing one is not an error."""
        self._ask("PUT", "MKDIRS", path)

    def rename(self, path: str, to: str, *, overwrite: bool = False) -> bool:
        """Rename a file in one step; return False if it does not exist, or the new name does."""
        more = {"renameoptions": "OVERWRITE"} if overwrite else {}
        answer = self._ask("PUT", "RENAME", path, {"destination": to, **more})
        if answer is None:
            return False
        return self._parse("RENAME", path, answer, _is_done)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, or a folder with all its files. A missing one is not an error."""
        self._ask("DELETE", "DELETE", path, {"recursive": str(recursive).lower()})

    # --- requests

    def _ask(
        self,
        method: str,
        op: str,
        path: str,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> requests.Response | None:
        """Return the answer of the active NameNode; None if it reports that the file is missing.

        Raises:
            StorageError: If no NameNode answers in time, or one refuses.
        """
        for given in (path, (query or {}).get("destination", "")):
            check_stays(given, given)  # urllib3 and the NameNode resolve `..`
        place = tuple(sorted(self._addresses))
        timeouts = self._store.settings.timeouts(place)
        backoff = Backoff(timeouts.total_s)
        asked, query = 0, {"op": op, **(query or {})}
        while True:
            address = self._addresses[0]
            url = f"{address}{_ROOT}{quote(path)}"
            answer = self._send(method, url, data, query, timeouts.request_s)
            if not isinstance(answer, str):
                if isinstance(answer, requests.Response):
                    self._store.settings.record_answer(place)
                return self._check(answer, f"{op} of {path} on {address}", query)
            asked += 1
            self._addresses.append(self._addresses.pop(0))  # the next one may be active
            if asked % len(self._addresses) == 0 and not backoff.pause():
                raise StorageError(f"HDFS cannot be requested to {op} {path}: {answer}")

    def _send(
        self,
        method: str,
        url: str,
        data: bytes | None,
        query: Mapping[str, str],
        request_s: float,
    ) -> requests.Response | StorageError | str:
        """Send a request and follow its redirects.

        A NameNode receives no data, but redirects to the DataNode that receives them.

        Returns:
            An answer; an error, if no other attempt can succeed; or a text with the reason if one
            may.
        """
        send, op = self._session.request, query["op"]
        try:
            answer = send(
                method,
                url,
                params={**query, **self._login()},
                allow_redirects=False,
                timeout=request_s,
            )
            for _ in range(_MOST_REDIRECTS):
                if not answer.is_redirect or "noredirect" in query:
                    break
                target = self._next_url(answer, answer.headers["Location"], op)
                if isinstance(target, StorageError):
                    return target
                answer = send(
                    method,
                    target,
                    data=data,
                    headers={} if data is None else _BYTES,
                    allow_redirects=False,
                    timeout=request_s,
                )
            else:
                return StorageError(f"{url} redirects more than {_MOST_REDIRECTS} times")
        except _UNREACHABLE as error:
            asked = getattr(error.request, "url", None) or url
            why = str(error).partition("Caused by")[2] or type(error).__name__
            return self._redact(explain_silence(self._store, origin_of(asked), why))
        except _FAILURES as error:
            where, why = url.partition(_ROOT)[0], describe(error, self._store.settings.secrets())
            return StorageError(f"HDFS cannot be asked for {op} at {where}: {why}")
        return answer if self._remote_error(answer)[0] not in _STANDBY else f"{url} is not active"

    def _send_pieces(
        self, asked: requests.Response | None, path: str, pieces: Iterable[bytes]
    ) -> requests.Response | StorageError:
        """Send a file to the DataNode that a NameNode has named."""
        if asked is None:
            return StorageError(f"HDFS does not return the address to write {path} to")
        try:
            # Old versions of HttpFS do not support ``noredirect``.
            location = asked.headers.get("Location") or asked.json()["Location"]
        except _NOT_JSON as error:
            return self._not_webhdfs("CREATE", path, error)
        target = self._next_url(asked, location, "CREATE")
        if isinstance(target, StorageError):
            return target
        try:
            return self._session.put(
                target,
                data=iter(pieces),
                headers=_BYTES,
                timeout=self._store.settings.timeout / 1000,
                allow_redirects=False,
            )
        except _FAILURES as error:
            name = type(error).__name__
            return StorageError(f"HDFS broke off while {path} was written ({name})")

    def _next_url(self, answer: requests.Response, location: str, op: str) -> str | StorageError:
        """Return the target of a redirect, or an error if no request may follow it.

        The target must be an address, must be encrypted if the NameNode is, and may be a DataNode
        only for the operations that NameNodes redirect. It contains the NameNode's credentials for
        the DataNode.
        """
        here = origin_of(answer.url)
        try:
            url = urljoin(answer.url, location)  # a reverse proxy writes no host
            there = origin_of(url)
        except ValueError:
            return StorageError(
                f"{here} redirects {op} to something that is not an http: or https: URL"
            )
        is_on_way = op in _TO_DATANODES and here in map(origin_of, self._addresses)
        if there != here and not is_on_way:
            return StorageError(
                f"{here} redirects {op} to {there}, which is given no login: set "
                "'storage.hdfs.endpoint' to that address, if it is the right one"
            )
        if here.startswith("https:") and there.startswith("http:"):
            return StorageError(
                f"{here} redirects {op} to {there}, without encryption: set 'dfs.http.policy' of "
                "the cluster to HTTPS_ONLY"
            )
        return url

    # --- errors

    def _check(
        self,
        answer: requests.Response | StorageError,
        what: str,
        query: Mapping[str, str] | None = None,
    ) -> requests.Response | None:
        """Return an answer; None if it reports that a file is missing.

        Raises:
            StorageError: If it is an error, or refuses.
        """
        if isinstance(answer, StorageError):
            raise answer
        if answer.is_redirect and "noredirect" in (query or {}):
            return answer  # HttpFS returns the address in this way
        name, message = self._remote_error(answer)
        if name == "FileNotFoundException" or _NO_FOLDER in message:
            return None
        if name:
            why = explain_refusal(self._store, name, answer.status_code, message)
            raise StorageError(f"HDFS refuses {what}: {why}")
        return answer

    def _parse(
        self,
        op: str,
        path: str,
        answer: requests.Response,
        parse: Callable[[requests.Response], _T],
    ) -> _T:
        """Return a part of an answer.

        Raises:
            StorageError: If it has no such part, or is not JSON. The text does not contain the
                answer.
        """
        try:
            return parse(answer)
        except _NOT_JSON as error:
            found = self._not_webhdfs(op, path, error)
        raise found

    def _not_webhdfs(self, op: str, path: str, error: Exception) -> StorageError:
        return StorageError(
            f"what answers {op} of {path} at {', '.join(self._addresses)} does not speak "
            f"WebHDFS ({type(error).__name__}): correct 'storage.hdfs.endpoint'"
        )

    def _remote_error(self, answer: requests.Response) -> tuple[str, str]:
        """Return the name and the redacted message of Java's exception; empty if there is none."""
        if answer.ok and not answer.is_redirect:
            return "", ""
        try:
            remote = answer.json()["RemoteException"]
            return first_line(str(remote["exception"])), self._redact(remote["message"])
        except _NOT_JSON:
            return str(answer.status_code), first_line(str(answer.reason))

    def _redact(self, text: object) -> str:
        return first_line(str(text), self._store.settings.secrets())


def _own_status(answer: requests.Response) -> HdfsStatus:
    return _status(answer.json()["FileStatus"])


def _entries(answer: requests.Response) -> list[HdfsStatus]:
    return [*map(_status, answer.json()["FileStatuses"]["FileStatus"])]


def _is_done(answer: requests.Response) -> bool:
    return not answer.content or bool(answer.json()["boolean"])


def _page(answer: requests.Response) -> tuple[list[HdfsStatus], bool]:
    """Return the entries of a page, and whether it is the last one."""
    page = answer.json()["DirectoryListing"]
    found = [*map(_status, page["partialListing"]["FileStatuses"]["FileStatus"])]
    return found, not found or not page["remainingEntries"]


def _session(store: BaseStore, auth: Any) -> requests.Session:
    """Return a session that uses the settings only.

    The environment's proxies and ``.netrc`` are not read, but its certificates are.
    """
    session = requests.Session()
    session.trust_env = False
    bound_errors(session)
    trusted = (os.environ.get(name) for name in _CERTIFICATES)
    session.verify = store.settings.ca_file or next(filter(None, trusted), True)
    session.proxies = store.settings.proxies()
    session.auth = auth
    return session
