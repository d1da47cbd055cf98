"""A message as the application sees it; the class itself is part of the codec, plain or compiled."""

from __future__ import annotations

from fairlead.wire.codec import Message

__all__ = ["Message"]
