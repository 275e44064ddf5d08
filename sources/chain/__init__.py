"""Reading a table and then its topics, and all that this alone needs."""
