"""Sources as the world has them: sockets, files, topics. `open_sources` is all an adapter needs."""

from __future__ import annotations

from fairlead.feeds.edge.sources.opening import Sources, check_sources, declared, open_sources

__all__ = ["Sources", "check_sources", "declared", "open_sources"]
