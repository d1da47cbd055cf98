"""A connection manager: owns client connections from hand-over to close, and moves bytes between them and the store.

The bytes are the engine's (`traffic.py`, `_traffic.pyx`); here is what happens once per connection: adopting it, asking
the router for its attachment, checking who it is, keeping its entry in the connection table, and ending it.

A manager that follows a dead one first settles what that one left: instructions under way are counted as finished,
connections reported as lost, messages the router never heard of given up and logged (SRV-115, SRV-129).
"""

from __future__ import annotations

import array
import gc
import math
import os
import resource
import socket
import ssl
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.broker.answers import GO_AWAY, busy_answer, error_frame, frame, plain_answer
from fairlead.broker.bounds import Bounds
from fairlead.broker.edge.credentials import Verifier
from fairlead.broker.edge.durable import Road
from fairlead.broker.edge.engine import Traffic
from fairlead.broker.edge.meters import open_meters, slots_of
from fairlead.broker.edge.secret import server_secret
from fairlead.broker.edge.tls import TlsFilter, ask_for_certificates, make_context, revoked_serials
from fairlead.broker.edge.token_desk import TokenDesk, authorities_of
from fairlead.broker.outstanding import (
    KIND_OUTSTANDING,
    RECORDS_DEFAULT,
    OutstandingTable,
    finish_all,
    format_outstanding,
    outstanding_bytes,
    outstanding_name,
)
from fairlead.broker.resume import token_for, uid_of
from fairlead.errors import FairleadError, RemoteProtocolError
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Command, Control, Start
from fairlead.runtime.counters import Counters, ManagerCounter
from fairlead.runtime.plumbing import OUTLET
from fairlead.security import certificates, inside
from fairlead.security import users as security
from fairlead.security.auditing import Ledger
from fairlead.security.expiry import Expiry
from fairlead.security.identity import NOBODY, How, Identity, NoIdentity
from fairlead.security.logins import Admit, Check, Claim, Policy, Refuse, agreed, decide
from fairlead.security.rules import Rules, principal
from fairlead.security.throttling import CERTIFICATES, TOKENS, Throttle, is_local, source_of
from fairlead.security.tokens import said_subject
from fairlead.store import layout
from fairlead.store.connections import ConnectionTable
from fairlead.store.edge.segment import Segment, open_segment
from fairlead.store.memory import MODE, Arena, Consumer, Producer
from fairlead.wire.handshake import Connect, GoAway, decode, encode

SAFETY_TICK_MS: Final = 250
COUNT_MS: Final = 20  # the counters are at most so old
HANDOVERS_PER_TURN: Final = 64
FAREWELL_S: Final = 1.5  # for the last words of a stop
MOVE_WITHIN_S: Final = 30.0
LOG_LINES_PER_S: Final = 20
PROTOCOL_VERSION: Final = 1
# Ends that nobody need look at; all others are worth a line.
ORDINARY: Final = frozenset({"closed", "connection-lost", "shutting-down", "passed-on"})

EXPIRED: Final = ("certificate-expired", "token-expired")

_HANDOVER: Final = struct.Struct(layout.HANDOVER_FORMAT)


def run(control: Control, start: Start) -> int:
    """Be a manager until told to stop, or drained."""
    manager = Manager(control, start)
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look at it again
    return manager.run()


@dataclass(slots=True)
class Client:
    """What is known of one connection besides its bytes."""

    uid: int
    peer: str
    said: Connect | None = None
    identity: Identity = NOBODY
    tls: TlsFilter | None = None
    shown: Identity | None = None  # by its certificate
    who: str = ""  # as rules are asked about it
    tenant: str = ""
    lost: int = 0  # deliveries that did not reach it
    attachment: int = 0  # the uid by which others address it: an older connection's after a move

    @property
    def user(self) -> str:
        return self.identity.user


