"""Writing what krishiv-sketch writes, and all that this alone needs."""
