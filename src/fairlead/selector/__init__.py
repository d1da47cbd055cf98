"""Selectors: conditions over header fields and properties of messages (docs/selectors.md)."""

from fairlead.selector.compile import Facts, Selector
from fairlead.selector.compile import compile_selector as compile  # noqa: A004

__all__ = ["Facts", "Selector", "compile"]
