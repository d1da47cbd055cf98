"""What one connection manager's engine may take, keep and wait for; `Bounds.of` reads it off the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.runtime.settings import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Numbers only; sizes in bytes, times in milliseconds."""

    connections: int = 8192
    messages_per_round: int = 1
    limit: int = 1000
    resume_below: int = 100
    header_max: int = 65536
    body_max: int = 64 << 20
    frame_max: int = (1 << 20) + 65536
    slow_client_messages: int = 100_000
    slow_client_bytes: int = 64 << 20
    preface_ms: int = 5_000
    handshake_ms: int = 30_000
    keep_alive_ms: int = 30_000
    tls: bool = False
    tunnels: bool = False
    """Connections that begin with HTTP are somebody else's."""

    @classmethod
    def of(cls, config: Config) -> Bounds:
        limits, fairness = config.limits, config.fairness
        return cls(
            connections=limits.connections_per_manager,
            messages_per_round=fairness.messages_per_round,
            limit=fairness.limit,
            resume_below=fairness.resume_below,
            header_max=limits.header_max,
            body_max=limits.body_max,
            frame_max=limits.frame_max,
            slow_client_messages=limits.slow_client_messages,
            slow_client_bytes=limits.slow_client_bytes,
            preface_ms=int(limits.preface_s * 1000),
            handshake_ms=int(limits.handshake_s * 1000),
            keep_alive_ms=int(limits.keep_alive_s * 1000),
            tls=bool(config.security.tls_certificate),
            tunnels=config.tunnel.enabled,
        )
