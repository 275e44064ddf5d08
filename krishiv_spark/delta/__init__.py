"""Code that reading and writing tables of Delta Lake share. The library is ``deltalake``."""
