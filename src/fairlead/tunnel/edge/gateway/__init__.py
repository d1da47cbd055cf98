"""The gateway as an ASGI application, its link listener, and a server to run it in."""

from __future__ import annotations

from fairlead.tunnel.edge.gateway.app import GatewayApp, gateway_app
from fairlead.tunnel.edge.gateway.settings import GatewaySettings

__all__ = ["GatewayApp", "GatewaySettings", "gateway_app"]
