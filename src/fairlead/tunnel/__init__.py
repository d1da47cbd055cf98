"""Reliable byte streams through plain HTTP: packets, the two ends, the gateway between them. See docs/tunnel.md."""
