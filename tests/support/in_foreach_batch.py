"""A sink as functions of ``foreachBatch`` use it: each epoch is a batch job with a number."""

from pyspark.sql import datasource as spark

from krishiv_spark.checkpoint import SparkCheckpoint

_StreamArrowWriter = getattr(spark, "DataSourceStreamArrowWriter", spark.DataSourceStreamWriter)


def in_foreach_batch(source):
    """The class of a format, whose streams write by numbered jobs."""

    class InForeachBatch(source):
        def streamWriter(self, schema, overwrite):
            return _Batches(source, self.options, schema, overwrite)

    return InForeachBatch


class _Batches(_StreamArrowWriter, spark.DataSourceArrowWriter):
    """What the kit takes for the writer of a stream."""

    def __init__(self, source, options, schema, overwrite):
        self._source, self._options = source, dict(options)
        self._schema, self._overwrite = schema, overwrite
        self._checkpoint = SparkCheckpoint(options["checkpointLocation"])
        self._planned = None

    def __getstate__(self):
        if self._planned is None:
            self._planned = self._job(self._checkpoint.planned_offsets().epoch)
        return self.__dict__  # with which the job is planned

    def _job(self, number):
        job = {
            "txnAppId": f"{self._checkpoint.query_id()}-output",
            "txnVersion": str(number),
            "txnRepeats": "newest",
        }
        return self._source({**self._options, **job}).writer(self._schema, self._overwrite)

    @property
    def _writer(self):
        """The author's, by whose verb `discard` the kit tries it."""
        return self._job(0)._writer

    def write(self, iterator):
        return self._planned.write(iterator)

    def commit(self, messages, batchId):
        self._job(batchId).commit(messages)

    def abort(self, messages, batchId):
        self._job(batchId).abort(messages)
