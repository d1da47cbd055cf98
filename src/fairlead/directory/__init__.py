"""The directory: how an application finds a broker, and another application by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.directory.edge.client import DirectoryClient, open_directory

__all__ = ["DirectoryClient", "open_directory"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module("fairlead.directory.edge.client"), name)
    globals()[name] = found
    return found
