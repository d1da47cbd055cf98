"""Redundant message streams: feed adapters, their administration, and what clients make of two streams (docs/feeds.md).

Pure machines; sockets, files and clocks are in `edge/`.
"""
