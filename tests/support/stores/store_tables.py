"""An independent reader that lists a folder; without obstore, which does not survive a fork."""

from io import BytesIO
from urllib.parse import quote

import boto3
import pyarrow.parquet as pq
import requests
from azure.storage.blob import ContainerClient

from krishiv_spark.parquet.layout import is_hidden
from krishiv_spark.storage import Storage, StoreUrl


class Onlooker:
    """Sees what readers of the table see."""

    def keys(self):
        """The keys of what a reader of the table takes, relative to it."""
        return [key for key in self.iter_files() if not any(map(is_hidden, key.split("/")))]

    def rows(self):
        """All rows; looks anew if a file goes meanwhile.

        One that is replaced may go while another removal sleeps: a process removes side by side.
        """
        keys = self.keys()
        try:
            return [row for key in keys for row in self._rows_of(key)]
        except Exception:
            if set(keys) <= set(self.keys()):
                raise
        return self.rows()

    def _rows_of(self, key):
        in_path = dict(part.split("=") for part in key.split("/") if "=" in part)
        for row in pq.ParquetFile(BytesIO(self.read(key))).read().to_pylist():
            yield {**row, **in_path}

    def ids(self):
        return sorted(row["id"] for row in self.rows())


class S3Onlooker(Onlooker):
    def __init__(self, url: str, options) -> None:
        said = {key.rpartition(".")[2]: value for key, value in options.items()}
        place = StoreUrl.parse(url)
        self._bucket, self._prefix = place.bucket, f"{place.path}/"
        self._s3 = boto3.client(
            "s3",
            endpoint_url=said["endpoint"],
            region_name=said["region"],
            aws_access_key_id=said["accessKeyId"],
            aws_secret_access_key=said["secretAccessKey"],
        )

    def iter_files(self):
        pager = self._s3.get_paginator("list_objects_v2")
        for page in pager.paginate(Bucket=self._bucket, Prefix=self._prefix):
            for item in page.get("Contents", ()):
                yield item["Key"].removeprefix(self._prefix)

    def read(self, key):
        return self._s3.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()

    def remove(self, key):
        self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def pending(self):
        found = self._s3.list_multipart_uploads(Bucket=self._bucket, Prefix=self._prefix)
        return [(item["Key"], item["UploadId"]) for item in found.get("Uploads", ())]

    def expire(self):
        """Abort what is pending, as a rule of the bucket does."""
        for key, upload in self.pending():
            self._s3.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)


class AzureOnlooker(Onlooker):
    def __init__(self, url: str, options) -> None:
        said = {key.rpartition(".")[2]: value for key, value in options.items()}
        place = StoreUrl.parse(url)
        self._prefix = f"{place.path}/"
        self._box = ContainerClient(said["endpoint"], place.bucket, credential=said["accountKey"])

    def iter_files(self):
        for name in self._box.list_blob_names(name_starts_with=self._prefix):
            yield name.removeprefix(self._prefix)

    def read(self, key):
        return self._box.download_blob(self._prefix + key).readall()

    def remove(self, key):
        self._box.delete_blob(self._prefix + key)

    def pending(self):
        found = self._box.list_blobs(self._prefix, include=["uncommittedblobs"])
        return sorted(
            {blob.name.removeprefix(self._prefix) for blob in found} - {*self.iter_files()}
        )

    def expire(self):
        """Delete blocks that were not committed for a week, as Azure does."""
        for key in self.pending():
            self._box.get_blob_client(self._prefix + key).commit_block_list([])
            self.remove(key)


class GcsOnlooker(Onlooker):
    def __init__(self, url: str, options) -> None:
        place = StoreUrl.parse(url)
        self._root, self._box = options["storage.gcs.endpoint"], place.bucket
        self._prefix = f"{place.path}/"

    def iter_files(self):
        url, page = f"{self._root}/storage/v1/b/{self._box}/o", {"prefix": self._prefix}
        while page is not None:
            found = self._asked("GET", url, params=page).json()
            for item in found.get("items", ()):
                yield item["name"].removeprefix(self._prefix)
            token = found.get("nextPageToken")
            page = {**page, "pageToken": token} if token else None

    def read(self, key):
        return self._asked("GET", self._url(key)).content

    def remove(self, key):
        self._asked("DELETE", self._url(key))

    def pending(self):
        aside = "_krishiv/uploads/"
        return [key.removeprefix(aside) for key in self.iter_files() if key.startswith(aside)]

    def expire(self):
        """Remove what lies aside, as a rule of the bucket does."""
        for name in self.pending():
            self.remove(f"_krishiv/uploads/{name}")

    def _url(self, key):
        return f"{self._root}/{self._box}/{quote(self._prefix + key)}"

    def _asked(self, method, url, **more):
        answer = requests.request(method, url, timeout=60, **more)
        answer.raise_for_status()
        return answer


class HdfsOnlooker(Onlooker):
    def __init__(self, url: str, options) -> None:
        self._folder = Storage.of(options).folder(url)
        self._aside = Storage.of(options).folder(f"{url}/_krishiv/uploads")

    def iter_files(self):
        return self._folder.iter_files()

    def read(self, key):
        return self._folder.read(key)

    def remove(self, key):
        self._folder.remove([key])

    def pending(self):
        return list(self._aside.names())

    def expire(self):
        """Remove what lies aside, as somebody does who tidies up."""
        self._aside.remove(self.pending())


def make_onlooker(url: str, options) -> Onlooker:
    """One of the right kind."""
    return _KINDS[StoreUrl.parse(url).kind](url, options)


_KINDS = {"s3": S3Onlooker, "azure": AzureOnlooker, "gcs": GcsOnlooker, "hdfs": HdfsOnlooker}
