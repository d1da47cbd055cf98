"""One host of a directory of several: a member that keeps a copy, and a client manager in front of it."""
