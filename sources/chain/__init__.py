"""The source ``krishiv-chain``, which reads a table and then its topics."""
