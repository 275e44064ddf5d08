"""The suites that authors inherit."""
