"""The demo: a year of real flights through a stream that is killed and resumed."""
