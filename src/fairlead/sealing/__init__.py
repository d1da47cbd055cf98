"""Bodies that only the addressee can read, and nobody on the way can change (docs/sealing.md). Needs PyNaCl."""

from fairlead.sealing.bound import Instructions, instructions_of
from fairlead.sealing.envelope import looks_sealed
from fairlead.sealing.keyring import Keyring, Opened
from fairlead.sealing.keys import KeyPair, PublicKey, SharedKey, new_pair, new_shared
from fairlead.sealing.pins import Pins

__all__ = [
    "Instructions",
    "KeyPair",
    "Keyring",
    "Opened",
    "Pins",
    "PublicKey",
    "SharedKey",
    "instructions_of",
    "looks_sealed",
    "new_pair",
    "new_shared",
]
