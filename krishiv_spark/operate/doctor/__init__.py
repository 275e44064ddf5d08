"""What a cluster lacks for exactly-once queries: looked at where they will run.

The questions travel as a data source of Spark's, so that its planner process answers for the
driver's machine, and its tasks for the executors': with the Python, the packages, the credentials
and the network that connectors find there.
"""
