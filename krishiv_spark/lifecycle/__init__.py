"""What Spark calls, when and where, in the words of the contracts.

Only this package knows Spark's method names. Facts it rests on, each seen on PySpark 4.0 to 4.3:

    stream reader   one driver process for the whole query; `read` on pickled copies
    stream writer   built in the planner once per epoch and pickled there; tasks get that copy;
                    built anew in the commit process for each commit or abort
    batch writer    built and pickled in the planner; the committer gets that copy too
"""
