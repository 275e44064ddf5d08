"""Models of the protocols, checked in every order of steps by TLC: ``./run model``."""
