"""What a run of the benchmarks has found, and its reports."""
