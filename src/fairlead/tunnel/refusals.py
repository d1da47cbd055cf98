"""Why a tunnel could not be opened: each its own class, with a sentence that says what to do."""

from __future__ import annotations

from fairlead.errors import ConnectionLost
from fairlead.tunnel.packets import printable
from fairlead.tunnel.place import Place
from fairlead.tunnel.policy import PACKETS

__all__ = [
    "BadCertificate",
    "NoAnswer",
    "NotAGateway",
    "NotLinked",
    "ProxyAuthentication",
    "ProxyRefused",
    "TooManyTunnels",
    "TunnelDenied",
    "TunnelRefused",
    "UnknownServer",
    "VersionRefused",
    "refused",
]


class TunnelRefused(ConnectionLost):
    """No tunnel this time."""


class UnknownServer(TunnelRefused):
    """404: the gateway neither has a link from a broker of this name nor expects one."""


class NotLinked(TunnelRefused):
    """503, until there was no time left: the broker is known and not there."""


class TooManyTunnels(TunnelRefused):
    """429: a limit of the gateway."""


class TunnelDenied(TunnelRefused):
    """401, 403: by the gateway, or by something on the way to it."""


class VersionRefused(TunnelRefused):
    """The gateway does not take the packet format offered."""

    retryable = False


class NotAGateway(TunnelRefused):
    """Something answers, and it is no gateway: a login page, another web server."""


class NoAnswer(TunnelRefused):
    """Nothing answered in time."""


class BadCertificate(TunnelRefused):
    """TLS: the gateway is not who it should be, or is signed by somebody nobody here knows."""

    retryable = False


class ProxyAuthentication(TunnelRefused):
    """407: the forward proxy wants a login, or another one."""

    retryable = False


class ProxyRefused(TunnelRefused):
    """The forward proxy does not lead to the gateway."""


def refused(place: Place, status: int, content_type: str, text: str, where: str) -> tuple[TunnelRefused, bool]:
    """The error an answer to a connect request stands for, and whether to ask again. `where`: its Location."""
    gateway, why = place.origin, f": {text}" if text else ""
    ours = content_type in (PACKETS, "text/plain")
    match status:
        case 404 if ours:
            return UnknownServer(
                f"The gateway {gateway} knows no broker {place.server!r}; is the name at the end of the URL right, and "
                "is the broker linked?"
            ), False
        case 502 | 503 | 504:
            return NotLinked(
                f"The broker {place.server!r} is not linked to the gateway {gateway} at the moment ({status}{why}); is "
                "it running?"
            ), True
        case 429:
            return TooManyTunnels(f"The gateway {gateway} takes no more tunnels at the moment{why}."), False
        case 401 | 403:
            return TunnelDenied(
                f"{gateway} does not let this client in ({status}{why}): ask whoever runs the gateway, or the proxy "
                "before it."
            ), False
        case 400 | 410 | 426 if ours:
            return VersionRefused(f"The gateway {gateway} refuses the tunnel ({status}{why})."), False
        case 300 | 301 | 302 | 303 | 307 | 308:
            return NotAGateway(f"{gateway} sends this client to {where[:200]!r}: use that URL, or log in there."), False
        case _ if 500 <= status < 600:
            return NoAnswer(f"{gateway} has a fault of its own ({status}{why})."), True
    return NotAGateway(
        f"{gateway}{place.path} answers like no gateway ({status}, {printable(content_type) or 'no type'}): is the URL "
        "right, and does a login page stand before it?"
    ), False
