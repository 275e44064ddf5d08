"""HDFS over HTTP: WebHDFS of the NameNodes, or HttpFS.

No wheel has Hadoop's own client, and what others have over HTTP takes a DataNode's error page for
a file's content, and does not read whether a rename was refused. So its five calls are here, on
``requests``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

import requests
from urllib3.exceptions import HTTPError

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.messages.exception_chains import describe, raise_alone
from krishiv_spark.messages.redaction import first_line
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.storage.hints import refusal, silence
from krishiv_spark.storage.http_sessions import bound_errors, origin_of
from krishiv_spark.storage.urls import check_stays

if TYPE_CHECKING:
    from krishiv_spark.storage.settings import HdfsSettings

__all__ = ["WebHdfs"]

_ROOT = "/webhdfs/v1"
_STANDBY = {"StandbyException", "RetriableException", "429", "502", "503", "504"}
"""Answers after which another NameNode is asked, or the same one again."""

_TO_DATANODES = frozenset({"OPEN", "CREATE"})
"""Operations that a NameNode hands on to a DataNode, by a redirect with the login that it needs."""

_MOST_REDIRECTS = 4

_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

_FAILURES = (OSError, ValueError, HTTPError)
"""Raised by requests, also about what a server has written: a bad URL, a bad encoding. Its own
errors are OSErrors."""

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
            page = self._look_up("LISTSTATUS_BATCH", folder, "DirectoryListing", startAfter=after)
            if page is None:
                raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
            with self._understood("LISTSTATUS_BATCH", folder):
                found = page["partialListing"]["FileStatuses"]["FileStatus"]
                is_last = not found or not page["remainingEntries"]
                after = "" if is_last else found[-1]["pathSuffix"]
            yield from found
            if is_last:
                return

    def status(self, path: str) -> Mapping[str, Any] | None:
        """Hadoop's ``FileStatus`` of a file or folder; None if there is none."""
        found: Mapping[str, Any] | None = self._look_up("GETFILESTATUS", path, "FileStatus")
        return found

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
        with self._understood("LISTSTATUS", path):
            return [(item["pathSuffix"], item["type"] == "DIRECTORY") for item in found]

    def statuses(self, path: str) -> list[dict[str, Any]]:
        """What is in a folder, as ``FileStatus`` of the interface; nothing if it is not there."""
        found = self._look_up("LISTSTATUS", path, "FileStatuses", "FileStatus")
        with self._understood("LISTSTATUS", path):
            return [item for item in found or () if item["pathSuffix"]]

    def length(self, path: str) -> int | None:
        """Bytes of a file; None if there is none."""
        found = self._look_up("GETFILESTATUS", path, "FileStatus", "length")
        with self._understood("GETFILESTATUS", path):
            return None if found is None else int(found)

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
        query = {"overwrite": "true", "noredirect": "true"}
        asked = self._ask("PUT", "CREATE", path, query)
        if asked is None:
            raise StorageError(f"HDFS does not say where {path} is to be written")
        answer = self._send_on(asked, path, pieces)
        if isinstance(answer, StorageError):
            raise answer
        self._checked(answer, f"CREATE of {path}")

    def _send_on(
        self, asked: requests.Response, path: str, pieces: Iterable[bytes]
    ) -> requests.Response | StorageError:
        """Return the answer of the DataNode that a NameNode has named, or what went wrong.

        Nothing is raised here, where variables have the login in them: Spark can show those of all
        functions that a traceback goes through.
        """
        with self._understood("CREATE", path):
            # HttpFS of old knows no ``noredirect``.
            location = asked.headers.get("Location") or asked.json()["Location"]
        target = self._next_url(asked, location, "CREATE")
        if isinstance(target, StorageError):
            return target
        try:
            return self._session.put(
                target,
                data=iter(pieces),
                headers={"Content-Type": "application/octet-stream"},
                timeout=self._settings.timeout / 1000,
                allow_redirects=False,
            )
        except _FAILURES as error:
            name = type(error).__name__
            return StorageError(f"HDFS broke off while {path} was written ({name})")

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; one that is there is no error."""
        self._ask("PUT", "MKDIRS", path)

    def rename(self, path: str, to: str, *, overwrite: bool = False) -> bool:
        """Rename a file in one step; False if it is not there, or the new name is taken."""
        more = {"renameoptions": "OVERWRITE"} if overwrite else {}
        answer = self._ask("PUT", "RENAME", path, {"destination": to, **more})
        if answer is None:
            return False
        with self._understood("RENAME", path):
            return not answer.content or bool(answer.json()["boolean"])

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or a folder with all in it; what is gone already is no error."""
        self._ask("DELETE", "DELETE", path, {"recursive": str(recursive).lower()})

    # --- asking

    def _look_up(self, op: str, path: str, *keys: str, **query: str) -> Any:
        """Return a part of the answer to a question, by its keys; None if there is no file."""
        answer = self._ask("GET", op, path, query)
        if answer is None:
            return None
        with self._understood(op, path):
            found = answer.json()
            for key in keys:
                found = found[key]
            return found

    @contextlib.contextmanager
    def _understood(self, op: str, path: str) -> Iterator[None]:
        """Turn what is wrong with an answer's JSON into an error of ours, which shows none of it.

        Raises:
            StorageError: If it is no JSON, or another one.
        """
        try:
            yield
        except (ValueError, LookupError, TypeError) as error:
            raise_alone(
                StorageError(
                    f"what answers {op} of {path} at {', '.join(self._addresses)} does not speak "
                    f"WebHDFS ({type(error).__name__}): correct 'storage.hdfs.endpoint'"
                )
            )

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
        for given in (path, (query or {}).get("destination", "")):
            check_stays(given, given)  # urllib3 resolves `..`, and the NameNode does
        patience = self._settings.patience(tuple(sorted(self._addresses)))
        backoff = Backoff(patience.total_s)
        asked, query = 0, {"op": op, **(query or {})}
        while True:
            address = self._addresses[0]
            url = f"{address}{_ROOT}{quote(path)}"
            answer = self._send(method, url, data, query, patience.request_s)
            if not isinstance(answer, str):
                self._settings.note_answer(tuple(sorted(self._addresses)))
                if answer.is_redirect:  # it was asked for where to write, and says so in this way
                    return answer
                return self._checked(answer, f"{op} of {path} on {address}")
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
        """Return an answer, or why there is none that counts.

        Raises:
            StorageError: If another attempt would not help.
        """
        try:
            answer = self._exchange(method, url, data, query, within_s)
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            asked = getattr(error.request, "url", None) or url
            why = str(error).partition("Caused by")[2] or type(error).__name__
            return self._redacted(silence("hdfs", origin_of(asked), why))
        except _FAILURES as error:
            where, why = url.partition(_ROOT)[0], describe(error, self._settings.secrets())
            raise_alone(StorageError(f"HDFS cannot be asked for {query['op']} at {where}: {why}"))
        return answer if self._remote_error(answer)[0] not in _STANDBY else f"{url} is not active"

    def _exchange(
        self,
        method: str,
        url: str,
        data: bytes | None,
        query: Mapping[str, str],
        within_s: float,
    ) -> requests.Response:
        """Send a request and follow its redirects, as far as WebHDFS has some.

        A NameNode is sent no data: it says which DataNode takes them.
        """
        answer = self._session.request(
            method,
            url,
            params={**query, **self._who()},
            allow_redirects=False,
            timeout=within_s,
        )
        for _ in range(_MOST_REDIRECTS):
            if not answer.is_redirect or "noredirect" in query:
                return answer
            followed = self._follow(answer, method, query["op"], data, within_s)
            if isinstance(followed, StorageError):
                raise followed
            answer = followed
        raise StorageError(f"{url} redirects more than {_MOST_REDIRECTS} times")

    def _follow(
        self,
        answer: requests.Response,
        method: str,
        op: str,
        data: bytes | None,
        within_s: float,
    ) -> requests.Response | StorageError:
        """Return the answer of where a redirect leads, or why it is not followed."""
        target = self._next_url(answer, answer.headers["Location"], op)
        if isinstance(target, StorageError):
            return target
        return self._session.request(
            method,
            target,
            data=data,
            headers={} if data is None else {"Content-Type": "application/octet-stream"},
            allow_redirects=False,
            timeout=within_s,
        )

    def _next_url(self, answer: requests.Response, location: str, op: str) -> str | StorageError:
        """Return where a redirect leads, or why no request may go on there.

        That it is no address, less safe, or not where this operation goes. The NameNode has put a
        login for the DataNode into it, if there is to be one: so nothing is raised here.
        """
        here = origin_of(answer.url)
        try:
            url = urljoin(answer.url, location)  # a reverse proxy writes no host
            there = origin_of(url)
        except ValueError:
            return StorageError(f"{here} redirects {op} to what is no http: or https: URL")
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

    def _checked(self, answer: requests.Response, what: str) -> requests.Response | None:
        name, message = self._remote_error(answer)
        if name == "FileNotFoundException" or _NO_FOLDER in message:
            return None
        if name:
            why = refusal("hdfs", name, answer.status_code, message)
            raise StorageError(f"HDFS refuses {what}: {why}")
        return answer

    def _remote_error(self, answer: requests.Response) -> tuple[str, str]:
        """The name of Java's exception and its message, redacted; twice nothing if all is well."""
        if answer.ok and not answer.is_redirect:
            return "", ""
        try:
            said = answer.json()["RemoteException"]
            return first_line(str(said["exception"])), self._redacted(said["message"])
        except (ValueError, LookupError, TypeError):
            return str(answer.status_code), first_line(str(answer.reason))

    def _redacted(self, text: object) -> str:
        return first_line(str(text), self._settings.secrets())

    def _who(self) -> dict[str, str]:
        if self._settings.token is not None:
            return {"delegation": self._settings.token.get_secret_value()}
        user = self._settings.user or os.environ.get("HADOOP_USER_NAME")
        return {} if user is None or self._settings.kerberos else {"user.name": user}


def _session(settings: HdfsSettings) -> requests.Session:
    """Return a session that knows the settings alone.

    The environment's proxies and ``.netrc`` are not read, but its certificates are.
    """
    session = requests.Session()
    session.trust_env = False
    bound_errors(session)
    trusted = (os.environ.get(name) for name in _CERTIFICATES)
    session.verify = settings.ca_file or next(filter(None, trusted), True)
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
