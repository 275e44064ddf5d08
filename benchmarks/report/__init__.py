"""The results of a run of the benchmarks, and its reports."""
