"""Whose key is whose: the public keys of other applications that this client has decided to trust (DIR-80).

The directory says which keys an application has published, and could lie. So the first ones seen are remembered, or
those given by hand; later a new one counts only if one of those has signed it as its successor. Anything else is
`KeyChanged`: somebody has to look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fairlead.errors import BadParameter, KeyChanged, NoKey
from fairlead.sealing.envelope import HOLDERS_MAX
from fairlead.sealing.keys import PublicKey, read_record

PINS_MAX: Final = 10_000
PER_APP_MAX: Final = 64
PUBLISHED_MAX: Final = 64  # of one application: more are not looked at


class Pin(NamedTuple):
    """A key that is trusted, and why: `first use`, `by hand`, or `successor`."""

    key: PublicKey
    how: str


class Pins:
    """All of them, as values: a change gives new `Pins`."""

    def __init__(self, pins: Iterable[Pin] = ()) -> None:
        self._by_id: dict[bytes, Pin] = {pin.key.id: pin for pin in pins}
        self._by_app: dict[str, list[PublicKey]] = {}
        for pin in self._by_id.values():
            self._by_app.setdefault(pin.key.app, []).append(pin.key)
        if len(self._by_id) > PINS_MAX or any(len(keys) > PER_APP_MAX for keys in self._by_app.values()):
            raise BadParameter(f"More than {PINS_MAX} pinned keys, or {PER_APP_MAX} of one application.")

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: bytes) -> PublicKey | None:  # noqa: A002
        pin = self._by_id.get(id)
        return pin.key if pin else None

    def of(self, app: str) -> list[PublicKey]:
        return list(self._by_app.get(app, ()))

    def newest(self, app: str) -> list[PublicKey]:
        """Those that no other one has replaced: what is sealed for the application is sealed for these."""
        keys = self._by_app.get(app, ())
        replaced = {key.previous for key in keys}
        return [key for key in keys if key.id not in replaced][-HOLDERS_MAX:]

    def pin(self, key: PublicKey, *, only: bool = False) -> Pins:
        """Trust this one from now on because somebody says so; `only`: and no other one of its application."""
        kept = [pin for pin in self if pin.key.id != key.id and not (only and pin.key.app == key.app)]
        return Pins([*kept, Pin(key, "by hand")])

    def unpin(self, id: bytes) -> Pins:  # noqa: A002
        return Pins(pin for pin in self if pin.key.id != id)

    def learn(self, app: str, published: Sequence[Mapping[str, Any]], *, first_use: bool = True) -> Pins:
        """Trust what follows from what is trusted, or the first ones seen; the same Pins if there is nothing new.

        Records that are not whole, or of somebody else, count as not published; so does what a trusted one replaced.
        """
        found = _whole(app, published)
        known = self.of(app)
        fresh = [key for key in found if key.id not in self._by_id]
        if not known:
            if not fresh:
                raise NoKey(f"{app} has published no key; let it run `fairlead key publish`, or pin one by hand.")
            if not first_use:
                raise NoKey(
                    f"No key of {app} is pinned, and this client trusts none on first use; compare the id with its "
                    f"owner and run `fairlead key pin`. Published: {_ids(fresh)}."
                )
            return Pins([*self, *(Pin(key, "first use") for key in fresh[:HOLDERS_MAX])])
        added: list[PublicKey] = []
        while successor := next((key for key in fresh if any(map(key.endorsed_by, (*known, *added)))), None):
            fresh.remove(successor)
            added.append(successor)
        strange = _without_ancestors(fresh, [*known, *added])
        if strange:
            raise KeyChanged(
                f"{app} has published a key that none of its pinned keys has signed: {_ids(strange)}. If its owner "
                f"says that this is right, run `fairlead key pin`; if not, somebody else may be reading along."
            )
        if not added:
            return self
        oldest = {key.id for key in [*known, *added][:-PER_APP_MAX]}  # replaced more than sixty times over
        return Pins(pin for pin in (*self, *(Pin(key, "successor") for key in added)) if pin.key.id not in oldest)


def _whole(app: str, published: Sequence[Mapping[str, Any]]) -> list[PublicKey]:
    found: dict[bytes, PublicKey] = {}
    for record in published[:PUBLISHED_MAX]:
        try:
            key = read_record(record)
        except BadParameter:
            continue
        if key.app == app:
            found[key.id] = key
    return list(found.values())


def _without_ancestors(keys: list[PublicKey], trusted: list[PublicKey]) -> list[PublicKey]:
    """Those of the keys that no trusted one has replaced, directly or through others."""
    left, replaced = list(keys), {key.previous for key in trusted}
    while ancestor := next((key for key in left if key.id in replaced), None):
        left.remove(ancestor)
        replaced.add(ancestor.previous)
    return left


def _ids(keys: Iterable[PublicKey]) -> str:
    return ", ".join(key.id.hex() for key in keys)
