"""Reliable byte streams through plain HTTP: packets, the two ends, the gateway between them. See docs/tunnel.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.tunnel.options import TunnelOptions

if TYPE_CHECKING:
    from fairlead.tunnel.edge.blocking import TunnelSocket
    from fairlead.tunnel.edge.dial import open_stream
    from fairlead.tunnel.edge.gateway.app import gateway_app
    from fairlead.tunnel.edge.gateway.settings import GatewaySettings
    from fairlead.tunnel.edge.server import TunnelServer
    from fairlead.tunnel.edge.stream import TunnelStream

__all__ = [
    "GatewaySettings",
    "TunnelOptions",
    "TunnelServer",
    "TunnelSocket",
    "TunnelStream",
    "gateway_app",
    "open_stream",
]

LATER = {
    "GatewaySettings": "gateway.settings",
    "TunnelServer": "server",
    "TunnelSocket": "blocking",
    "TunnelStream": "stream",
    "gateway_app": "gateway.app",
    "open_stream": "dial",
}
"""Found when they are asked for: whoever wants one does not wait for all the others to be read."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.edge.{LATER[name]}"), name)
