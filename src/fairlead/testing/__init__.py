"""The real server on a temporary directory, for tests: ours and our users'.

    from fairlead.testing import Server

    with Server() as server:
        ...  # server.url is where it listens

`Cluster` is the same for several nodes that survive each other's loss, `DirectorySet` for servers of a directory. It is
the same `fairlead serve`, with the same processes, on a port of its own; nothing is simulated. With pytest there are
fixtures as well: `fairlead_server`, `fairlead_connection` and `fairlead_sync` (`fairlead.testing.plugin`).
"""

from typing import TYPE_CHECKING, Any

from fairlead.testing.server import Server

if TYPE_CHECKING:
    from fairlead.testing.cluster import Cluster
    from fairlead.testing.directory import DirectorySet

__all__ = ["Cluster", "DirectorySet", "Server"]


def __getattr__(name: str) -> Any:
    """Others than `Server` are loaded when they are used: this package is loaded in every run of pytest."""
    if name == "Cluster":
        from fairlead.testing.cluster import Cluster

        return Cluster
    if name == "DirectorySet":
        from fairlead.testing.directory import DirectorySet

        return DirectorySet
    raise AttributeError(name)
