"""The tour as it happens: processes, sockets, a terminal, and a directory that is gone afterwards."""
