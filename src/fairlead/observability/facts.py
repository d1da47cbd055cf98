"""Everything that is known of a server at one moment, as monitoring asks for it."""

from __future__ import annotations

from typing import Any

import msgspec


class Facts(msgspec.Struct, kw_only=True):
    """The status report, the destinations behind it, and the cluster around it."""

    status: dict[str, Any]  # runtime/status.py, in short
    destinations: list[dict[str, Any]] = []  # by name (cluster/showcase.py)
    others: list[dict[str, Any]] = []  # all further ones, of each group as one
    cluster: dict[str, Any] | None = None  # cluster/configuration/overview.py, where there is one
    now_s: float = 0.0  # wall clock
    took_s: float = 0.0  # to ask for all this
    unanswered: list[str] = []  # what was asked and not answered, each with its reason
