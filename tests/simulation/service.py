"""What a group's log means: who was accepted up to where. Two equal logs are two equal states."""

from __future__ import annotations

import msgspec

START, SEND, LIFE, RECORD = 0, 1, 2, 3


class Entry(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    kind: int
    session: str = ""
    life: int = 0
    number: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def packed(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def unpacked(data: bytes) -> Entry:
    return _decoder.decode(data)


class State:
    def __init__(self) -> None:
        self.applied = 0
        self.accepted: dict[str, int] = {}
        self.place: dict[tuple[str, int], int] = {}
        self.life: dict[str, int] = {}
        self.life_at: dict[str, int] = {}

    def apply(self, entries: list[bytes], upto: int) -> None:
        for index in range(self.applied + 1, upto + 1):
            entry = unpacked(entries[index - 1])
            if entry.kind == SEND:
                self.accepted[entry.session] = max(entry.number, self.accepted.get(entry.session, 0))
                self.place[entry.session, entry.number] = index
            if entry.kind != START and entry.life > self.life.get(entry.session, 0):
                self.life[entry.session], self.life_at[entry.session] = entry.life, index
        self.applied = max(self.applied, upto)
