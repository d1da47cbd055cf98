"""Tunnels beside other ways through HTTP, and beside plain TCP: see README.md."""
