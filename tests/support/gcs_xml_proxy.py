"""Google's XML interface for objects, in front of fake-gcs-server, which writes by JSON's only.

It changes how a request is spelled. What is there, and whether a condition holds, the server says.
"""

import json
from dataclasses import replace
from urllib.parse import quote, unquote, urlencode, urlsplit

from forwarding import Message, forwarding


def speaking_xml(server: str):
    """Its URL, while it runs in front of a server."""
    host = urlsplit(server).netloc  # by which the server tells what is asked in XML

    def spelled(asked: Message) -> Message:
        headers = {key.lower(): value for key, value in asked.headers.items()}
        return _by_json(replace(asked, headers={**headers, "host": host}))

    return forwarding(server, spelled, _tagged)


def _by_json(asked: Message) -> Message:
    bucket, _, name = unquote(urlsplit(asked.path).path)[1:].partition("/")
    if asked.method == "DELETE":
        return replace(asked, path=f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
    if asked.method == "PUT":
        condition = asked.headers.get("x-goog-if-generation-match")
        query = {"name": name, **({} if condition is None else {"ifGenerationMatch": condition})}
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&{urlencode(query)}"
        return replace(asked, method="POST", path=path)
    return asked


def _tagged(answer: Message) -> Message:
    """The tag of an object that was written, which XML's interface has in a header."""
    if answer.body.startswith(b'{"kind":"storage#object"'):
        answer.headers.setdefault("ETag", json.loads(answer.body)["etag"])
    return answer
