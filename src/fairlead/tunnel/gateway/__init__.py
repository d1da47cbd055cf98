"""The gateway without its sockets: tunnels, buffers, links, tokens, limits."""

from fairlead.tunnel.gateway.effects import Answer, CloseLink, CloseStream, Effect, Log, Reply, ToLink, ToStream
from fairlead.tunnel.gateway.flow import FlowStatus
from fairlead.tunnel.gateway.gateway import Gateway
from fairlead.tunnel.gateway.limits import Limits
from fairlead.tunnel.gateway.status import Counters, GatewayStatus, LinkStatus, TunnelStatus

__all__ = [
    "Answer",
    "CloseLink",
    "CloseStream",
    "Counters",
    "Effect",
    "FlowStatus",
    "Gateway",
    "GatewayStatus",
    "Limits",
    "LinkStatus",
    "Log",
    "Reply",
    "ToLink",
    "ToStream",
    "TunnelStatus",
]
