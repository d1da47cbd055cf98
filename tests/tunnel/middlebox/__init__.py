"""Boxes in the middle of a path, as tests need them: see proxy.py for HTTP and wire.py for plain TCP."""
