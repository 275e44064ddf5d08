"""Iceberg's own REST catalog (its reference implementation, in Java) on a port of loopback.

``RESTCatalogServer`` of the same jars listens on every address of the machine, so its servlet is
put into a server here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from krishiv_spark.kafka.dev.maven import Jar, bring, java
from servers.forwarding import Message
from servers.spark_clients import client_jars
from servers.stores import Store

ICEBERG, JETTY = "1.11.0", "12.1.5"
JARS = (
    Jar("org.apache.iceberg", "iceberg-core", ICEBERG),
    Jar("org.apache.iceberg", "iceberg-core", ICEBERG, "tests"),  # the servlet
    Jar("org.apache.hadoop", "hadoop-client-api", "3.4.2"),
    Jar("org.apache.hadoop", "hadoop-client-runtime", "3.4.2"),
    Jar("org.eclipse.jetty.ee10", "jetty-ee10-servlet", JETTY),
    Jar("org.xerial", "sqlite-jdbc", "3.51.1.0"),
)
ORIGIN = f"Iceberg {ICEBERG}"


@contextmanager
def open_rest_catalog(folder: Path, store: Store | None = None) -> Iterator[str]:
    """Its URI; tables are in the folder, or in a store.

    Raises:
        KrishivError: If the jars cannot be had.
    """
    jars = [f"{bring(f'iceberg-rest-{ICEBERG}', JARS, transitive=True)}/*"]
    if store is not None:  # Hadoop's client of it, and first the Hadoop that it was built with
        spark, scheme = Path(pyspark.__path__[0], "jars"), store.url.partition(":")[0]
        hadoop = spark.glob("hadoop-client-*.jar")
        jars = [*map(str, [*hadoop, *client_jars(scheme)]), *jars, f"{spark}/*"]
    process, gateway = _java(":".join(jars))
    try:
        yield f"http://127.0.0.1:{_served(gateway.jvm, folder, store)}"
    finally:
        gateway.close()
        process.kill()
        process.stdin.close()
        process.wait()


def _java(class_path: str) -> tuple[Any, JavaGateway]:
    (carried,) = (Path(pyspark.__path__[0]) / "jars").glob("py4j-*.jar")
    port, token, process = launch_gateway(
        jarpath=str(carried),
        classpath=class_path,
        javaopts=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
        java_path=java(),
        enable_auth=True,
        return_proc=True,
    )
    given = GatewayParameters(port=port, auth_token=token, auto_convert=True)
    return process, JavaGateway(gateway_parameters=given)


def _served(jvm: Any, folder: Path, store: Store | None) -> int:
    """Serve a catalog in SQLite; return its port."""
    iceberg, jetty = jvm.org.apache.iceberg, jvm.org.eclipse.jetty
    known = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder}/rest.db",
        "warehouse": str(folder) if store is None else store.url,
    }
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in ({} if store is None else store.hadoop).items():
        configuration.set(name, value)
    catalog = iceberg.CatalogUtil.buildIcebergCatalog("backend", known, configuration)
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(catalog))
    context = jetty.ee10.servlet.ServletContextHandler()
    context.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(context)
    server.start()
    return server.getURI().getPort()


def refuse_properties(request: Message) -> Message:
    """Answer 400 to every request that sets properties."""
    if request.method != "POST" or "/tables" not in request.path:
        return request
    body = json.loads(request.body)
    actions = {one["action"] for one in body.get("updates", ())}
    if body.get("properties") or "set-properties" in actions:
        error = {"message": "prohibited keys", "type": "BadRequestException", "code": 400}
        refused = json.dumps({"error": error}).encode()
        return Message({"Content-Type": "application/json"}, refused, status=400)
    return request
