"""Reading what krishiv-sketch reads, and all that this alone needs."""
