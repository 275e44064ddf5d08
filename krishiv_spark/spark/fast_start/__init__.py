"""Spark's Python processes, forked from one that has imported everything: `fast_start`.

Spark starts a dozen of them for a query, each as ``PYTHON -m MODULE``. Spark has a setting for the
Python, but none for the module, except that of tasks (``spark.python.daemon.module``; PySpark 4.0
to 4.3, ``SparkEnv.createPythonWorker``). So the Python is a program of this package,
``krishiv-spark-python``:

* `launcher` is the program that Spark starts. It sends a request to the zygote, and stands in for
  the process that the zygote forks.
* `zygote` is started by the first launcher of a JVM. It imports, forks, and ends with the JVM.
* `requests` is the protocol between the two, and the checks that both sides share.

A process that a fork cannot replace is started as Spark would start it. A launcher imports this
package each time, so this module imports nothing.
"""
