"""What each operation does, second part: destinations and messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from fairlead.console import preview
from fairlead.console.authority import check, is_admin, may, rights_of, sees
from fairlead.console.destinations import page, row
from fairlead.console.edge.handlers import Handlers
from fairlead.console.edge.request import Request
from fairlead.console.edge.watching import now_ms
from fairlead.console.shapes import Counted, Done
from fairlead.console.shapes_messages import (
    Consumer,
    Created,
    DeadPage,
    DeadReason,
    DestinationDetail,
    Destinations,
    Message,
    MessagePage,
    Moved,
    Redriven,
    Schedule,
    Schedules,
    Sent,
    Subscription,
)
from fairlead.console.users_views import after_number
from fairlead.errors import BadParameter, NoDestination

WAITS_S: Final = 0.05
WAITS: Final = 40  # looks at a page that is being read from disk
DEAD_LOOKED_MAX: Final = 2000  # messages that are counted by reason
DEAD: Final = "_DMQ"
SCHEDULED_MAX: Final = 200  # destinations that are asked for their schedules


class MessageHandlers(Handlers):
    """The operations about destinations."""

    async def destinations(self, asked: Request) -> Destinations:
        query, rules, user = asked.query, self.doorman.rules, asked.caller.user
        rows = await self.watcher.destinations()
        if not is_admin(rules, user):
            rows = [one for one in rows if sees(rules, user, one.name)]
        return page(
            rows,
            pattern=query.pattern,
            kind=query.kind,
            sort=query.sort,
            descending=query.descending,
            limit=query.limit,
            after=query.after,
            complete=self.watcher.complete,
        )

    async def destination(self, asked: Request) -> DestinationDetail:
        facts = await self.supervisor.administer("destination", destination=asked.name)
        administers = may(self.doorman.rules, asked.caller.user, "admin", asked.name)
        consumers: dict[str, Any] = {"consumers": []}
        if administers:  # who else uses it is nobody else's business
            consumers = await self.supervisor.administer("consumers", destination=asked.name)
        known = next((one for one in await self.watcher.destinations() if one.name == asked.name), None)
        rates = (known.rate_in, known.rate_out) if known else (None, None)
        return DestinationDetail(
            destination=row(facts, *rates, now_ms()),
            parameters=facts["parameters"],
            subscriptions=[
                Subscription(
                    name=one["name"],
                    client=one["client"],
                    selector=one["selector"],
                    shared=one["shared"],
                    pattern=one["pattern"],
                    depth=one["depth"],
                )
                for one in facts["subscriptions"]
                if administers
            ],
            consumers=[
                Consumer(**{name: one[name] for name in Consumer.__struct_fields__}) for one in consumers["consumers"]
            ],
            temporary=facts.get("temporary_of") is not None,
            may=rights_of(self.doorman.rules, asked.caller.user, asked.name),
        )

    async def create(self, asked: Request) -> Created:
        body = asked.body
        answer = await self.supervisor.administer(
            "create", destination=asked.name, kind=body.kind, parameters=body.parameters
        )
        return Created(name=asked.name, existed=bool(answer["existed"]))

    async def delete(self, asked: Request) -> Counted:
        answer = await self.supervisor.administer("delete", destination=asked.name, unused=asked.query.unused)
        return Counted(messages=answer["messages"])

    async def pause(self, asked: Request) -> Done:
        await self.supervisor.administer("pause", destination=asked.name)
        return Done()

    async def resume(self, asked: Request) -> Done:
        await self.supervisor.administer("resume", destination=asked.name)
        return Done()

    async def purge(self, asked: Request) -> Counted:
        return await self.counted(
            self.supervisor.administer("purge", destination=asked.name, selector=asked.body.selector)
        )

    async def drop(self, asked: Request) -> Counted:
        return await self.counted(self.supervisor.administer("drop", destination=asked.name, orders=[asked.order]))

    async def send(self, asked: Request) -> Sent:
        facts = await self.supervisor.administer("destination", destination=asked.name)
        return await self.client.send(str(facts["kind"]), asked.name, asked.body)

    async def move(self, asked: Request) -> Moved:
        body, rules, user = asked.body, self.doorman.rules, asked.caller.user
        if not may(rules, user, "admin", body.to):
            check(rules, user, "send", body.to)  # to put messages there he needs what a sender needs
        if body.dry_run:
            return await self._would_move(asked)
        answer = await self.supervisor.administer(
            "move", destination=asked.name, to=body.to, orders=body.orders, selector=body.selector, count=body.limit
        )
        return Moved(messages=answer["messages"], dry_run=False, more=answer.get("next") is not None)

    async def _would_move(self, asked: Request) -> Moved:
        """What a move would find, without it."""
        body = asked.body
        source = await self.supervisor.administer("destination", destination=asked.name)
        await self.supervisor.administer("destination", destination=body.to)
        if source["kind"] != "queue" or body.to == asked.name:
            raise BadParameter("Messages are moved out of a queue, into another destination.")
        wanted, found, at = set(body.orders), 0, min(body.orders, default=0)
        following: int | None = at
        while following is not None and found < body.limit:
            answer = await self._browse(asked.name, following, min(1000, body.limit - found), body.selector, "none", 0)
            ready = [one["order"] for one in answer["messages"] if one["state"] == "ready"]
            found += len([order for order in ready if not wanted or order in wanted])
            following = answer["next"]
            if wanted and (following is None or following > max(wanted)):
                following = None
        return Moved(messages=found, dry_run=True, more=following is not None)

    # --- Messages -------------------------------------------------------------------------------------------------
    async def browse(self, asked: Request) -> MessagePage:
        query = asked.query
        start = after_number(query.after) or 0
        answer = await self._browse(asked.name, start, query.limit, query.selector, query.shown, query.bytes)
        return MessagePage(
            messages=[preview.message(one, query.shown, query.bytes) for one in answer["messages"]],
            next=None if answer["next"] is None else str(answer["next"]),
            waits=bool(answer["waits"]),
        )

    async def message(self, asked: Request) -> Message:
        query = asked.query
        for _ in range(WAITS):
            answer = await self.supervisor.administer(
                "message", destination=asked.name, order=asked.order, body="base64", body_bytes=query.bytes
            )
            if answer["message"] is not None:
                return preview.message(answer["message"], query.shown, query.bytes)
            await asyncio.sleep(WAITS_S)
        raise NoDestination(
            f"{asked.name!r} has message {asked.order} on disk, and it was not read in time; try again."
        )

    async def _browse(self, name: str, start: int, count: int, selector: str, shown: str, most: int) -> dict[str, Any]:
        """A page of administration; what is being read from disk is waited for, a moment."""
        body = "none" if not most else "base64" if shown == "hex" else "text"
        for _ in range(WAITS):
            answer = await self.supervisor.administer(
                "browse", destination=name, start=start, count=count, selector=selector, body=body, body_bytes=most
            )
            if answer["messages"] or not answer["waits"]:
                break
            await asyncio.sleep(WAITS_S)
        return answer

    async def dead(self, asked: Request) -> DeadPage:
        query = asked.query
        rows = await self.watcher.destinations()
        queues = sorted(one.name for one in rows if one.name == DEAD or one.name.startswith(f"{DEAD}."))
        facts = await self.supervisor.administer("destination", destination=query.queue)
        counts: Counter[tuple[str, str]] = Counter()
        start, looked = after_number(query.after) or 0, 0
        found: list[Message] = []
        following: int | None = 0
        ending: int | None = None
        waits = False
        while following is not None and looked < DEAD_LOOKED_MAX:
            answer = await self._browse(query.queue, following, 500, "", query.shown, query.bytes)
            for one in answer["messages"]:
                looked += 1
                reason = str(one["headers"].get("dead-reason", ""))
                origin = str(one["headers"].get("dead-destination", ""))
                counts[reason, origin] += 1
                if one["order"] < start or (query.reason and reason != query.reason):
                    continue
                if query.origin and origin != query.origin:
                    continue
                if len(found) < query.limit:
                    found.append(preview.message(one, query.shown, query.bytes))
                elif ending is None:
                    ending = one["order"]
            following, waits = answer["next"], bool(answer["waits"])
            if waits:
                break
        if ending is None and following is not None and found:
            ending = following
        return DeadPage(
            queues=queues,
            total=facts["depth"],
            reasons=[DeadReason(reason=r, origin=o, messages=n) for (r, o), n in counts.most_common()],
            counted=looked,
            messages=found,
            next=None if ending is None else str(ending),
            waits=waits,
        )

    async def redrive(self, asked: Request) -> Redriven:
        body = asked.body
        answer = await self.supervisor.administer(
            "redrive",
            destination=body.queue,
            orders=body.orders,
            reason=body.reason,
            origin=body.origin,
            selector=body.selector,
            to=body.to,
            dry_run=body.dry_run,
            count=body.limit,
        )
        return Redriven(
            moved=answer["moved"],
            to=answer["to"],
            failed=answer["failed"],
            dry_run=body.dry_run,
            more=answer.get("next") is not None,
        )

    # --- Schedules ------------------------------------------------------------------------------------------------
    async def schedules(self, asked: Request) -> Schedules:
        name = asked.query.destination
        rows = await self.watcher.destinations()
        names = [name] if name else [one.name for one in rows if one.schedules]
        found = []
        for one in names[:SCHEDULED_MAX]:
            answer = await self.supervisor.administer("schedules", destination=one)
            found += [Schedule(destination=one, **facts) for facts in answer["schedules"]]
        found.sort(key=lambda one: (one.due_ms, one.destination, one.order))
        return Schedules(schedules=found, complete=self.watcher.complete and len(names) <= SCHEDULED_MAX)

    async def cancel_schedule(self, asked: Request) -> Done:
        await self.supervisor.administer("cancel-schedule", destination=asked.name, order=asked.order)
        return Done()
