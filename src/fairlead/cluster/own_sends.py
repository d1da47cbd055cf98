"""What the server itself sends: transient publishes that were diverted here, and the event log's copy in `_LOG`.

They go in like everybody's messages, through a session of the server's own that is new with each start. Nobody waits
for a confirm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster.destination import Destination
from fairlead.cluster.outgoing import Link, encode_json
from fairlead.cluster.parties import Line, Producer, Session
from fairlead.cluster.publishing import entry_of
from fairlead.cluster.tasks import HoldMe
from fairlead.errors import FairleadError
from fairlead.wire.durable import COUNT_MAX
from fairlead.wire.kinds import KIND_PUBLISH

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.names import Place

ID_BLOCK: Final = 1 << 30  # message id numbers
LOG: Final = "_LOG"
ADMIN: Final = "_ADMIN"


class OwnSends:
    """One per message manager."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._session: Session | None = None
        self._logging = False

    def store(self, destination: Destination, entries: bytes, link: int) -> None:
        """One message, in the destination's task."""
        core, own = self._core, self._session
        if own is None:
            own = self._session = Session(core.new_session_id(), 0, 1, "auto", None)
        producer = own.producers.get(destination.number)
        if producer is None or producer.destination is not destination:
            producer = own.producers[destination.number] = Producer(0, own, destination)
        if own.id_last - own.id_first < COUNT_MAX:
            own.id_first = core.id_block(ID_BLOCK)
            own.id_last = own.id_first + ID_BLOCK
        identity = own.id_first
        own.id_first += 1
        first = own.accepted.get(destination.number, 0) + 1
        destination.on_store(producer, first, 0, core.now_ms, identity, memoryview(entries), link)

    def forget(self, destination: Destination) -> None:
        """It was deleted."""
        if self._session is not None:
            self._session.producers.pop(destination.number, None)
            self._session.accepted.pop(destination.number, None)

    # --- The transient road ---------------------------------------------------------------------------------------
    def published(self, link: Link, line: Line, name: str, section: bytes, body: memoryview) -> None:
        """A transient publish to the name of a destination came over a link."""
        core = self._core
        place = core.names.by_name.get(name)
        if place is None:
            # Deleted meanwhile: it is a transient topic again.
            link.frame(0, 0, KIND_PUBLISH, topic=name.encode(), headers=section, body=bytes(body))
        elif place.destination.kind != "topic":
            core.error(line, 0, "wrong-kind", f"{name!r} is a queue: send to it instead of publishing.")
        elif name == ADMIN:
            core.tasks.put(core.admin_task, len(body), line, core.admin.on_publish, line, section, bytes(body))
        else:
            args = (place.destination, section, bytes(body), link.number)
            core.tasks.put(place.task, len(body), line, self._store_published, *args, holdable=True)

    def _store_published(self, destination: Destination, section: bytes, body: bytes, link: int) -> None:
        core = self._core
        if core.journal.full:
            raise HoldMe
        try:
            self.store(destination, entry_of(section, body), link)
        except FairleadError as fault:
            core.hold_if_full(fault)
            raise

    # --- The event log --------------------------------------------------------------------------------------------
    def event(self, level: str, code: str, text: str, **ids: Any) -> None:
        """The file is the log task's thread's; the copy in `_LOG` goes through queues like everything (CLU-195)."""
        if self._logging:
            return  # what happens while the log is written does not feed the log
        core = self._core
        where = {"node": core.admin.node, "module": "message-manager"}
        record = {"ms": core.now_ms, **where, "level": level, "code": code, "text": text, **ids}
        core.world.log(record)
        place = self._place()
        if place is None or core.tasks.current is not place.task:  # the log's own troubles would feed it for ever
            core.tasks.put(core.log_task, 0, None, self._log, record)

    def _place(self) -> Place | None:
        core = self._core
        return core.names.by_name.get(core.manager.own_name(LOG))

    def _log(self, record: dict[str, Any]) -> None:
        core, place = self._core, self._place()
        if place is not None and not core.journal.full:
            core.tasks.put(place.task, 0, None, self._store_log, place.destination, record)

    def _store_log(self, destination: Destination, record: dict[str, Any]) -> None:
        if self._core.journal.full:
            return  # it is in the file; the store has no room for it
        self._logging = True
        try:
            self.store(destination, entry_of(b"", encode_json(record)), -1)
        finally:
            self._logging = False
