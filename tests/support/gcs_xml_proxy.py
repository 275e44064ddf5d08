"""Google's XML interface for objects, in front of fake-gcs-server, which writes by JSON's only.

It changes how a request is spelled. What is there, and whether a condition holds, the server says.
"""

import json
from urllib.parse import unquote, urlencode

from forwarding import Message, forwarding

_CONDITION = "x-goog-if-generation-match"


def speaking_xml(server: str):
    """Its URL, while it runs in front of a server."""
    return forwarding(server, _upload, _tagged)


def _upload(asked: Message) -> Message:
    if asked.method != "PUT":
        return asked
    bucket, _, name = asked.path.partition("?")[0].lstrip("/").partition("/")
    headers = {key.lower(): value for key, value in asked.headers.items()}
    query = {"uploadType": "media", "name": unquote(name)}
    if _CONDITION in headers:
        query["ifGenerationMatch"] = headers[_CONDITION]
    path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
    return Message(headers, asked.body, "POST", path)


def _tagged(answer: Message) -> Message:
    """The tag of an object that was written, which XML's interface has in a header."""
    if answer.body.startswith(b'{"kind":"storage#object"'):
        answer.headers.setdefault("ETag", json.loads(answer.body)["etag"])
    return answer
