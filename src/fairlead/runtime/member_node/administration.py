"""What can be asked of a member node, by other nodes and on its `admin.sock`.

Nothing here waits: what takes time is begun, and `status` tells how far it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.cluster.configuration.edge.admin_port import AdminPort
from fairlead.cluster.configuration.edge.gathering import Facts, Reply
from fairlead.errors import BadParameter, Unavailable

if TYPE_CHECKING:
    from fairlead.cluster.edge.hosted import Hosted
    from fairlead.runtime.member_node.node import Node


class Administration:
    """Registers the commands of one node."""

    def __init__(self, node: Node, port: AdminPort) -> None:
        self._node = node
        port.handle("status", self._status)
        port.handle("groups", self._groups)
        port.handle("hand-over", self._hand_over)
        port.handle("force", self._force)
        port.handle("electorate", self._electorate)
        port.handle("scrub", self._scrub)
        port.handle("command", self._command)
        port.handle("fault", self._fault)

    def _status(self, _: Facts, reply: Reply) -> Facts:
        return {"status": self._node.facts()}

    def _groups(self, _: Facts, reply: Reply) -> Facts:
        return {"groups": {name: host.facts() for name, host in self._node.hosts.items()}}

    def _hand_over(self, question: Facts, reply: Reply) -> Facts:
        host = self._leader(question)
        to = host.hand_over(str(question.get("to", "")))
        if not to:
            raise Unavailable(f"Nobody else is in sync in group {host.group}.")
        return {"to": to}

    def _force(self, question: Facts, reply: Reply) -> Facts:
        """CLU-151: only with the word that loss is accepted."""
        host = self._host(question)
        if not question.get("accept_loss"):
            raise BadParameter("Forcing a primary can lose confirmed messages: say accept_loss.")
        host.guard(lambda: host.member.force(host.around.clock_s()))
        return {}

    def _electorate(self, question: Facts, reply: Reply) -> Facts:
        host = self._leader(question)
        add, remove = (str(question[key]) if question.get(key) else None for key in ("add", "remove"))
        if add is None and remove is None:
            return {"votes": sorted(host.member.record.electorate)}
        host.guard(lambda: host.member.change_electorate(add, remove, host.around.clock_s()))
        return {"votes": sorted(host.member.record.electorate)}

    def _scrub(self, question: Facts, reply: Reply) -> None:
        """Read everything on disk again; the answer comes when that is done, with digests of the state."""
        self._host(question).scrub(reply)

    def _command(self, question: Facts, reply: Reply) -> None:
        """An administration command of the message manager itself: `name`, `args`."""
        args: Any = question.get("args")
        self._leader(question).admin(str(question.get("name")), args if isinstance(args, dict) else {}, reply)

    def _fault(self, question: Facts, reply: Reply) -> Facts:
        faults = self._node.faults
        if faults is None:
            raise Unavailable("This node was started without the fault switch.")
        return faults.command(question)

    def _host(self, question: Facts) -> Hosted:
        host = self._node.hosts.get(str(question.get("group")))
        if host is None or host.failed:
            raise Unavailable(f"This node has no member of group {question.get('group')!r:.60}.")
        return host

    def _leader(self, question: Facts) -> Hosted:
        host = self._host(question)
        if not host.leads:
            raise Unavailable(f"This node does not lead group {host.group}; {host.member.primary or 'nobody'} does.")
        return host
