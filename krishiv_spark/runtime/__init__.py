"""Support for processes: caches, threads, retries, lazy imports, Spark's Python workers."""
