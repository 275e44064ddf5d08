"""Python processes of Spark that are forked from one that has imported everything: `fast_start`.

Spark starts a dozen of them for a query, each as ``PYTHON -m MODULE``. Which Python that is can be
said; which module cannot, but for tasks (``spark.python.daemon.module``; so in PySpark 4.0 to
4.3, ``SparkEnv.createPythonWorker``). So the Python is a program of ours, ``krishiv-spark-python``:

* `launcher` is what Spark starts: it hands its request on, and stands in for the process that is
  forked for it.
* `zygote` is started by the first launcher of a JVM, imports, forks, and ends with the JVM.
* `requests` is what goes between the two, and what has to be the same on both sides.

Whatever does not fit is started as Spark would start it. A launcher imports this package each
time, so nothing is imported here.
"""
