"""Sealed bodies: see docs/sealing.md."""
