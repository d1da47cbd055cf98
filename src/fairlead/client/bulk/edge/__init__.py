"""The bulk client's sockets, clock and patience."""
