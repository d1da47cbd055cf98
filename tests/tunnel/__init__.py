"""Tunnels: see docs/tunnel.md."""
