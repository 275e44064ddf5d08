"""Where checkpoints, epoch logs and tables lie: disks, object stores, HDFS.

A URL and options become a `Folder`, or the `Files` of a store. Options named
``storage.<kind>.<setting>`` say how a store is reached; what they do not say comes from the
environment, as the store's own tools read it.
"""

from krishiv_spark.storage.files import Files, Identity
from krishiv_spark.storage.folder import Folder
from krishiv_spark.storage.patience import be_patient
from krishiv_spark.storage.storage import ENVIRONMENT, Storage
from krishiv_spark.storage.uploads import Became, PendingUpload, Upload, Uploads
from krishiv_spark.storage.urls import StoreUrl

__all__ = [
    "ENVIRONMENT",
    "Became",
    "Files",
    "Folder",
    "Identity",
    "PendingUpload",
    "Storage",
    "StoreUrl",
    "Upload",
    "Uploads",
    "be_patient",
]
