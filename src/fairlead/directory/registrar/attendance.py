"""Which connections of applications are at this broker, and whether there is room for another (DIR-65).

A connection is known by the identity its client made for it. Said again it is the same one; so a client that comes
back before its old connection was found dead is counted once, and the end of the old one then means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.directory.registrar import talk
from fairlead.directory.rows import AppKind, BrokerState, Link


@dataclass(slots=True)
class Attending:
    """One connection; `holder` is the conversation it is known by."""

    app: str
    link: Link
    holder: int


@dataclass(frozen=True, slots=True)
class Refusal:
    code: str
    text: str


class Attendance:
    """All connections of applications at one broker."""

    def __init__(self, broker: str, limit: int) -> None:
        self.broker = broker
        self.limit = limit
        self.wanted: BrokerState = "up"  # as the operator wants it
        self.here: dict[str, Attending] = {}
        self.kinds: dict[str, AppKind] = {}  # of the applications that have a connection here
        self.version = 0  # rises with each change
        self._by_app: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self.here)

    @property
    def state(self) -> BrokerState:
        """What the directory is told."""
        if self.wanted != "up":
            return self.wanted
        return "full" if len(self.here) >= self.limit else "up"

    def admit(self, said: talk.Register, user: str, holder: int) -> Refusal | Attending:
        """A connection whose user may speak for its application wants to be one of it."""
        known = self.here.get(said.identity)
        if known is not None:
            if known.app != said.app or known.link.user != user:
                return Refusal(talk.AUTHENTICATION, talk.WRONG)  # the identity is somebody else's
            known.holder = holder
            self._set_kind(said.app, said.kind)
            return known
        if self.wanted == "disabled" or len(self.here) >= self.limit:
            text = f"Broker {self.broker} has {len(self.here)} connections of applications and takes no more."
            return Refusal(talk.FULL, text)
        attending = Attending(said.app, said.link(self.broker, user), holder)
        self.here[said.identity] = attending
        self._by_app.setdefault(said.app, set()).add(said.identity)
        self._set_kind(said.app, said.kind)
        self.version += 1
        return attending

    def _set_kind(self, app: str, kind: AppKind) -> None:
        """One that says nothing of it does not make a static application dynamic again; `change_kind` does."""
        if self.kinds.get(app) != "static":
            self.kinds[app] = kind

    def change_kind(self, app: str, kind: AppKind) -> None:
        if app in self._by_app:
            self.kinds[app] = kind
            self.version += 1

    def label(self, identity: str, label: str) -> Attending | None:
        """The directory gave it a label; None if it has gone, or had this one already."""
        attending = self.here.get(identity)
        if attending is None or attending.link.label == label:
            return None
        attending.link = replace(attending.link, label=label)
        self.version += 1
        return attending

    def leave(self, identity: str, holder: int) -> Attending | None:
        """The conversation has ended; None if its connection is known by a newer one."""
        attending = self.here.get(identity)
        if attending is None or attending.holder != holder:
            return None
        del self.here[identity]
        others = self._by_app[attending.app]
        others.discard(identity)
        if not others:
            del self._by_app[attending.app]
            del self.kinds[attending.app]
        self.version += 1
        return attending

    def count(self, app: str) -> int:
        return len(self._by_app.get(app, ()))

    def of(self, app: str) -> list[str]:
        """Identities of its connections here."""
        return sorted(self._by_app.get(app, ()))

    def applications(self) -> dict[str, int]:
        return {app: len(identities) for app, identities in self._by_app.items()}

    def links(self) -> Iterator[tuple[str, AppKind, Link]]:
        """As `restate` wants them."""
        for attending in self.here.values():
            yield attending.app, self.kinds[attending.app], attending.link
