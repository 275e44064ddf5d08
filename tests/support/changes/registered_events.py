"""Events in Avro, and a server with their schemas that answers as a registry does."""

import io
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fastavro

from krishiv_spark.kafka.schemas.registry import RegistrySettings
from servers.threads import serve_in_thread


class SchemaServer:
    """A registry in memory, whose schemas have the ids 1, 2 and so on."""

    def __init__(self):
        self.schemas: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                number = int(self.path.partition("?")[0].rpartition("/")[2])
                is_known = 0 < number <= len(server.schemas)
                found = (
                    {"schema": server.schemas[number - 1]} if is_known else {"error_code": 40403}
                )
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    @property
    def settings(self):
        return RegistrySettings.from_options({"registry.url": self.url})

    def register(self, schema) -> int:
        self.schemas.append(json.dumps(schema))
        return len(self.schemas)

    def write(self, schema_id, value) -> bytes:
        """Return a value as a serializer of a registry writes it."""
        parsed = fastavro.parse_schema(json.loads(self.schemas[schema_id - 1]))
        data = io.BytesIO()
        fastavro.schemaless_writer(data, parsed, value)
        return b"\0" + schema_id.to_bytes(4, "big") + data.getvalue()


@contextmanager
def running_schema_server():
    server = SchemaServer()
    with serve_in_thread(server.http):
        yield server


def named(kind, name, **parameters):
    """Return a type with the name of one of Connect's, as its converters write it."""
    found = {"type": kind, "connect.version": 1, "connect.name": name}
    return found | ({"connect.parameters": parameters} if parameters else {})


def decimal(scale, precision=64):
    """Return Connect's decimal, with the precision that its converters write by default."""
    found = named("bytes", "org.apache.kafka.connect.data.Decimal", scale=str(scale))
    return found | {"scale": scale, "precision": precision, "logicalType": "decimal"}


def optional(kind):
    return ["null", kind]


def make_row(columns, name="Value"):
    fields = [{"name": column, "type": kind} for column, kind in columns.items()]
    return {"type": "record", "name": name, "namespace": "srv.public.t", "fields": fields}


def make_envelope(columns):
    """Return the schema of an envelope, whose second row refers to the first by its name."""
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [
            {"name": "version", "type": "string"},
            {"name": "lsn", "type": ["null", "long"], "default": None},
        ],
    }
    fields = [
        {"name": "before", "type": ["null", make_row(columns)], "default": None},
        {"name": "after", "type": ["null", "srv.public.t.Value"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {"type": "record", "name": "Envelope", "namespace": "srv.public.t", "fields": fields}


def make_event(op, before, after, lsn=1):
    source = {"version": "3", "lsn": lsn}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
