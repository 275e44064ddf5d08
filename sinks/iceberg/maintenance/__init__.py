"""Smaller tables: compaction, expiry, orphans, rollback, and the report of sizes."""
