"""What lasts of a session: the facts of its SESSION record and of its line in a checkpoint."""

from __future__ import annotations

from typing import Any

from fairlead.cluster.parties import Session


def facts(session: Session, *, accepted: bool = False) -> dict[str, Any]:
    """For a record; with `accepted` for a checkpoint, where the send numbers of earlier records have to be, too."""
    found: dict[str, Any] = {
        "id": session.id.hex(),
        "incarnation": session.incarnation,
        "secret": session.secret.hex(),
        "ended_ms": None,
        "user": session.user,
        "opened_ms": session.opened_ms,
        "ids": [*session.older_ids, (session.id_first, session.id_last)],
        "temporary": sorted(session.temporary),
    }
    if accepted:
        found["accepted"] = {str(number): last for number, last in session.accepted.items()}
    return found


def read(found: dict[str, Any], known: Session | None) -> Session:
    """The session as these facts say, on top of what is known of it; held by nobody."""
    session = known or Session(id=bytes.fromhex(found["id"]), number=0, incarnation=0, ack="individual", line=None)
    session.incarnation = max(session.incarnation, found["incarnation"])
    session.secret = bytes.fromhex(found["secret"])
    session.user = found["user"]
    session.opened_ms = found["opened_ms"]
    *session.older_ids, (session.id_first, session.id_last) = [(low, high) for low, high in found["ids"]]
    session.temporary = set(found["temporary"])
    for number, last in found.get("accepted", {}).items():
        session.accepted[int(number)] = max(last, session.accepted.get(int(number), 0))
    return session
