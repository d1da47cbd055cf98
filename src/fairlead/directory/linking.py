"""What is decided about applications and their connections: rows, labels, keys (DIR-12 … DIR-17, DIR-23 … DIR-29)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fairlead.directory.bounds import (
    APPS_MAX,
    KEY_FIELDS_MAX,
    KEY_TEXT_MAX,
    KEYS_MAX,
    KEYS_OF_ALL_MAX,
    LABEL_MAX,
    LINKS_MAX,
    check_link,
    check_name,
    check_room,
    check_text,
)
from fairlead.directory.deciding import renewal
from fairlead.directory.desk import Decision, Desk, allow
from fairlead.directory.operations import (
    ADMIN,
    ConnectionClosed,
    ConnectionOpened,
    DeregisterApp,
    PublishKey,
    RegisterApp,
    Restate,
)
from fairlead.directory.rows import AppKind, Link
from fairlead.directory.state import AppEntry, State, label_number
from fairlead.errors import BadParameter, NotAllowed, Refused, UnknownBroker


def register_app(desk: Desk, said: RegisterApp, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, broker=said.broker)
    desk.broker(said.broker)
    app = desk.state.apps.get(said.app)
    check_text("user of an application", said.user)
    if app is None:
        check_name("an application", said.app)
        check_room("applications", len(desk.state.apps), APPS_MAX)
    home = said.broker
    if app is not None and said.kind == "dynamic":
        home = "" if app.links else said.broker
    elif app is not None and any(link.broker == app.home for link in app.links.values()):
        home = app.home  # it is still there: its messages stay where they wait
    user = said.user or (app.user if app is not None else "")
    if app is not None and (app.kind, app.user, app.home) == (said.kind, user, home):
        return desk.decided([])
    return desk.decided([desk.change("app", app=said.app, kind=said.kind, user=user, home=home)])


def deregister_app(desk: Desk, said: DeregisterApp, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, broker=said.broker)
    app = desk.state.apps.get(said.app)
    if app is None:
        return desk.decided([], deregistered=False)
    here = said.broker == app.home or any(link.broker == said.broker for link in app.links.values())
    if ADMIN not in may and not here:
        raise NotAllowed(f"Application {said.app!r} is not registered at broker {said.broker[:60]!r}.")
    if app.links and said.links == "refuse":
        raise Refused(
            f"Application {said.app!r} has {len(app.links)} open connections; close them, or say links=close."
        )
    if app.links and app.closing.keys() == app.links.keys():
        return desk.decided([], deregistered=True)
    return desk.decided([desk.change("deregistered", app=said.app)], deregistered=True)


def connection_opened(desk: Desk, said: ConnectionOpened, now_ms: int, may: Collection[str]) -> Decision:
    link = said.link
    allow(may, broker=link.broker, app=said.app)
    check_link(said.app, link)
    check_text("reservation", said.reservation)
    desk.living(link.broker)
    state = desk.state
    app = state.apps.get(said.app)
    row = app.links.get(link.identity) if app is not None else None
    if row is None and (said.app, link.identity) in state.closed:
        return desk.decided([], label="")
    place = state.reservations.get((said.app, said.reservation)) if said.reservation else None
    if row is not None and desk.rules.merge_reports:
        if row.broker != link.broker:
            raise BadParameter(f"The connection {link.identity[:60]!r} of {said.app!r} is at broker {row.broker!r}.")
        merged = _merged(row, link)
        if merged == row and place is None:
            return desk.decided([], label=row.label)
        link, new = merged, False
    else:
        _check_room(state, said.app, app)
        last = state.last_number(said.app) if desk.rules.labels_rise else len(app.links) if app is not None else 0
        link, new = msgspec.structs.replace(link, label=f"{said.app}-{last + 1}"), True
        if row is not None:  # what the rule forbids: a second row for one connection
            link = msgspec.structs.replace(link, identity=f"{link.identity}'")
    change = desk.change(
        "opened",
        app=said.app,
        kind=said.kind,
        link=msgspec.to_builtins(link),
        reservation=said.reservation,
        new=new,
    )
    return desk.decided([change], label=link.label)


def connection_closed(desk: Desk, said: ConnectionClosed, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, broker=said.broker, app=said.app)
    check_name("an application", said.app)
    check_text("identity of a connection", said.identity, needed=True)
    app = desk.state.apps.get(said.app)
    row = app.links.get(said.identity) if app is not None else None
    if row is not None and row.broker != said.broker:
        return desk.decided([], closed=False)
    if row is None and (said.app, said.identity) in desk.state.closed:
        return desk.decided([], closed=False)
    return desk.decided([desk.change("closed", app=said.app, identity=said.identity)], closed=row is not None)


def restate(desk: Desk, said: Restate, now_ms: int, may: Collection[str]) -> Decision:
    """The broker's word about its own connections counts: also against what others said of them before."""
    allow(may, broker=said.name)
    entry = desk.broker(said.name)
    if entry.row.identity != said.identity:
        raise UnknownBroker(f"The broker {said.name!r} of the directory is another one; say put_broker first.")
    state = desk.state
    labels: dict[str, str] = {}
    came: list[tuple[str, AppKind, Link]] = []
    unlabelled: list[tuple[str, AppKind, Link]] = []
    stated: set[tuple[str, str]] = set()
    numbers = _Numbers(desk)
    for app_name, kind, link in said.links:
        check_link(app_name, link)
        if not _covers(said, link.identity):
            raise BadParameter(f"The connection {link.identity[:60]!r} is not in the range that is restated.")
        if link.broker != said.name:
            raise BadParameter(f"Broker {said.name!r} cannot state a connection of broker {link.broker[:60]!r}.")
        app = state.apps.get(app_name)
        row = app.links.get(link.identity) if app is not None else None
        if (row is not None and row.broker != said.name) or (app_name, link.identity) in stated:
            continue
        stated.add((app_name, link.identity))
        if row is not None:
            labels[link.identity] = row.label
        elif label := numbers.keep(app_name, link.label):
            came.append((app_name, kind, msgspec.structs.replace(link, label=label)))
        else:
            unlabelled.append((app_name, kind, link))
    for app_name, kind, link in unlabelled:  # the old labels are all known now
        came.append((app_name, kind, msgspec.structs.replace(link, label=numbers.next(app_name))))
    labels |= {link.identity: link.label for _, _, link in came}
    rows = [[app_name, kind, msgspec.to_builtins(link)] for app_name, kind, link in came]
    names = {app_name for app_name, _, _ in came}
    check_room("connections", state.links + len(rows) - 1, LINKS_MAX)
    check_room("applications", len(state.apps) + len(names - state.apps.keys()) - 1, APPS_MAX)
    gone = [list(key) for key in entry.links if key not in stated and _covers(said, key[1])]
    apps = [
        name
        for name, app in state.apps.items()
        if not said.upto and app.kind == "dynamic" and app.home == said.name and name not in names
    ]
    changes = renewal(desk, said.name, entry, now_ms)
    if rows or gone or apps:
        changes.append(desk.change("restated", broker=said.name, rows=rows, gone=gone, apps=apps))
    return desk.decided(changes, labels=labels)


