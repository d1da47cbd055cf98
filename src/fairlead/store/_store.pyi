"""Signatures of the compiled rings and arenas: those of their plain twins."""

from fairlead.store.arena import Arena as Arena
from fairlead.store.ring import Consumer as Consumer
from fairlead.store.ring import Producer as Producer
