"""Reads a journal for the life of one message, as a process of its own: the server goes on as if nobody had asked.

::

    python -m fairlead.cluster.edge.life_reader JOURNAL {"id": "…"}

Every record is checked before it is believed. The answer is one line of JSON on standard output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.cluster.life import Life, Record, Search, destinations_of
from fairlead.errors import FairleadError, RequestTimeout, Unavailable
from fairlead.journal.edge import identity
from fairlead.journal.edge.inspect import folder_of, read_and_judge, store_id_of
from fairlead.journal.edge.opening import survey
from fairlead.journal.layout import FOUND_BATCH, ITEM_BYTES, VOID
from fairlead.journal.ranges import Ranges

__all__ = ["ask", "read"]

PATIENCE_S: Final = 50.0
"""For reading; a question of administration is given up after a minute."""
NICE: Final = 10


def ask(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """What `read` answers, found out by another process."""
    command = [sys.executable, "-m", "fairlead.cluster.edge.life_reader", str(folder)]
    try:
        done = subprocess.run(
            [*command, msgspec.json.encode(question).decode()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S + 5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RequestTimeout("Reading the journal took too long.") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unavailable(f"The journal could not be read: {last[:300]}")
    answer: dict[str, Any] = msgspec.json.decode(done.stdout)
    return answer


def read(folder: Path, question: dict[str, Any], patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """The events of a message (`id`), or the messages of a trace (`trace`); and what was read to know it."""
    looked = Looked(folder, time.monotonic() + patience_s)
    if "trace" in question:
        search = Search(question["trace"])
        for record in looked.records():
            search.tell(record)
        messages = list(search.found.values())
        names = search.names.of(destinations_of(messages))
        return {"messages": messages, "names": names, "cut": search.cut, "looked": looked.facts()}
    life = Life(bytes.fromhex(question["id"]))
    for _ in range(2):
        for record in looked.records():
            life.tell(record)
            if len(life.places) > len(looked.wanted):
                looked.wanted = [place.index for place in life.places]
        if not life.again:
            break
        life.restart()
    synced = [
        {"ms": looked.synced[one.index], "what": "synced", "index": one.index, "destination": one.destination,
         "order": one.order}
        for one in life.places
        if one.index in looked.synced
    ]  # fmt: skip
    return {
        "events": life.events + synced,
        "message": life.message,
        "places": [
            {"destination": one.destination, "order": one.order, "index": one.index, "left": one.left}
            for one in life.places
        ],
        "names": life.names.of(destinations_of(life.events)),
        "cut": life.cut,
        "looked": looked.facts(),
    }


class Looked:
    """The records of a journal, and how much of it was looked at."""

    def __init__(self, folder: Path, until_s: float) -> None:
        self._folder = folder_of(folder)
        self._until_s = until_s
        self._segments = self._first = self._last = self._oldest_ms = 0
        self._complete = True
        self.wanted: list[int] = []
        """Indexes of records; when was each on stable storage, at the latest?"""
        self.synced: dict[int, int] = {}

    def facts(self) -> dict[str, Any]:
        return {
            "segments": self._segments,
            "first": self._first,
            "last": self._last,
            "oldest_ms": self._oldest_ms or None,
            "complete": self._complete,
        }

    def records(self) -> Iterator[Record]:
        store_id = store_id_of(self._folder)
        self._segments = 0
        for segment in survey(self._folder, store_id, identity.read_retired(self._folder) or Ranges()).segments:
            if time.monotonic() > self._until_s:
                self._complete = False
                return
            try:
                what, judged = read_and_judge(self._folder, store_id, segment)
            except FileNotFoundError:  # given up meanwhile
                continue
            self._segments += 1
            marks = [(one[5], one[6]) for one in what.found if one[0] == FOUND_BATCH]
            batches = [(one[4], one[6]) for one in what.found if one[0] == FOUND_BATCH and one[3]]
            firsts = [first for first, _ in batches]
            view = memoryview(what.data)
            for _, offset, size, kind, index, epoch, _ in judged.records:
                at = bisect_right(firsts, index) - 1
                ms = batches[at][1] if at >= 0 else 0
                self._first = self._first or index
                self._last = max(self._last, index)
                self._oldest_ms = self._oldest_ms or ms
                if kind != VOID:
                    body = view[offset + ITEM_BYTES : offset + ITEM_BYTES + size]
                    yield Record(index, epoch, segment.number, offset, kind, ms, body)
            for index in self.wanted:
                if index not in self.synced:
                    found = next((ms for mark, ms in marks if mark >= index), None)
                    if found is not None:
                        self.synced[index] = found


def main() -> int:
    os.nice(NICE)
    folder, question = sys.argv[1:]
    try:
        answer = read(Path(folder), msgspec.json.decode(question))
    except FairleadError as error:
        print(error.text, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
