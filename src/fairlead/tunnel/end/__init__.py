"""The connection layer: numbers, order, acknowledgement, resending, window, options, close and abort; pure."""

from fairlead.tunnel.end.end import End
from fairlead.tunnel.end.status import EndStatus, Role, State
from fairlead.tunnel.packets import Abort

__all__ = ["Abort", "End", "EndStatus", "Role", "State"]
