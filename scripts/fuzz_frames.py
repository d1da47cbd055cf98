"""Coverage-guided fuzzing of the manager's parser with atheris: `scripts/fuzz_frames.py CORPUS -max_total_time=240`.

atheris is not a dependency of the project; docs/fuzzing.md says how to install it, and what was found so far. The plain
twin is instrumented and leads the search; the compiled twin gets the same bytes and has to agree on everything.
Further arguments are libFuzzer's. A finding ends the run and leaves the input in a file `crash-…`.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

with atheris.instrument_imports(include=["fairlead.broker.edge.traffic", "fairlead.broker.answers"]):
    from fairlead.broker.answers import PREFACE, frame
    from tests.wire.fuzzing import play_both

SEED_BODIES = (b"", b"x", bytes(5000), bytes(60_000))


def seeds() -> list[bytes]:
    """Well-formed beginnings, so that the search does not start with finding out what a frame is."""
    found = [frame(kind, topic=b"t", body=body) for kind in (0x05, 0x07, 0x20, 0x21) for body in SEED_BODIES]
    found += [frame(kind, number=7, correlation=9) for kind in (0x02, 0x03, 0x04, 0x06, 0x08, 0x09, 0x0A, 0x0B)]
    pieces = frame(0x20, flags=0x08, topic=b"t", body=struct.pack("<Q", 90_000) + bytes(30_000))
    found.append(pieces + frame(0x02) + frame(0x2F, body=bytes(30_000)) * 2)
    found.append(b"".join(frame(0x20, topic=b"t", body=bytes([i])) for i in range(30)))
    found.append(frame(0x20, topic=b"y" * 3000) + frame(0x20, topic=b"t"))
    # The first two bytes say how the rest is played, see `one`.
    return [b"\1\0" + one for one in found] + [b"\0\7" + PREFACE + one for one in found[:4]]


def one(data: bytes) -> None:
    """Byte 0: live or from the preface on; byte 1: the size of the pieces it is sent in."""
    if len(data) < 3:
        return
    live, size, stream = bool(data[0] & 1), 1 + data[1] * 61, data[2:]
    if not data[1]:
        size = len(stream)
    play_both([stream[at : at + size] for at in range(0, len(stream), size)], live=live)


def main() -> None:
    corpus = next((Path(a) for a in sys.argv[1:] if not a.startswith("-")), None)
    if corpus is not None:
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number:02}").write_bytes(seed)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
