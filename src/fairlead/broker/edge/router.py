"""The router process: a duty cycle of turns, and sleep when there is nothing to do.

A standby reads the routing log as it grows and is ready to go on from any commit. Active, it is the only writer of the
routing segment. Parked, it has committed and touches nothing, but can be told to take over again.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any

from fairlead.broker import decisions as deciding
from fairlead.broker.routing_log import Follower
from fairlead.broker.turn import LOG_SPARE_BYTES, Rule
from fairlead.errors import FairleadError
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Control, Start
from fairlead.runtime.counters import Counters, RouterCounter
from fairlead.runtime.version import VERSION
from fairlead.security import users as security
from fairlead.security.auditing import Ledger
from fairlead.store import layout
from fairlead.store.edge.segment import open_segment
from fairlead.store.memory import MODE, Consumer, Producer

if MODE == layout.MODE_COMPILED:
    from fairlead.broker._turn import Turn, made_of
else:
    from fairlead.broker.turn import Turn, made_of

BUDGET_ENTRIES = 1024  # a turn; more makes commits rarer and waits longer
SAFETY_TICK_MS = 250
WAKE_GRACE_S = 0.02
CONTROL_EVERY_NS = 5_000_000  # how long the supervisor may wait for an answer under full load
LOG_STEP_BYTES = 1 << 20
LOG_BYTES_MIN = 1 << 20  # below this an area is never rewritten; a successor of a small state reads no more
LOOK_AGAIN_NS = 2_000_000_000  # at least so long between two looks whether there is room again
FOLLOW_S = 1.0  # how often a standby reads on; what it has not read it reads when it takes over


def run(control: Control, start: Start) -> int:
    return Router(control, start).run()


class Router:
    """One router process from its start command to its stop."""

    def __init__(self, control: Control, start: Start) -> None:
        self.control = control
        self.config = start.config
        self.server_id = start.server_id
        directory, managers = start.store, range(start.managers)
        kind, mode = layout.KIND_RING, MODE
        self._rings_up = [open_segment(directory / layout.up_name(i), kind, mode=mode) for i in managers]
        self._rings_down = [open_segment(directory / layout.down_name(i), kind, mode=mode) for i in managers]
        self._segment = open_segment(directory / layout.ROUTING_NAME, layout.KIND_ROUTING, mode=mode)
        self._area_bytes = int.from_bytes(self._segment.view[64:72], "little")
        counters = open_segment(directory / layout.counters_name("router"), layout.KIND_COUNTERS, mode=mode)
        self.counters = Counters("router", counters.view)
        self._wake = start.fds["wake"]
        self._wake_managers = [start.fds[f"wake-manager-{i}"] for i in managers]
        self._active = start.mode == "active"
        self._stopped = False
        self._epoll = (
            select.epoll()
        )  # watches `wake` only while this router serves: it has it in common with the standby
        self._control_fd = -1
        self._watch_control()
        self._load_rules()
        self._follower = self._new_follower()
        self.turn: Any = None
        self._log_step = min(LOG_STEP_BYTES, self._area_bytes // 8)
        self._log_room_min = LOG_SPARE_BYTES + self._log_step
        self._full_at = min(self._area_bytes // 2, self._area_bytes - LOG_SPARE_BYTES - 2 * self._log_step)
        self._flip_at = min(LOG_BYTES_MIN, self._full_at)
        self._full = False
        self._parties_when_full = 0
        self._look_again_ns = 0
        self._withdraws = False
        self._ledger = Ledger(lambda record: control.send("audit", record=record))

    def _new_follower(self) -> Follower:
        return Follower(self._segment.map, made_of, rules=self._rules)

    def _load_rules(self) -> None:
        path = configuring.users_path(self.config)
        self._rules = security.read(path).rules() if path is not None else None

    def _watch_control(self) -> None:
        self._control_fd = self.control.fileno()
        if self._control_fd >= 0:
            self._epoll.register(self._control_fd, select.EPOLLIN)

    def run(self) -> int:
        if self._active:
            self._take_over()
            self.control.send("ready")
        else:
            self._follower.catch_up()
            self.control.send("ready")
        while not self._stopped:
            if self.turn is not None:
                self._serve()
            else:
                self._wait_standing_by()
        return 0

    # -- not serving

    def _wait_standing_by(self) -> None:
        self._listen(FOLLOW_S if not self.control.lost else SAFETY_TICK_MS / 1000)
        if self.turn is None and self.control.state == "standby":
            self._follower.catch_up()

    def _listen(self, timeout_s: float) -> bool:
        """Wait for the supervisor or a wake-up; True: something came."""
        self._epoll_tick()
        events = self._epoll.poll(timeout_s)
        for fd, _ in events:
            if fd == self._wake:
                os.eventfd_read(self._wake)
            else:
                self._obey()
        return bool(events)

    def _epoll_tick(self) -> None:
        if self.control.lost and self.control.tick(time.monotonic()):
            self._watch_control()

    def _obey(self) -> None:
        for command in self.control.receive():
            if command.name == "activate":
                self._take_over()
                self.control.send("active", pause_ns=self.counters.get(RouterCounter.LAST_PAUSE_NS))
            elif command.name == "park":
                self._park()
            elif command.name == "stop":
                self._park()
                self._stopped = True
            elif command.name == "reload":
                self._reload()
        if self.control.lost:
            self._control_fd = -1  # closing it took it out of the epoll set

    def _take_over(self) -> None:
        """Go on from the newest commit. The predecessor is parked or dead: the supervisor saw to that."""
        if self.turn is not None:
            return
        if self.control.state == "parked":
            self._follower = self._new_follower()  # others have served meanwhile
        found = self._follower.catch_up()
        routing = self._follower.routing
        decisions = deciding.Decisions(routing, self._terms(), self._rules)
        decisions.full = self._full
        self._decisions = decisions
        self.turn = Turn(
            [Consumer(s.map, s.fd) for s in self._rings_up],
            [Producer(s.map, s.fd) for s in self._rings_down],
            self._segment.map,
            decisions,
            self._wake_managers,
            self._rule(),
            self.counters.words,
        )
        self.turn.log_limit = self._give_memory(found.flips if found else 0, found.log_end if found else 0)
        self.turn.start(found)
        self._epoll.register(self._wake, select.EPOLLIN)
        now_ns, seen_ns = time.monotonic_ns(), self.counters.get(RouterCounter.LAST_TURN_NS)
        if seen_ns:
            self.counters.set(RouterCounter.LAST_PAUSE_NS, now_ns - seen_ns)
        self.counters.add(RouterCounter.TAKEOVERS)

    def _park(self) -> None:
        self._put_down()
        self.control.send("parked")

    def _put_down(self) -> None:
        if self.turn is not None:
            self.turn.awake()
            self.turn = None
            self._epoll.unregister(self._wake)

    def _reload(self) -> None:
        try:
            self._load_rules()
        except FairleadError as error:
            self.control.log("error", f"The users file was not read again: {error}")
            return
        serving = self.turn is not None
        self._put_down()
        self._follower = self._new_follower()
        if serving:
            self._take_over()
            self._withdraw()

    def _withdraw(self) -> None:
        """What somebody has no right to any more ends."""
        for decision in self._decisions.on_rules():
            if not self.turn.carry_out(decision):
                self._withdraws = True  # a ring is full: the rest when there is room
                return
            self.turn.commit()
        self._withdraws = False

    # -- serving

    def _serve(self) -> None:
        """Turns until there is something else to do: a command, a full log, or nothing for a whole tick."""
        turn = self.turn
        until_ns = time.monotonic_ns() + CONTROL_EVERY_NS
        epoll, wake = self._epoll.fileno(), self._wake
        quiet = turn.serve(epoll, wake, BUDGET_ENTRIES, until_ns, SAFETY_TICK_MS, self._flip_at, self._log_room_min)
        if quiet:
            self._on_safety_tick()
        if self.turn is turn:
            self._keep_house()
            self._listen(0)

    def _on_safety_tick(self) -> None:
        """Nothing woke us for a while. Finding work now means that a wake-up was lost (it must never happen).

        Unless it is there and was not looked at, since we were suspended beyond the time we meant to wait; or is about
        to be, its producer being between its two steps.
        """
        turn = self.turn
        if not turn.sleep() and not self._listen(WAKE_GRACE_S):
            self.counters.add(RouterCounter.SAFETY_TICK_FINDS)
        if self.turn is turn:
            turn.awake()

    def _keep_house(self) -> None:
        while failures := self._decisions.failures:
            self.control.log("error", f"an entry could not be decided about:\n{failures.popleft()}")
        self._tell_refusals()
        if self.turn.log_room() < self._log_room_min or self.turn.log_end > self._flip_at:
            self._make_log_room()
        elif self._full and time.monotonic_ns() > self._look_again_ns and self._some_have_left():
            self._rewrite()
        if self._follower.routing.held:
            self._give_up_held()
        if self._withdraws:
            self._withdraw()

    def _tell_refusals(self) -> None:
        """What users were not allowed, and quotas they met, to the event log: a few of each kind, then a sum."""
        decisions, now_s = self._decisions, time.monotonic()
        self._ledger.tick(now_s)
        while refused := decisions.refused:
            user, action, what = refused.popleft()
            text = f"{user or 'A client without a name'} may not {what}."
            self._ledger.note("refused", text, now_s, level="warning", user=user, action=action)
        for (scope, kind), times in decisions.exceeded.items():
            whose = f"user {scope[1:]}" if scope.startswith("=") else f"tenant {scope}"
            text = f"The {whose} met its quota of {kind}, {times} times."
            self._ledger.note("quota-exceeded", text, now_s, level="warning", whose=scope, quota=kind, action=kind)
        self.counters.add(RouterCounter.QUOTAS_MET, decisions.exceeded.total())
        decisions.exceeded.clear()

    def _give_up_held(self) -> None:
        """Requests that waited long enough for a receiver."""
        decision = self._decisions.on_tick(time.monotonic_ns())
        if decision is not None and self.turn.carry_out(decision):
            self.turn.commit()

    def _make_log_room(self) -> None:
        """Write the state anew to the other area when the log is mostly history; else give this area more memory."""
        if self.turn.log_end > self._flip_at or self.turn.log_limit >= self._area_bytes:
            self._rewrite()
        else:
            self.turn.log_limit = self._give_memory(self.turn.flips, self.turn.log_end)

    def _some_have_left(self) -> bool:
        return len(self._follower.routing.by_uid) < self._parties_when_full

    def _rewrite(self) -> None:
        """Only now it is known how large the state is: when it has the area half full, nothing more is added to it."""
        size = sum(len(payload) + 16 for _, payload in self._follower.routing.dump())
        limit = self._give_memory(self.turn.flips + 1, size)
        if size > limit:
            return  # it cannot be written; what is there goes on as long as it has room
        self.turn.flip(limit)
        self.counters.add(RouterCounter.SNAPSHOTS)
        state = self.turn.log_end
        latest = max(self._full_at, (state + self._area_bytes - LOG_SPARE_BYTES - self._log_step) // 2)
        self._flip_at = min(max(LOG_BYTES_MIN, 4 * state), latest)
        full = state > self._full_at * 4 // 5
        if full and not self._full:
            text = "[store] routing_bytes is used up: new subscriptions and registrations are refused until some end."
            self.control.log("warning", text)
        self._full = self._decisions.full = full
        self._parties_when_full = len(self._follower.routing.by_uid)
        self._look_again_ns = time.monotonic_ns() + LOOK_AGAIN_NS

    def _give_memory(self, flips: int, used: int) -> int:
        """Make sure an area has memory well beyond `used` bytes; how many bytes of it have."""
        want = min(self._area_bytes, layout.round_up(used + LOG_SPARE_BYTES + 2 * LOG_STEP_BYTES, LOG_STEP_BYTES))
        try:
            os.posix_fallocate(self._segment.fd, layout.ROUTING_AREAS + (flips & 1) * self._area_bytes, want)
        except OSError as error:
            text = f"There is no memory for the routing log ({error.strerror}); reading of clients will stop."
            self.control.log("error", text)
            return used
        return want

    # -- settings

    def _terms(self) -> deciding.Terms:
        config = self.config
        ways = {
            "anonymous": configuring.anonymous_allowed(config),
            "password": configuring.users_path(config) is not None,
            "token": configuring.tokens_taken(config),
            "certificate": config.security.client_certificates != "off",
        }
        return deciding.Terms(
            server=f"{self.server_id:016x}",
            software=f"fairlead {VERSION}",
            subscriptions_max=config.limits.subscriptions_per_client,
            registrations_max=config.limits.registrations_per_client,
            requests_max=config.limits.requests_per_client,
            hold_ns=int(config.requests.hold_s * 1e9),
            by_outstanding=config.requests.balance == "fewest-outstanding",
            refuse_duplicates=config.security.duplicate_instance == "refuse",
            frame_max=config.limits.frame_max,
            header_max=config.limits.header_max,
            body_max=config.limits.body_max,
            auth=tuple(way for way, is_open in ways.items() if is_open),
        )

    def _rule(self) -> Rule:
        fairness = self.config.fairness
        taken_up_at = min(fairness.resume_below, fairness.limit, fairness.queue_entries or fairness.limit) - 1
        return Rule(fairness.router_rule == "round-complete", fairness.simple_messages, max(0, taken_up_at))