def publish_key(desk: Desk, said: PublishKey, now_ms: int, may: Collection[str]) -> Decision:
    """A key with nothing but its `id` takes the one of that id away."""
    allow(may, app=said.app)
    check_name("an application", said.app)
    keys = desk.state.keys.get(said.app, {})
    key_id = said.key.get("id", "")
    check_text("id of a key", key_id, needed=True)
    texts = [name + text for name, text in said.key.items()]
    if len(texts) > KEY_FIELDS_MAX or any(len(text) > KEY_TEXT_MAX or not text.isprintable() for text in texts):
        raise BadParameter(
            f"A key has at most {KEY_FIELDS_MAX} fields of {KEY_TEXT_MAX} characters that can be printed."
        )
    key = dict(said.key) if len(said.key) > 1 else None
    if keys.get(key_id) == key:
        return desk.decided([])
    if key is not None and key_id not in keys:
        check_room(f"keys of application {said.app}", len(keys), KEYS_MAX)
        check_room("published keys", desk.state.keys_count, KEYS_OF_ALL_MAX)
    return desk.decided([desk.change("key", app=said.app, id=key_id, key=key)])


def _covers(said: Restate, identity: str) -> bool:
    return said.above < identity and (not said.upto or identity <= said.upto)


def _merged(row: Link, said: Link) -> Link:
    """What one side did not know, the other one adds."""
    return msgspec.structs.replace(
        row,
        client=row.client or said.client,
        user=row.user or said.user,
        cluster=row.cluster or said.cluster,
        secure=row.secure or said.secure,
    )


def _check_room(state: State, name: str, app: AppEntry | None) -> None:
    check_room("connections", state.links, LINKS_MAX)
    if app is None:
        check_room("applications", len(state.apps), APPS_MAX)


class _Numbers:
    """Labels for rows that come together: the one a row had if it is nobody else's, or the next."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._used: dict[str, set[str]] = {}
        self._last: dict[str, int] = {}

    def keep(self, name: str, stated: str) -> str:
        """The label that was stated, or nothing: it does not fit, or somebody has it."""
        used = self._used.get(name)
        if used is None:
            app = self._desk.state.apps.get(name)
            used = self._used[name] = {link.label for link in app.links.values()} if app is not None else set()
            self._last[name] = self._desk.state.last_number(name)
        number = label_number(name, stated)
        if not (self._desk.rules.keep_labels and 0 < number <= LABEL_MAX and stated not in used):
            return ""
        self._last[name] = max(self._last[name], number)
        used.add(stated)
        return stated

    def next(self, name: str) -> str:
        self._last[name] += 1
        return f"{name}-{self._last[name]}"
