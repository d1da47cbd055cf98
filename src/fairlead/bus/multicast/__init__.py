"""Reliable multicast: numbered packets, repair on request, flow control by reports."""
