"""Reading tables of Delta Lake, and all that this alone needs."""
