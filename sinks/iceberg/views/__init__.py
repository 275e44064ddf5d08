"""Tables of totals that are kept by changes of another table, exactly once."""
