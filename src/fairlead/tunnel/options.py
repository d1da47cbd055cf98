"""What a client may say about its tunnel: in code, or behind the `?` of the URL, which has the last word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from fairlead.errors import ConfigError
from fairlead.tunnel.rules import HOLD_S, Rules

__all__ = ["TunnelOptions", "changed"]

YES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
SECONDS_MAX = 3600.0


class TunnelOptions(NamedTuple):
    """How to reach a gateway. The defaults suit most places."""

    proxy: str | None = None
    """`http://user:password@host:port` of a forward proxy; "": none, whatever the environment says."""
    allow_plain: bool = False
    """`http://` to another machine: whoever listens on the way can take the tunnel over."""
    websocket: Literal["auto", "never"] = "auto"
    http2: bool = False
    """Where the gateway (or a reverse proxy before it) speaks it, which `https://` finds out."""
    pull_period_s: float = 0.0
    """How often to ask an idle tunnel for packets, in whole seconds; 0: the gateway holds the question until then."""
    hold_s: float = HOLD_S
    """How long it holds it; less is found by itself where a proxy cuts that short."""
    ca: str | None = None
    """File with the certificates to trust, instead of the system's."""
    allow_v1: bool = False
    """Take a gateway that speaks version 1 only: nothing protects a tunnel there."""
    rules: Rules = Rules()


def changed(options: TunnelOptions, query: Iterable[tuple[str, str]]) -> TunnelOptions:
    """With what the query of a URL says; ConfigError for what it cannot say."""
    said: dict[str, Any] = {}
    for name, text in query:
        match name:
            case "proxy" | "ca":
                said[name] = text
            case "allow_plain" | "allow_v1" | "http2":
                said[name] = _flag(name, text)
            case "websocket":
                if text not in ("auto", "never"):
                    raise ConfigError(f"websocket is auto or never, not {text[:40]!r}.")
                said[name] = text
            case "pull_period_s" | "hold_s":
                said[name] = _seconds(name, text)
            case _:
                raise ConfigError(
                    f"A tunnel has no option {name[:40]!r}. There are: "
                    "proxy, allow_plain, allow_v1, websocket, http2, pull_period_s, hold_s, ca."
                )
    return options._replace(**said)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in YES:
        raise ConfigError(f"{name} is 1 or 0, not {text[:40]!r}.")
    return YES[text.lower()]


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= SECONDS_MAX:
        raise ConfigError(f"{name} is a number of seconds from 0 to {SECONDS_MAX:g}, not {text[:40]!r}.")
    return value
