"""The feed adapter's machines: numbers, the retained buffer, and administrative messages at equal places.

`Adapter` is told what happened and when, and answers with actions; nothing here waits for anybody.
"""

from fairlead.feeds.adapter.machine import Adapter, Limits

__all__ = ["Adapter", "Limits"]
