"""A client's keys: its own pairs, shared keys, and the pinned keys of others. Seals and opens bodies with them.

::

    keys = fairlead.Keyring.load("ax.keys")
    sealed = keys.seal(b"for your eyes", to="AZ", instructions={"queue": "letters"})
    opened = keys.unseal(sealed, instructions={"queue": "letters"})      # at AZ

The newest key of a name seals, all of them open: that is how keys are changed without losing what is under way. Only
`load` and a `learn` that pins something touch files, through `edge.files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairlead.errors import BadParameter, IntegrityError, NoKey
from fairlead.sealing import envelope, seals, sodium
from fairlead.sealing.bound import Instructions, written
from fairlead.sealing.envelope import HOLDERS_MAX, SHARED, Envelope, Holder
from fairlead.sealing.keys import KeyPair, PublicKey, SharedKey
from fairlead.sealing.pins import Pins

if TYPE_CHECKING:
    from pathlib import Path

OWN_MAX: Final = 1000  # pairs and shared keys of one keyring
_AGREED_MAX: Final = 10_000


class Opened(NamedTuple):
    """A body that was opened, and who could have sealed it."""

    body: bytes
    sender: str  # the application whose pinned key signed it; empty under a shared key
    key: str  # id of the sender's pair or of the shared key
    under: str  # name of the shared key; empty if it was sealed for us


class Keyring:
    """May be shared by all connections of a process. `first_use` False: only keys pinned by hand are trusted."""

    def __init__(
        self,
        pairs: Iterable[KeyPair] = (),
        shared: Iterable[SharedKey] = (),
        pins: Pins | None = None,
        *,
        first_use: bool = True,
        pins_path: Path | None = None,
    ) -> None:
        self.pairs = tuple(pairs)  # the newest of an application is its last one
        self.shared = tuple(shared)  # likewise
        self.pins = pins if pins is not None else Pins()
        self.first_use = first_use
        self._pins_path = pins_path
        self._pair_of = {pair.public.id: pair for pair in self.pairs}
        self._shared_of = {key.id: key for key in self.shared}
        self._agreed: dict[tuple[bytes, bytes], bytes] = {}
        if len(self._pair_of) + len(self._shared_of) > OWN_MAX:
            raise BadParameter(f"A keyring has at most {OWN_MAX} keys of its own.")

    @classmethod
    def load(cls, path: str | Path, *, pins: str | Path | None = None, first_use: bool = True) -> Keyring:
        """The keys of a file that `fairlead key new` made, and those pinned in FILE.pins beside it."""
        from fairlead.sealing.edge import files

        return files.load(path, pins=pins, first_use=first_use)

    def __repr__(self) -> str:
        return f"Keyring({len(self.pairs)} pairs, {len(self.shared)} shared, {len(self.pins)} pinned)"

    def seal(
        self,
        body: bytes,
        *,
        to: str | Iterable[str] = (),
        under: str = "",
        sender: str = "",
        instructions: Instructions | None = None,
    ) -> bytes:
        """Encrypt a body for applications (`to`), or for all who have the shared key of a name (`under`).

        `sender` is the application of ours that signs; it may be left out if there is only one. `instructions` are
        not in the result, but bound to it: it can be opened only with the same ones.
        """
        names = [to] if isinstance(to, str) else list(to)
        names = [name for name in names if name]
        if bool(names) == bool(under):
            raise BadParameter("Seal either `to` applications or `under` a shared key.")
        bound, body = written(instructions), bytes(body)
        if under:
            return seals.seal_under(self._newest_shared(under), body, bound)
        holders = {key.id: key for name in names for key in self._holders(name)}
        if len(holders) > HOLDERS_MAX:
            raise BadParameter(f"{len(holders)} keys to seal for are more than {HOLDERS_MAX}.")
        own = self._own(sender)
        return seals.seal_for(list(holders.values()), body, bound, sender=own, agree=self._agree)

    def unseal(self, sealed: bytes, *, instructions: Instructions | None = None) -> Opened:
        """The body, if it can be shown that nothing was changed; IntegrityError if not.

        A key that is missing here is an IntegrityError too: its id may be what was changed.
        """
        found, bound = envelope.read(bytes(sealed)), self._bound(instructions)
        if found.kind == SHARED:
            key = self._shared_of.get(found.key)
            if key is None:
                raise IntegrityError(
                    f"The message is sealed under the shared key {found.key.hex()}, which is not in this keyring; add "
                    f"it with `fairlead key new FILE --shared NAME --stdin`."
                )
            return Opened(seals.open_under(key, found, bound), "", found.key.hex(), key.name)
        own, box = self._holder(found)
        sender = self._public(found.key)
        if sender is None:
            raise IntegrityError(
                f"The message is signed with the key {found.key.hex()}, which is not pinned here; ask its owner for it "
                f"and run `fairlead key pin`."
            )
        claimed = (instructions or {}).get("from")
        if claimed and claimed != sender.app:
            raise IntegrityError(f"The message says that it is from {claimed!r:.80}, and is signed by {sender.app}.")
        body = seals.open_for(box, found, bound, sender=sender, agreed=self._agree(sender, own))
        return Opened(body, sender.app, sender.id.hex(), "")

    def stranger(self, sealed: bytes, instructions: Instructions) -> str:
        """The application that says it sealed this, if its key is not known yet: `learn` it before `unseal`."""
        found = envelope.read(bytes(sealed))
        claimed = instructions.get("from")
        if found.kind == SHARED or self._public(found.key) is not None or not isinstance(claimed, str):
            return ""
        return claimed

    def knows(self, app: str) -> bool:
        """Can something be sealed for this application?"""
        return bool(self._own_pairs(app) or self.pins.newest(app))

    def learn(self, app: str, published: Sequence[Mapping[str, Any]]) -> None:
        """Look at what an application has published and pin what can be trusted; KeyChanged if something cannot."""
        if self._own_pairs(app):
            return
        if self._pins_path is None or self.pins.learn(app, published, first_use=self.first_use) is self.pins:
            self.pins = self.pins.learn(app, published, first_use=self.first_use)
            return
        from fairlead.sealing.edge import files

        # Another process may have pinned something meanwhile: what is in the file decides.
        self.pins = files.update_pins(
            self._pins_path, lambda pins: pins.learn(app, published, first_use=self.first_use)
        )

    def public(self, app: str = "") -> list[dict[str, str]]:
        """Records of our own pairs, to be published; the newest is the last one."""
        return [pair.public.record() for pair in self.pairs if app in ("", pair.public.app)]

    def _bound(self, instructions: Instructions | None) -> bytes:
        try:
            return written(instructions)
        except BadParameter as fault:  # nobody can have sealed that
            raise IntegrityError(f"The message is not as its sender sealed it: {fault}") from None

    def _own_pairs(self, app: str) -> list[KeyPair]:
        return [pair for pair in self.pairs if pair.public.app == app]

    def _own(self, app: str) -> KeyPair:
        found = self._own_pairs(app) if app else self.pairs
        if not found:
            raise NoKey(
                f"There is no key pair of {app or 'any application'} here; run `fairlead key new FILE --app …`."
            )
        if len({pair.public.app for pair in found}) > 1:
            raise BadParameter("This keyring has pairs of several applications; say which is the `sender`.")
        return found[-1]

    def _newest_shared(self, name: str) -> SharedKey:
        found = [key for key in self.shared if key.name == name]
        if not found:
            raise NoKey(
                f"There is no shared key {name!r} in this keyring; run `fairlead key new FILE --shared {name}`."
            )
        return found[-1]

    def _holders(self, app: str) -> list[PublicKey]:
        if own := self._own_pairs(app):
            return [own[-1].public]
        if found := self.pins.newest(app):
            return found
        raise NoKey(
            f"No key of {app} is known here; let it publish one (`fairlead key publish`), or run `fairlead key pin`."
        )

    def _holder(self, found: Envelope) -> tuple[KeyPair, Holder]:
        for box in found.holders:
            if own := self._pair_of.get(box.key):
                return own, box
        ids = ", ".join(box.key.hex() for box in found.holders)
        raise IntegrityError(f"The message is not sealed for any key pair of this keyring, but for {ids}.")

    def _public(self, id: bytes) -> PublicKey | None:  # noqa: A002
        own = self._pair_of.get(id)
        return own.public if own else self.pins.get(id)

    def _agree(self, other: PublicKey, own: KeyPair) -> bytes:
        agreed = self._agreed.get((other.id, own.public.id))
        if agreed is None:
            try:
                agreed = sodium.agree(other.box, own.box_secret)
            except sodium.Broken:
                raise NoKey(f"The key {other.id.hex()} of {other.app} cannot be used.") from None
            if len(self._agreed) >= _AGREED_MAX:
                self._agreed.clear()
            self._agreed[other.id, own.public.id] = agreed
        return agreed
