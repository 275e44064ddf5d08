"""Azure fails while a task of Spark's writes: everything that Spark shows of it, as JSON.

Arguments: a folder for what Spark keeps, and "down" or "repeats": whether Azure breaks off, or
refuses with a page that repeats the request. The signature is in the variable ``SIGNATURE``.
"""

import http.server
import json
import sys
import threading
import urllib.request
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pyspark.sql import SparkSession

XML = {"Content-Type": "application/xml"}
BLOB = (
    "<Blob><Name>{}</Name><Properties><Last-Modified>Thu, 01 Jul 2021 10:45:02 GMT</Last-Modified>"
    "<Content-Length>{}</Content-Length><Etag>0x1</Etag><Content-Type>x/x</Content-Type><BlobType>BlockBlob</BlobType>"
    "</Properties></Blob>"
)


class Azure(http.server.BaseHTTPRequestHandler):
    """As much of it as a table needs, until the first file of rows is sent."""

    protocol_version = "HTTP/1.1"
    blobs: dict = {}  # noqa: RUF012
    blocks: dict = {}  # noqa: RUF012

    def answer(self):
        url = urlsplit(self.path)
        query, name = dict(parse_qsl(url.query)), unquote(url.path).split("/", 3)[-1]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT" and query.get("comp") == "block" and "/part-" in name:
            if sys.argv[2] == "repeats":
                self.send_error(403, f"refused: {self.path}")
                return
            self.server.socket.close()
            self.connection.close()
            self.close_connection = True
            return
        status, page, headers = self.found(query, name, body)
        self.send_response(status)
        common = {"ETag": '"0x1"', "Last-Modified": "Thu, 01 Jul 2021 10:45:02 GMT"}
        for key, text in {"Content-Length": str(len(page)), **common, **headers}.items():
            self.send_header(key, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    def found(self, query, name, body):  # noqa: PLR0911  one for each operation
        blobs, blocks = self.blobs, self.blocks
        if query.get("comp") == "list":
            start = query.get("prefix", "")
            items = "".join(BLOB.format(n, len(blobs[n])) for n in blobs if n.startswith(start))
            page = f"<EnumerationResults><Blobs>{items}</Blobs><NextMarker /></EnumerationResults>"
            return 200, page.encode(), XML
        if self.command == "PUT" and query.get("comp") == "block":
            blocks.setdefault(name, []).append(query["blockid"])
            return 201, b"", {}
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and name in blobs:
                return 409, b"<Error/>", {"x-ms-error-code": "BlobAlreadyExists"}
            blobs[name] = body
            blocks.pop(name, None)
            return 201, b"", {}
        if query.get("comp") == "blocklist":
            listed = "".join(
                f"<Block><Name>{b}</Name><Size>1</Size></Block>" for b in blocks.get(name, ())
            )
            text = f"<BlockList><UncommittedBlocks>{listed}</UncommittedBlocks></BlockList>"
            return 200, text.encode(), XML
        if self.command == "DELETE":
            blobs.pop(name, None)
            return 202, b"", {}
        if name in blobs:
            return 200, blobs[name], {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2023-11-03"}
        return 404, b"<Error><Code>BlobNotFound</Code></Error>", {"x-ms-error-code": "BlobNotFound"}

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def log_message(self, *_):
        pass


def main(home: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Azure)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (home / "events").mkdir(parents=True)
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{home}/events")
        .config("spark.task.maxFailures", 1)
        .getOrCreate()
    )
    options = {
        "storage.azure.endpoint": f"http://127.0.0.1:{server.server_port}/acct",
        "storage.azure.accountName": "acct",
        "storage.azure.sasToken": "sp=rcwdl&sig=${env:SIGNATURE}",
        "storage.azure.timeout": "2s",
        "epochLog": f"{home}/log",
        "logLevel": "debug",
    }
    shown = {}
    try:
        frame = spark.range(3).coalesce(1).write.format("krishiv-parquet").mode("append")
        frame.options(**options).save("az://c/table")
    except Exception as error:  # noqa: BLE001  Spark's own
        shown["exception"] = str(error)
    context = spark.sparkContext
    stages = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages"
    with urllib.request.urlopen(stages) as answer:
        shown["stages"] = answer.read().decode()
    spark.stop()
    files = [path for path in (home / "events").rglob("*") if path.is_file()]
    shown["events"] = "".join(path.read_text() for path in files)
    print("RESULT", json.dumps(shown))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
