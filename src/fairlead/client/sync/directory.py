"""The directory for programs without an event loop: the methods of `DirectoryClient`, and every call waits.

::

    with fairlead.sync.open_directory("fairlead+directory://d1,d2") as directory:
        print(directory.lookup_app("AZ").app)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

from fairlead.client.sync.runner import Runner
from fairlead.client.target import DirectoryTarget
from fairlead.directory.edge.client import DirectoryClient

__all__ = ["Directory", "open_directory"]


class Directory:
    """May be used by several threads; `close` it, or use `with`."""

    def __init__(self, url: str | Sequence[str] | DirectoryTarget, **options: Any) -> None:
        self._inner = DirectoryClient(url, **options)
        self._runner = Runner()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        inner = self._inner
        found = inspect.getattr_static(inner, name)
        if isinstance(found, property):
            return self._runner.call(lambda: getattr(inner, name))
        method: Callable[..., Any] = getattr(inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(method):
                return self._runner.run(method(*args, **kwargs))
            return self._runner.call(lambda: method(*args, **kwargs))

        return call

    def close(self) -> None:
        """Close the connections to the servers."""
        self._runner.end(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_directory(url: str | Sequence[str] | DirectoryTarget, **options: Any) -> Directory:
    """A client of the directory; options are those of `fairlead.directory.open_directory`."""
    return Directory(url, **options)
