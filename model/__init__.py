"""What the protocols promise, checked in every order of steps by TLC: ``./run model``."""
