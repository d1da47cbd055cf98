"""The real server on a temporary directory, for tests: ours and our users'.

    from fairlead.testing import Server

    with Server() as server:
        ...  # server.url is where it listens

It is the same `fairlead serve`, with the same processes, on a port of its own; nothing is simulated. With pytest there
are fixtures as well: `fairlead_server`, `fairlead_connection` and `fairlead_sync` (`fairlead.testing.plugin`).
"""

from fairlead.testing.server import Server

__all__ = ["Server"]
