"""The coordinator's errands: what it wants said to groups and clients, and what they say to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster.client_manager import envelopes
from fairlead.cluster.client_manager.coordinator import Answer, Coordinator, Effect, Error, Send, parts_of
from fairlead.cluster.client_manager.link_head import OWN_SLOT
from fairlead.cluster.client_manager.managers import Connection, ManagerLink
from fairlead.cluster.client_manager.questions import Reply
from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from fairlead.cluster.client_manager.agent import Agent

FOREVER_S: Final = 1e18  # it has time limits of its own


class Commits:
    """Between the agent and its coordinator. A connection is named by its manager's slot and its uid."""

    def __init__(self, agent: Agent, coordinator: Coordinator) -> None:
        self._agent = agent
        self.coordinator = coordinator

    def on_commit(self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any]) -> None:
        agent = self._agent

        def group_of(session: int) -> str | None:
            group = agent.group_at(session)
            return None if group is None else group.name

        try:
            parts = parts_of(request, group_of, connection.sessions.get)
        except FairleadError as fault:
            link.give(envelopes.error(connection.uid, connection.index, number, fault.code, fault.text))
            return
        self._carry_out(self.coordinator.begin((link.slot, connection.uid), number, parts, agent.now_s))

    def on_gone(self, link: ManagerLink, connection: Connection) -> None:
        self._carry_out(self.coordinator.gone((link.slot, connection.uid), self._agent.now_s))

    def on_back(self, group: str) -> None:
        self._carry_out(self.coordinator.back(group, self._agent.now_s))

    def on_lost(self, group: str) -> None:
        self._carry_out(self.coordinator.lost(group, self._agent.now_s))

    def tick(self) -> None:
        next_s = self.coordinator.next_s
        if next_s is not None and next_s <= self._agent.now_s:
            self._carry_out(self.coordinator.tick(self._agent.now_s))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(group, None, command, tag):
                    self._agent.ask(group, OWN_SLOT, 0, 0, command, self._then(tag), until_s=FOREVER_S)
                case Send(group, (int(slot), int(uid)), command, tag):
                    link = self._agent.managers.get(slot)
                    connection = None if link is None else link.connections.get(uid)
                    if connection is not None:
                        then = self._then(tag)
                        self._agent.ask(group, slot, uid, connection.index, command, then, until_s=FOREVER_S)
                case Answer((int(slot), int(uid)), _, _) | Error((int(slot), int(uid)), _, _, _):
                    self._tell(slot, uid, effect)

    def _tell(self, slot: int, uid: int, effect: Answer | Error) -> None:
        link = self._agent.managers.get(slot)
        connection = None if link is None else link.connections.get(uid)
        if link is None or connection is None:
            return
        if isinstance(effect, Answer):
            link.give(envelopes.answer(uid, connection.index, effect.number, effect.facts))
        else:
            link.give(envelopes.error(uid, connection.index, effect.number, effect.code, effect.text))

    def _then(self, tag: int) -> Callable[[Reply], None]:
        def then(reply: Reply) -> None:
            now_s = self._agent.now_s
            if reply.facts is not None:
                self._carry_out(self.coordinator.answer(tag, reply.facts, now_s))
            elif reply.code:
                self._carry_out(self.coordinator.refused(tag, reply.code, reply.text, now_s))

        return then
