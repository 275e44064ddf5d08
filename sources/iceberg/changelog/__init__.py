"""What snapshots change: files, then rows, with the two columns that say how."""
