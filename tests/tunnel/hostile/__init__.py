"""Tunnels in a bad world: real processes, real proxies, real kills. Nothing is looked at from inside."""
