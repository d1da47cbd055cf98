"""A manager's unix link at the agent: read in slices by group, written like any link."""

from __future__ import annotations

import socket

from fairlead.cluster.client_manager.agent import Agent
from fairlead.cluster.client_manager.managers import ManagerLink
from fairlead.cluster.demuxing import runs
from fairlead.cluster.edge.wiring import Wire


class ManagerWire(Wire):
    """The edge of a `ManagerLink`."""

    def __init__(self, sock: socket.socket, link: ManagerLink) -> None:
        super().__init__(sock, link)
        self.manager_link = link

    def pass_on(self, agent: Agent) -> bool:
        """One read, and all frames that are whole now, to where they belong. False: the link is lost.

        RemoteProtocolError: it has to be ended.
        """
        view = memoryview(self._buffer)
        try:
            count = self.sock.recv_into(view[self._filled :])
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not count:
            return False
        self.bytes_in += count
        self._filled += count
        found, self._used = runs(view, 0, self._filled, True)
        if found:
            agent.from_manager(self.manager_link, view, found)
        view.release()
        self.settle()
        return True
