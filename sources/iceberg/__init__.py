"""Reading tables, and all that this alone needs."""
