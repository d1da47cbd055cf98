"""Reads and writes the files of a node, and carries the talk about them over the bus."""
