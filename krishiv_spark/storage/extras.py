"""Stores' own clients, which are installed only where they are wanted."""

from __future__ import annotations

from importlib import import_module

from krishiv_spark.errors import OptionError

__all__ = ["require_client"]

_PACKAGES = {
    "s3": ("S3", {"boto3": "boto3"}),
    "azure": (
        "Azure",
        {"azure.storage.blob": "azure-storage-blob", "azure.identity": "azure-identity"},
    ),
}
"""By extra, the store's name and what each module comes from."""


def require_client(extra: str) -> None:
    """Refuse to begin without a store's own client.

    Args:
        extra: Of krishiv-spark, which brings it.

    Raises:
        OptionError: If a package is missing.
    """
    store, modules = _PACKAGES[extra]
    for module, package in modules.items():
        try:
            import_module(module)
        except ImportError as error:
            raise OptionError(
                f"writing Parquet files to {store} needs the package {package}, on every machine: "
                f'pip install "krishiv-spark[{extra}]"'
            ) from error
