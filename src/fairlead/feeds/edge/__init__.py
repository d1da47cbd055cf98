"""What of the streams touches sockets, clocks and processes."""
