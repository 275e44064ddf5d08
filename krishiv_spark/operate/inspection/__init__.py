"""What a query's folders say of it, looked at from outside; nothing is changed."""
