"""Changes of files in a store by another program, with the store's own client.

It does not use obstore: the kit forks from the process that adds rows, which obstore does not
survive.
"""

from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import requests

from krishiv_spark.storage import StoreUrl


class Objects:
    """Files below a place of a store.

    Args:
        store: Of `servers.stores`.
        folder: Below that of the store.
    """

    def __init__(self, store, folder=""):
        self.url, self.options = f"{store.url}/{folder}".rstrip("/"), dict(store.options)
        url = StoreUrl.parse(self.url)
        self._prefix = f"{url.path}/"
        self._client = CLIENTS[url.kind](store, url)

    def put(self, path, data):
        self._client.put(self._prefix + path, data)

    def remove(self, path):
        self._client.remove(self._prefix + path)

    def put_table(self, path, table, **written):
        self.put(path, parquet_bytes(table, **written))

    def numbers(self, path, *numbers):
        self.put_table(path, pa.table({"n": pa.array(numbers, pa.int64())}))


class _S3:
    def __init__(self, store, url):
        import boto3

        said = {name.rpartition(".")[2]: value for name, value in store.options.items()}
        self._box = url.bucket
        self._client = boto3.client(
            "s3",
            endpoint_url=said["endpoint"],
            region_name=said["region"],
            aws_access_key_id=said["accessKeyId"],
            aws_secret_access_key=said["secretAccessKey"],
        )

    def put(self, key, data):
        self._client.put_object(Bucket=self._box, Key=key, Body=data)

    def remove(self, key):
        self._client.delete_object(Bucket=self._box, Key=key)


class _Azure:
    def __init__(self, store, url):
        from azure.storage.blob import ContainerClient

        said = {name.rpartition(".")[2]: value for name, value in store.options.items()}
        self._box = ContainerClient(said["endpoint"], url.bucket, credential=said["accountKey"])

    def put(self, key, data):
        self._box.upload_blob(key, data, overwrite=True)

    def remove(self, key):
        self._box.delete_blob(key)


class _Gcs:
    """By its JSON interface, as Google's own clients."""

    def __init__(self, store, url):
        self._root = store.hadoop["fs.gs.storage.root.url"].rstrip("/")
        self._box = url.bucket

    def put(self, key, data):
        url = f"{self._root}/upload/storage/v1/b/{self._box}/o"
        named = {"uploadType": "media", "name": key}
        requests.post(url, params=named, data=data, timeout=60).raise_for_status()

    def remove(self, key):
        url = f"{self._root}/storage/v1/b/{self._box}/o/{quote(key, safe='')}"
        requests.delete(url, timeout=60).raise_for_status()


class _Hdfs:
    def __init__(self, store, url):
        self._root = f"{store.options['storage.hdfs.endpoint']}/webhdfs/v1"
        self._ask("PUT", url.path, {"op": "MKDIRS"})

    def put(self, key, data):
        folder, _, name = key.rpartition("/")
        aside = f"{folder}/.{name}"
        self._ask("PUT", folder, {"op": "MKDIRS"})
        self._ask("PUT", aside, {"op": "CREATE", "overwrite": "true"}, data)
        self.remove(key)
        self._ask("PUT", aside, {"op": "RENAME", "destination": key})

    def remove(self, key):
        self._ask("DELETE", key, {"op": "DELETE"})

    def _ask(self, verb, path, query, data=None):
        given = {**query, "user.name": "root"}
        url = self._root + quote(path)
        answer = requests.request(verb, url, params=given, allow_redirects=data is None, timeout=60)
        if data is not None:
            answer = requests.put(answer.headers["Location"], data=data, timeout=60)
        answer.raise_for_status()


CLIENTS = {"s3": _S3, "azure": _Azure, "gcs": _Gcs, "hdfs": _Hdfs}


def parquet_bytes(table, **written):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **written)
    return bytes(sink.getvalue())
