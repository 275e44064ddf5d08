"""Stores of checkpoints, epoch logs and tables: disks, object stores, HDFS.

A URL and options become a `Folder`, the `Files` of a store, or `Uploads` to it. The options
``storage.<kind>.<setting>`` configure the connection and the login; the environment provides the
rest, as for the store's own tools. A kind of store is a class
(`krishiv_spark.storage.base.BaseStore`).
"""

from krishiv_spark.runtime.contact import use_long_timeouts
from krishiv_spark.storage.base import BaseStore, StoreUrl
from krishiv_spark.storage.files import Files, Folder, Identity
from krishiv_spark.storage.storage import ENVIRONMENT, Storage
from krishiv_spark.storage.uploads import PendingUpload, Upload, Uploads, UploadState

__all__ = [
    "ENVIRONMENT",
    "BaseStore",
    "Files",
    "Folder",
    "Identity",
    "PendingUpload",
    "Storage",
    "StoreUrl",
    "Upload",
    "UploadState",
    "Uploads",
    "use_long_timeouts",
]
