"""The sink ``krishiv-fanout``: several targets, each epoch in all of them or in none."""
