"""The processes in which connectors run, and the seam to the outside in them."""
