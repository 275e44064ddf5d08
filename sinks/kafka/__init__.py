"""Writing topics, and all that this alone needs."""
