"""Checks of a cluster for exactly-once queries, made on the machines that will run them.

The checks are in a data source of Spark, which runs in Spark's planner process on the driver's
machine, and in tasks on the executors' machines. So they use the Python, the packages, the
credentials and the network of those machines.
"""
