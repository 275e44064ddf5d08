"""The state of a query by its checkpoint, log and target; nothing is changed."""
