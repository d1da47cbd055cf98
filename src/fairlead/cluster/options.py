"""What can be set for a message manager as a whole: the `[messages]` section, as its machines see it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from fairlead.cluster.directory_keeping import Values

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Defaults are those of the configuration reference; a process takes them from its configuration."""

    segment_bytes: int = 64 * MIB
    quota_bytes: int = 0
    flush_wait_ms: float = 2.0
    sync: Literal["always", "memory"] = "always"
    checkpoint_bytes: int = 256 * MIB
    checkpoint_s: float = 600.0
    fragment_bytes: int = 256 * 1024
    large_bytes: int = MIB
    window_messages: int = 10_000
    window_bytes: int = 8 * MIB
    high_water_commands: int = 1000
    low_water_commands: int = 500
    high_water_bytes: int = 8 * MIB
    low_water_bytes: int = 4 * MIB
    resend_retention_s: float = 600.0
    stage_retention_s: float = 86_400.0
    cache_bytes: int = 32 * MIB
    pool_threads: int = 0
    directory: Values | None = None  # the section [directory], where it may be kept here

    @classmethod
    def of(cls, settings: object, directory: Values | None = None) -> Options:
        """The values of a settings section that has (some of) these names."""
        found = {one.name: getattr(settings, one.name) for one in fields(cls) if hasattr(settings, one.name)}
        return cls(**found, directory=directory)


AT_START: Final = ("segment_bytes", "flush_wait_ms", "sync", "cache_bytes", "pool_threads")
"""Of these the values of the start are valid until the next one."""


def is_live(name: str) -> bool:
    """Does a change of this value of `[messages]` reach message managers that run?"""
    return name not in AT_START and any(one.name == name for one in fields(Options))