class Manager:
    """One manager process."""

    def __init__(self, control: Control, start: Start) -> None:
        self._control, self._config, self._index = control, start.config, start.index
        self._store, self._generation = start.store, start.generation
        self._bounds = Bounds.of(start.config)
        self._outlet: socket.socket | None = None  # where connections that speak HTTP go
        if OUTLET in start.fds:
            self._outlet = socket.socket(fileno=os.dup(start.fds[OUTLET]))
        else:
            self._bounds = replace(self._bounds, tunnels=False)
        self._passed_on = self._turned_away = 0
        security_ = start.config.security
        self._tls_context = self._make_tls()
        self._verifier = Verifier(self._read_users())
        self._desk = TokenDesk(authorities_of(start.config), lambda text: self._say(True, text))
        self._policy = self._make_policy()
        self._throttle = Throttle()
        self._expiry = Expiry()
        self._untrusted: list[tuple[int, int, str, bool]] = []  # whose TLS handshake came to nothing, and why
        self._plain_passwords = security_.plain_passwords
        if start.config.server.insecure and self._plain_passwords == "local":
            self._plain_passwords = "allow"
        self._secret = server_secret(start.store)
        self._clients: dict[int, Client] = {}
        self._ledger = Ledger(lambda record: control.send("audit", record=record))
        self._meters = open_meters(start.store)
        self._map_segments(start)
        self._dispatched = socket.socket(fileno=os.dup(start.fds["dispatched"]))
        self._dispatched.setblocking(False)
        self._wake, self._wake_router = start.fds["wake"], start.fds["wake-router"]
        self._control_fd = -1
        self._moving = False
        self._draining = False
        self._stop_s = 0.0
        self._adopted = 0
        self._given_up = 0
        self._counted_s = 0.0
        self._lines, self._lines_s = 0, 0

    def _read_users(self) -> security.Users | None:
        path = configuring.users_path(self._config)
        return security.read(path) if path is not None else None

    def _make_tls(self) -> ssl.SSLContext | None:
        security_ = self._config.security
        if not security_.tls_certificate:
            return None
        context = make_context(security_.tls_certificate, security_.tls_key)
        if security_.client_certificates != "off":
            # Not required by TLS: who has none is told so by CONNECT's answer, in words.
            ask_for_certificates(context, security_.tls_client_ca, security_.tls_crl)
        return context

    def _make_policy(self) -> Policy:
        return Policy(
            anonymous=configuring.anonymous_allowed(self._config),
            passwords=self._verifier.users is not None,
            tokens=self._desk.is_open,
            certificates=self._config.security.client_certificates,
        )

    def _map_segments(self, start: Start) -> None:
        directory, own = start.store, start.index
        up = open_segment(directory / layout.up_name(own), layout.KIND_RING, mode=MODE)
        down = open_segment(directory / layout.down_name(own), layout.KIND_RING, mode=MODE)
        self._up, self._down = Producer(up.map, up.fd), Consumer(down.map, down.fd)
        self._arenas: dict[int, Any] = {}
        for i in range(start.managers):
            segment = open_segment(directory / layout.arena_name(i), layout.KIND_ARENA, mode=MODE)
            self._arenas[i] = Arena(
                segment.map, segment.fd, i == own, start.config.store.arena_step_bytes, lock_fd=segment.fd
            )
        connections = open_segment(directory / layout.CONNECTIONS_NAME, layout.KIND_CONNECTIONS, mode=MODE)
        self._table = ConnectionTable(connections.view)
        counters = open_segment(directory / layout.counters_name("manager", own), layout.KIND_COUNTERS, mode=MODE)
        self._counters = Counters("manager", counters.view)
        self._outstanding = open_outstanding(directory, own, start.server_id)
        self._kept = [up, down, connections, counters]  # mapped as long as the process lives

    # --- Beginning ------------------------------------------------------------------------------------------------
    def run(self) -> int:
        raise_descriptor_limit()
        lost = self._settle_predecessor()
        self._traffic = Traffic(
            up=self._up,
            down=self._down,
            arenas=self._arenas,
            own=self._index,
            outstanding=self._outstanding.map,
            wake_fd=self._wake,
            wake_router_fd=self._wake_router,
            settings=self._bounds,
        )
        self._traffic.metered(self._meters)
        self._rules_now = self._rules()
        self._road = Road(
            traffic=self._traffic,
            run=self._control.run_dir,
            manager=self._index,
            generation=self._generation,
            rules=self._rules_now,
            enabled=self._config.messages.enabled,
            say=lambda text, **facts: self._say(True, text, **facts),
            on_denied=self._on_denied,
        )
        os.eventfd_write(self._wake_router, 1)  # it may have waited for the room that was made
        for uid, index in lost:
            self._traffic.push(layout.UP_GONE, uid, index, b"")
            self._table.close(self._index, index)
        self._table.begin_manager(self._index, os.getpid())
        self._before = {number: self._counters.get(number) for number in ManagerCounter}
        self._counters.add(ManagerCounter.MESSAGES_GIVEN_UP, self._given_up)
        self._before[ManagerCounter.MESSAGES_GIVEN_UP] += self._given_up
        self._traffic.watch(self._dispatched.fileno())
        self._traffic.watch(self._verifier.fd)
        self._traffic.watch(self._desk.fd)
        self._watch_control()
        self._control.send("ready")
        while not self._is_over():
            self._turn()
        self._count(time.monotonic())
        self._verifier.close()
        self._desk.close()
        self._dispatched.close()
        if self._outlet is not None:
            self._outlet.close()
        return 0

    def _settle_predecessor(self) -> list[tuple[int, int]]:
        """What a dead predecessor left, made good; its connections, for the router to hear of."""
        lost = self._table.lost(self._index)
        self._up.unwant()
        self._down.awake()
        finished = finish_all(OutstandingTable(self._outstanding.map), self._down, self._arenas, self._on_fault)
        given_up = self._arenas[self._index].recover(self._up.tail)
        for facts in given_up[:100]:
            self._control.log(
                "warning",
                f"gave up message {facts['handle']:016x} of connection {facts['uid']} ({facts['bytes']} bytes): "
                "its manager died before the router heard of it",
            )
        self._given_up = len(given_up)
        if lost or finished or given_up:
            self._control.log(
                "warning",
                f"manager {self._index} follows a dead one: {len(lost)} connections lost, {finished} instructions "
                f"counted as finished, {len(given_up)} messages given up",
            )
        return lost

    def _on_fault(self) -> None:
        self._counters.add(ManagerCounter.ACCOUNTING_FAULTS)

    def _watch_control(self) -> None:
        self._control_fd = self._control.fileno()
        if self._control_fd >= 0:
            self._traffic.watch(self._control_fd)

    # --- The loop -------------------------------------------------------------------------------------------------
    def _turn(self) -> None:
        events = self._traffic.turn(self._patience_ms())
        for number, what, data in events:
            match what:
                case "command":
                    self._road.on_command(number, data)
                case "publish":
                    self._road.on_publish(number, data)
                case "link":
                    self._road.on_link(data)
                case "link-lost":
                    self._road.on_lost()
                case "readable":
                    self._on_readable(number)
                case _:
                    self._on_client(number, what, data)
        if self._untrusted:
            self._drop_untrusted()
        if self._expiry:
            self._heed_expiry()
        now_s = time.monotonic()
        self._road.tick(now_s)
        self._ledger.tick(now_s)
        if self._control.lost and self._control.tick(now_s):
            self._watch_control()
        if now_s - self._counted_s >= COUNT_MS / 1000:
            self._count(now_s)
        else:
            self._stale = True

    _stale = True

    def _patience_ms(self) -> int:
        patience_ms = self._road.patience_ms
        if patience_ms is None:
            patience_ms = SAFETY_TICK_MS
        if self._stop_s or self._control.lost:
            patience_ms = min(patience_ms, 100)
        return min(patience_ms, COUNT_MS) if self._stale else patience_ms

    def _is_over(self) -> bool:
        """After a stop or a drain: have all said good-bye?"""
        if not self._stop_s and not self._draining:
            return False
        if self._stop_s and time.monotonic() >= self._stop_s:
            return True
        if self._clients:
            return False
        self._take_handovers()
        return not self._clients and not self._traffic.statistics()["queue_private"]

    def _on_readable(self, fd: int) -> None:
        if fd == self._control_fd:
            for command in self._control.receive():
                self._obey(command)
            if self._control.lost:
                self._control_fd = -1  # closing it took it out of the epoll set
        elif fd == self._dispatched.fileno():
            self._take_handovers()
        elif fd == self._verifier.fd:
            for (index, uid), right in self._verifier.answers():
                client = self._clients.get(index)
                if client is not None and client.uid == uid:
                    self._verified(index, client, right)
        elif fd == self._desk.fd:
            for (index, uid), answer in self._desk.answers():
                client = self._clients.get(index)
                if client is not None and client.uid == uid:
                    self._judged(index, client, answer)

    def _obey(self, command: Command) -> None:
        match command.name:
            case "stop":
                self._table.set_draining(self._index)
                self._stop_s = time.monotonic() + FAREWELL_S
                last = error_frame("shutting-down") + frame(0x0A)
                for index, client in list(self._clients.items()):
                    self._traffic.close(index, client.uid, "shutting-down", last)
            case "drain":
                self._draining = True
                self._table.set_draining(self._index)
                if command.args.get("move"):
                    self._moving = True
                    for index, client in self._clients.items():
                        if client.attachment:
                            self._ask_to_move(index, client)
            case "reload":
                self._reload()
            case "disconnect":
                index, uid = command.args["index"], command.args["uid"]
                if (named := self._clients.get(index)) is not None and named.uid == uid:
                    last = error_frame("cut-off", command.args.get("text", ""))
                    self._traffic.close(index, uid, "cut-off", last)

    def _reload(self) -> None:
        try:
            context = self._make_tls()
        except FairleadError as error:
            self._control.log("error", f"Certificates were not read again: {error}")
        else:
            self._tls_context = context
            self._drop_revoked()
        self._desk.reload(authorities_of(self._config))
        try:
            self._verifier.reload(self._read_users())
        except FairleadError as error:
            self._control.log("error", f"The users file was not read again: {error}")
            return
        self._policy = self._make_policy()  # the first users file may just have come
        before, self._rules_now = self._rules_now, self._rules()
        for index, client in list(self._clients.items()):
            if client.attachment and client.user not in inside.USERS:
                self._review(index, client, before)
        for member in self._road.reload(self._rules_now):
            # It comes back, resumes its sessions, and hears which of its consumers and producers it may not have.
            last = error_frame("not-allowed", "A right was withdrawn; connect again.")
            self._traffic.close(member.index, member.uid, "not-allowed", last)

    def _review(self, index: int, client: Client, before: Rules) -> None:
        """There are other users now: is this one of them still?"""
        rules = self._rules_now
        is_gone = before.knows(client.who) and not rules.knows(client.who)
        if not client.user:
            is_gone = not configuring.anonymous_allowed(self._config)
        if is_gone or rules.tenant_of(client.who) != client.tenant:
            text = "This user was removed, or belongs elsewhere now." if client.user else "Clients need a name now."
            self._traffic.close(index, client.uid, "not-allowed", error_frame("not-allowed", text))
        else:
            self._limit(index, client)

    def _limit(self, index: int, client: Client) -> None:
        """Its quotas, as far as they are kept here."""
        quotas = self._rules_now.quotas_of(client.who)
        slots = slots_of(self._verifier.users) if quotas else {}
        lengths = [quota.message_bytes for _, quota in quotas if quota.message_bytes]
        rates = [(slots[scope], float(quota.messages_per_s)) for scope, quota in quotas if scope in slots]
        self._traffic.limits(index, client.uid, min(lengths, default=0), rates)

    def _on_denied(self, user: str, action: str, what: str) -> None:
        text = f"{user or 'A client without a name'} may not {what}."
        self._ledger.note("refused", text, time.monotonic(), level="warning", user=user, action=action)

    def _rules(self) -> Rules:
        users = self._verifier.users
        return Rules.open() if users is None else users.rules()

    # --- Connections ----------------------------------------------------------------------------------------------
    def _take_handovers(self) -> None:
        for _ in range(HANDOVERS_PER_TURN):
            try:
                data, fds, _, _ = socket.recv_fds(self._dispatched, 4096, 16, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._traffic.unwatch(self._dispatched.fileno())
                return
            for surplus in fds[1:]:
                os.close(surplus)
            if len(data) >= _HANDOVER.size and fds:
                uid, index, _ = _HANDOVER.unpack_from(data)
                self._adopt(uid, index, fds[0], data[_HANDOVER.size :].decode("utf-8", "replace"))

    def _adopt(self, uid: int, index: int, fd: int, peer: str) -> None:
        if index in self._clients or not self._table.adopt(self._index, index, uid, fd):
            os.close(fd)
            return
        self._clients[index] = Client(uid, peer)
        self._adopted += 1
        self._traffic.adopt(index, uid, fd)
        if self._stop_s:
            self._traffic.close(index, uid, "shutting-down")

    def _on_client(self, index: int, what: str, data: bytes) -> None:
        client = self._clients.get(index)
        if client is None:
            return
        match what:
            case "preface":
                self._traffic.push(layout.UP_ATTACH, client.uid, index, msgspec.json.encode({"peer": client.peer}))
            case "tls":
                self._secure(index, client)
            case "http":
                self._pass_on(index, client, data)
            case "connect":
                self._on_connect(index, client, data)
            case "live":
                self._on_live(index, client)
            case "lost":
                client.lost = int(data)
            case "closed":
                del self._clients[index]
                self._road.leave(index)
                self._expiry.forget(index)
                self._table.close(self._index, index)
                reason = data.decode()
                text = f"connection {client.uid} from {client.peer} ended: {reason}"
                if client.lost:
                    text += f"; {client.lost} messages on their way to it were given up"
                self._say(reason not in ORDINARY or client.lost > 0, text, connection=client.uid, code=reason)

    def _pass_on(self, index: int, client: Client, kind: bytes) -> None:
        """It begins with HTTP: to the gateway of tunnels with it, as it is; P plain, T with TLS around it."""
        fd = self._traffic.descriptor(index, client.uid)
        if fd < 0 or self._outlet is None:
            return
        takes_secrets = self._policy.passwords or self._policy.tokens
        if kind == b"P" and takes_secrets and not self._may_send_password(client):
            # What comes out of a tunnel comes from this host: here is where it can be seen that its secrets did not.
            self._traffic.close(index, client.uid, "tls-required", plain_answer())
            return
        rights = array.array("i", [fd])
        try:
            self._outlet.sendmsg([kind], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_DONTWAIT)
        except OSError:  # so many wait already that it takes no more
            self._turned_away += 1
            self._traffic.close(index, client.uid, "gateway-busy", busy_answer() if kind == b"P" else b"")
            return
        self._passed_on += 1
        self._traffic.let_go(index, client.uid)

    def _on_connect(self, index: int, client: Client, body: bytes) -> None:
        """Who is it? Credentials stay in this process; the router hears only of the result."""
        try:
            said = client.said = decode(Connect, body)
        except RemoteProtocolError as error:
            self._refuse(index, client, "bad-request", str(error))
            return
        if said.version != PROTOCOL_VERSION:
            text = f"This server speaks version {PROTOCOL_VERSION} of the protocol."
            self._refuse(index, client, "unsupported-version", text)
        elif said.user in inside.USERS:
            self._verified(index, client, inside.is_own(self._secret, said.user, said.password))
        else:
            self._log_in(index, client, said)

    def _log_in(self, index: int, client: Client, said: Connect) -> None:
        """By certificate, token or password; see `security/logins.py` for which of them counts."""
        try:
            client.shown = self._shown(client)
        except NoIdentity as error:
            self._reject(index, client, CERTIFICATES, str(error))
            return
        match decide(self._policy, self._claim(client, said)):
            case Admit(identity):
                self._admit(index, client, identity)
            case Refuse(code, text):
                self._refuse(index, client, code, text)
            case Check("token"):
                self._check_token(index, client, said)
            case Check():
                self._check_password(index, client, said)

    def _check_token(self, index: int, client: Client, said: Connect) -> None:
        if not self._is_patient(index, client, TOKENS + said_subject(said.token)):
            return
        if not self._desk.check((index, client.uid), said.token):
            self._refuse(index, client, "server-full", "Too many clients are being verified; try again.")

    def _check_password(self, index: int, client: Client, said: Connect) -> None:
        if not self._is_patient(index, client, said.user):
            return
        if self._verifier.remembers(said.user, said.password):
            self._verified(index, client, True)
        elif not self._verifier.check((index, client.uid), said.user, said.password, source_of(client.peer)):
            self._refuse(index, client, "server-full", "Too many clients are being verified; try again.")

    def _is_patient(self, index: int, client: Client, who: str) -> bool:
        """May this be tried now? Else it is refused unseen."""
        wait_s = self._throttle.wait_s(who, source_of(client.peer), time.monotonic())
        if wait_s:
            text = f"Too many wrong logins for this user from there; try again in {math.ceil(wait_s)} s."
            self._refuse(index, client, "bad-credentials", text, "throttled")
        return not wait_s

    def _claim(self, client: Client, said: Connect) -> Claim:
        return Claim(said.user, said.password, said.token, client.shown, self._may_send_password(client))

    def _shown(self, client: Client) -> Identity | None:
        """Whom its certificate names; NoIdentity if nobody."""
        certificate = client.tls.certificate() if client.tls is not None else None
        if certificate is None:
            return None
        security_, users = self._config.security, self._verifier.users
        return certificates.identity_of(
            certificate,
            security_.certificate_user,
            users=users.certificates() if users is not None else None,
            units_are_groups=security_.certificate_groups,
        )

    def _may_send_password(self, client: Client) -> bool:
        allowed = self._plain_passwords
        return client.tls is not None or allowed == "allow" or (allowed == "local" and is_local(client.peer))

    def _verified(self, index: int, client: Client, right: bool) -> None:
        if client.said is None:
            return
        said = client.said
        if not right:
            self._throttle.wrong(said.user, source_of(client.peer), time.monotonic())
            self._refuse(index, client, "bad-credentials", "")
            return
        self._throttle.right(said.user, source_of(client.peer))
        how: How = "inside" if said.user in inside.USERS else "password"
        self._proven(index, client, said, Identity(said.user, how=how))

    def _judged(self, index: int, client: Client, answer: Identity | NoIdentity) -> None:
        """What the desk says about a token."""
        said = client.said
        if said is None:
            return
        who = TOKENS + said_subject(said.token)
        if isinstance(answer, Identity):
            self._throttle.right(who, source_of(client.peer))
            self._proven(index, client, said, answer)
        else:
            self._reject(index, client, who, f"its token is not accepted: {answer}")

    def _proven(self, index: int, client: Client, said: Connect, identity: Identity) -> None:
        outcome = agreed(self._claim(client, said), identity)
        if isinstance(outcome, Refuse):
            self._refuse(index, client, outcome.code, outcome.text)
        else:
            self._admit(index, client, outcome)

    def _admit(self, index: int, client: Client, identity: Identity) -> None:
        client.identity = identity
        if client.shown is not None:
            self._throttle.right(CERTIFICATES, source_of(client.peer))
        self._expiry.add(index, client.uid, identity.expires_s, time.time())
        self._respond(index, client)

    def _reject(self, index: int, client: Client, who: str, reason: str) -> None:
        """A proof that is none: the client hears that, the log hears why."""
        self._throttle.wrong(who, source_of(client.peer), time.monotonic())
        self._say(True, f"connection {client.uid} from {client.peer} is refused: {reason}")
        self._refuse(index, client, "bad-credentials", "")

    # --- TLS, and logins that end -----------------------------------------------------------------------------------
    def _secure(self, index: int, client: Client) -> None:
        assert self._tls_context is not None
        uid = client.uid
        if self._throttle.wait_s(CERTIFICATES, source_of(client.peer), time.monotonic()):
            self._traffic.close(index, uid, "bad-credentials")  # too many bad certificates from there
            return
        client.tls = TlsFilter(
            self._tls_context, lambda reason, about: self._untrusted.append((index, uid, reason, about))
        )
        self._traffic.secure(index, uid, client.tls)

    def _drop_untrusted(self) -> None:
        """The alert that says why is on its way."""
        untrusted, self._untrusted = self._untrusted, []
        for index, uid, reason, about_certificate in untrusted:
            client = self._clients.get(index)
            if client is None or client.uid != uid:
                continue
            if about_certificate:
                self._throttle.wrong(CERTIFICATES, source_of(client.peer), time.monotonic())
                self._say(True, f"connection {uid} from {client.peer} is refused: its certificate: {reason}")
            self._traffic.close(index, uid, "tls")

    def _heed_expiry(self) -> None:
        """Ask for a renewal, and end what was not renewed."""
        for index, uid, what, left_s in self._expiry.due(time.time()):
            client = self._clients.get(index)
            if client is None or client.uid != uid:
                continue
            if what == "renew":
                self._ask_to_move(index, client, min(left_s, MOVE_WITHIN_S), renew=True)
            else:
                self._refuse(index, client, EXPIRED[client.identity.how == "token"], "")

    def _drop_revoked(self) -> None:
        """Connections whose certificate is on the list of revoked ones by now."""
        if not self._config.security.tls_crl:
            return
        try:
            serials = revoked_serials(self._config.security.tls_crl)
        except FairleadError as error:
            self._control.log("warning", f"Connections that are open stay, whatever the list of revoked ones: {error}")
            return
        for index, client in list(self._clients.items()):
            certificate = client.tls.certificate() if client.tls is not None and client.shown is not None else None
            if certificate is not None and certificates.serial_of(certificate) in serials:
                self._say(True, f"connection {client.uid} from {client.peer} ends: its certificate was revoked")
                self._refuse(index, client, "certificate-expired", "The certificate of this client was revoked.")

    def _respond(self, index: int, client: Client) -> None:
        """Tell the router who it is, without secrets; its WELCOME makes the connection live."""
        said = client.said
        assert said is not None
        most = self._config.limits.keep_alive_s
        keep_alive_s = min(said.keep_alive_s or most, most)
        identity = client.identity
        client.who = principal(identity.user, identity.groups, identity.tenant)
        client.tenant = self._rules_now.tenant_of(client.who)
        if identity.tenant and client.tenant != identity.tenant:
            self._refuse(index, client, "not-allowed", "There is no such tenant here, or this user is of another one.")
            return
        facts: dict[str, Any] = {
            "version": said.version,
            "type": said.type,
            "instance": said.instance,
            "org": said.org,
            "credit": said.credit,
            "keep_alive_s": keep_alive_s,
            "software": said.software,
            "user": client.user,
            "who": client.who,
            "tenant": client.tenant,
        }
        client.attachment = client.uid
        if said.resume:
            uid = uid_of(self._secret, said.resume)
            if uid is None:
                self._refuse(index, client, "not-allowed", "This is not a token of this server.")
                return
            facts["resume_uid"] = client.attachment = uid
        client.said = Connect(type=said.type, instance=said.instance, org=said.org)  # the password is not kept
        self._traffic.options(index, client.uid, said.credit, max(1, int(keep_alive_s * 1000)))
        self._limit(index, client)
        self._road.join(index, client.uid, client.user, f"{said.type}/{said.instance}", client.who)
        self._traffic.push(layout.UP_RESPONSE, client.uid, index, msgspec.json.encode(facts))

    def _on_live(self, index: int, client: Client) -> None:
        said = client.said
        assert said is not None
        self._table.set_live(self._index, index, user=client.user, type=said.type, instance=said.instance, org=said.org)
        self._say(
            False, f"connection {client.uid} from {client.peer} is {said.type}/{said.instance}", connection=client.uid
        )
        is_open = client.identity.how == "anonymous" and self._verifier.users is None  # then it is no login
        if client.user not in inside.USERS and not is_open:
            source = source_of(client.peer)
            text = f"{client.user or 'A client without a name'} is connected from {source}."
            facts = {"source": source, "tenant": client.tenant, "how": client.identity.how}
            self._ledger.note("login", text, time.monotonic(), user=client.user, **facts)
        if self._moving:
            self._ask_to_move(index, client)

    def _refuse(self, index: int, client: Client, code: str, text: str, reason: str = "") -> None:
        if client.said is not None and not client.attachment and code != "bad-request":
            user, source = client.said.user[:64], source_of(client.peer)
            line = f"{user or 'A client without a name'} from {source} was not let in: {reason or code}."
            facts = {"source": source, "reason": reason or code}
            self._ledger.note("login-refused", line, time.monotonic(), level="warning", user=user, **facts)
        self._traffic.close(index, client.uid, code, error_frame(code, text))

    def _ask_to_move(self, index: int, client: Client, within_s: float = MOVE_WITHIN_S, *, renew: bool = False) -> None:
        go_away = GoAway(token=token_for(self._secret, client.attachment), within_s=within_s, renew=renew)
        self._traffic.send(index, client.uid, frame(GO_AWAY, body=encode(go_away)))

    # --- What others see ------------------------------------------------------------------------------------------
    def _say(self, notable: bool, text: str, **facts: str | int) -> None:
        """A line about one connection; ordinary ones only at debug, and never a flood of either."""
        if not notable and self._config.log.level != "debug":
            return
        second = int(time.monotonic())
        if second != self._lines_s:
            self._lines, self._lines_s = 0, second
        self._lines += 1
        if self._lines <= LOG_LINES_PER_S:
            more = "" if self._lines < LOG_LINES_PER_S else " (and more of the kind in this second)"
            self._control.log("warning" if notable else "debug", text + more, **facts)

    def _count(self, now_s: float) -> None:
        found, words, before = self._traffic.statistics(), self._counters.words, self._before
        self._counted_s, self._stale = now_s, False
        words[ManagerCounter.CONNECTIONS_OPEN] = found["connections"]
        words[ManagerCounter.CONNECTIONS_TOTAL] = before[ManagerCounter.CONNECTIONS_TOTAL] + self._adopted
        words[ManagerCounter.READING_STOPPED] = found["stopped"]
        words[ManagerCounter.LOOP_PROGRESS] += 1
        words[ManagerCounter.LINK_WAITING] = found["link_waiting"]
        words[ManagerCounter.LINKED] = self._road.up
        words[ManagerCounter.PASSED_ON] = before[ManagerCounter.PASSED_ON] + self._passed_on
        words[ManagerCounter.TURNED_AWAY] = before[ManagerCounter.TURNED_AWAY] + self._turned_away
        words[ManagerCounter.DENIED] = before[ManagerCounter.DENIED] + self._road.denied
        for number, name in COUNTED:
            words[number] = before[number] + found[name]


COUNTED: Final = (
    (ManagerCounter.MESSAGES_IN, "messages_in"),
    (ManagerCounter.BYTES_IN, "bytes_in"),
    (ManagerCounter.MESSAGES_OUT, "deliveries"),
    (ManagerCounter.BYTES_OUT, "bytes_out"),
    (ManagerCounter.INSTRUCTIONS, "instructions"),
    (ManagerCounter.ROUNDS, "rounds"),
    (ManagerCounter.ACCOUNTING_FAULTS, "accounting_faults"),
    (ManagerCounter.SAFETY_TICK_FINDS, "safety_tick_finds"),
    (ManagerCounter.SLOW_CLIENTS_CUT, "slow_clients"),
    (ManagerCounter.PROTOCOL_ERRORS, "refused"),
    (ManagerCounter.MESSAGES_GIVEN_UP, "lost"),
    (ManagerCounter.WAKEUPS, "wakes"),
    (ManagerCounter.STOPS, "stops"),
    (ManagerCounter.DURABLE_IN, "durable_in"),
    (ManagerCounter.DURABLE_OUT, "durable_out"),
    (ManagerCounter.DIVERTED, "diverted"),
    (ManagerCounter.LINK_STRAYS, "link_strays"),
    (ManagerCounter.LINK_DROPPED, "link_dropped"),
    (ManagerCounter.LINK_CHOKES, "link_chokes"),
    (ManagerCounter.SLOWED, "slowed"),
    (ManagerCounter.OVER_QUOTA, "over_quota"),
)


def open_outstanding(directory: Path, manager: int, server_id: int) -> Segment:
    """This manager's table of instructions under way; the first manager of a new store makes it."""
    path = directory / outstanding_name(manager)
    if not path.exists():
        size = outstanding_bytes(RECORDS_DEFAULT)
        header = bytearray(layout.HEADER_BYTES + 8)
        facts = (layout.MAGIC, layout.LAYOUT_VERSION, KIND_OUTSTANDING, MODE, manager, size, server_id)
        struct.pack_into(layout.HEADER_FORMAT, header, 0, *facts)
        format_outstanding(header, RECORDS_DEFAULT)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size)
            os.pwrite(fd, header, 0)
        finally:
            os.close(fd)
        fresh.rename(path)
    return open_segment(path, KIND_OUTSTANDING, mode=MODE)


def raise_descriptor_limit() -> None:
    """As many descriptors as the system grants: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
