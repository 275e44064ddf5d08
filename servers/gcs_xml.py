"""Google's XML interface for objects, in front of fake-gcs-server, which writes by JSON's only.

It changes how a request is spelled. What is there, and whether a condition holds, the server says.
Parts of an upload, which the server does not know, wait here, and are sent as one when it is
completed; and a copy is sent as a new object, since the server copies whatever the condition is.
"""

import itertools
import json
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import requests

from servers.forwarding import Message, forwarding


def speaking_xml(server: str) -> AbstractContextManager[str]:
    """Its URL, while it runs in front of a server."""
    host = urlsplit(server).netloc  # by which the server tells what is asked in XML
    translator = _Translator(server)

    def spelled(asked: Message) -> Message:
        headers = {key.lower(): value for key, value in asked.headers.items()}
        return translator.by_json(replace(asked, headers={**headers, "host": host}))

    return forwarding(server, spelled, _tagged)


class _Translator:
    def __init__(self, server: str) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._parts: dict[str, dict[int, bytes]] = {}
        self._lock = threading.Lock()

    def by_json(self, asked: Message) -> Message:
        url = urlsplit(asked.path)
        bucket, _, name = unquote(url.path)[1:].partition("/")
        query = {
            key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()
        }
        if "uploads" in query or "uploadId" in query:
            return self._part(asked, bucket, name, query)
        if asked.method == "DELETE":
            return replace(asked, path=f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
        if asked.method == "PUT" and (source := asked.headers.get("x-goog-copy-source")):
            return self._copied(asked, bucket, name, unquote(source))
        if asked.method == "PUT":
            return _written(asked, bucket, name)
        return asked

    def _copied(self, asked: Message, bucket: str, name: str, source: str) -> Message:
        found = requests.get(f"{self._server}/{quote(source.lstrip('/'))}", timeout=30)
        if not found.ok:
            return Message({}, found.content, status=found.status_code)
        headers = {key: value for key, value in asked.headers.items() if key != "content-length"}
        return _written(replace(asked, headers=headers, body=found.content), bucket, name)

    def _part(self, asked: Message, bucket: str, name: str, query: dict[str, str]) -> Message:
        with self._lock:
            if "uploads" in query:
                upload = str(next(self._numbers))
                self._parts[upload] = {}
                said = f"<UploadId>{upload}</UploadId>"
                return _xml("InitiateMultipartUploadResult", said)
            if asked.method == "PUT":
                self._parts[query["uploadId"]][int(query["partNumber"])] = asked.body
                return Message({"ETag": f'"{query["partNumber"]}"'}, b"", status=200)
            parts = self._parts.pop(query["uploadId"])
        if asked.method == "DELETE":
            return Message({}, b"", status=204)
        body = b"".join(parts[number] for number in sorted(parts))
        sent = _written(Message({}, body), bucket, name)
        found = requests.post(self._server + sent.path, data=body, timeout=60)
        return _xml("CompleteMultipartUploadResult", f"<ETag>{found.json()['etag']}</ETag>")


def _written(asked: Message, bucket: str, name: str) -> Message:
    condition = asked.headers.get("x-goog-if-generation-match")
    query = {"name": name, **({} if condition is None else {"ifGenerationMatch": condition})}
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&{urlencode(query)}"
    return replace(asked, method="POST", path=path)


def _xml(name: str, said: str) -> Message:
    headers = {"Content-Type": "application/xml"}
    return Message(headers, f"<{name}>{said}</{name}>".encode(), status=200)


def _tagged(answer: Message) -> Message:
    """Return the tag of a written object, which the XML interface has in a header."""
    if answer.body.startswith(b'{"kind":"storage#object"'):
        answer.headers.setdefault("ETag", json.loads(answer.body)["etag"])
    return answer
