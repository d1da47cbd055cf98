"""What the stream administration keeps: written down before anybody is told of it, read again by the next one.

Times are of the wall clock, since the next one may live on after the machine was started anew.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.feeds.words import Count, Name, Source

__all__ = ["Kept", "KeptGroup", "KeptMember", "KeptPass"]


class KeptMember(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An adapter of a group."""

    name: Name
    address: Name
    incarnation: Count
    preference: int
    heartbeat_s: float
    link_token: Name
    is_here: bool = True  # it is expected to come back to an administration that was started anew
    sources: Annotated[tuple[Source, ...], Meta(max_length=1024)] = ()


class KeptPass(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's right to the lines of a stream."""

    token: Name
    client: Name
    user: str
    expires_s: float


class KeptGroup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    stream: Name
    epoch: Count
    highest: Count  # epoch ever named to anybody, in a planned switch too
    active: str
    threshold: int
    promised: tuple[Count, str] = (0, "")  # epoch and adapter of the last planned switch, done or not
    schema: str = ""
    failovers: Count = 0
    switches: Count = 0
    members: tuple[KeptMember, ...] = ()
    passes: tuple[KeptPass, ...] = ()
    revoked: dict[str, float] = {}  # tokens that adapters may still believe in, and until when
    barred_clients: tuple[str, ...] = ()  # revoked by an operator, until permitted again
    barred_users: tuple[str, ...] = ()


class Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    groups: tuple[KeptGroup, ...] = ()
    lenient_until_s: float = 0.0  # tokens unknown to us may be from a store that was lost: let them expire
