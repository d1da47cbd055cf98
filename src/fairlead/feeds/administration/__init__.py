"""The stream administration: introduces clients to feed adapters, and decides which adapter is active.

A pure machine: conversations are numbers, time is handed in, and what comes back is done first to last.
"""

from fairlead.feeds.administration.machine import Administration
from fairlead.feeds.administration.office import Effect, Keep, Options, Say, Tell

__all__ = ["Administration", "Effect", "Keep", "Options", "Say", "Tell"]
