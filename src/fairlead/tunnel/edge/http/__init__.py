"""The client driver: packets as bodies of HTTP requests, or as WebSocket frames."""

from __future__ import annotations

from fairlead.tunnel.edge.http.driver import HttpDriver
from fairlead.tunnel.edge.http.opening import Opened, open_tunnel

__all__ = ["HttpDriver", "Opened", "open_tunnel"]
