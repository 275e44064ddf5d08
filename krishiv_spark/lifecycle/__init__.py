"""The methods that Spark calls, implemented by the contracts of sources and sinks.

Only this package contains Spark's method names. It relies on these facts, each observed on PySpark
4.0 to 4.3:

    stream reader   one driver process for the whole query; `read` on pickled copies
    stream writer   created in the planner once per epoch and pickled there; tasks get that copy;
                    created again in the commit process for each commit or abort
    batch writer    created and pickled in the planner; the committer gets that copy too
"""
