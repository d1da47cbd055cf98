"""What an operator should look at, out of a status report: each line says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.console.counting import Report
from fairlead.console.shapes_server import Alarm, Health

FULL: Final = 0.8  # of a ring or an arena
WORST: Final[dict[Health, int]] = {"error": 0, "warning": 1, "ok": 2}


def alarms(report: Report) -> list[Alarm]:
    """The worst first."""
    return sorted(_found(report), key=lambda one: WORST[one.level])


def health(found: list[Alarm]) -> Health:
    return found[0].level if found else "ok"


def _found(report: Report) -> Iterator[Alarm]:
    yield from _processes(report)
    yield from _managers(report)
    yield from _messages(report)
    for key, text in (
        ("accounting_faults", "Completion words were counted wrongly: a bug. Please report it with the log."),
        ("safety_tick_finds", "Wake-ups were lost: a bug. Please report it with the log."),
    ):
        if report.get(key):
            yield Alarm(level="error", code=key.replace("_", "-"), text=text, about="")
    if report.get("messages_given_up"):
        yield Alarm(
            level="warning",
            code="messages-given-up",
            text=f"{report['messages_given_up']} transient messages were given up; the log names each.",
            about="",
        )
    for note in report.get("notes", []):
        yield Alarm(level="warning", code="report", text=str(note), about="")
    if note := report.get("console", {}).get("note"):
        yield Alarm(level="warning", code="console-port", text=f"{note}.", about="console")


def _processes(report: Report) -> Iterator[Alarm]:
    states: dict[str, set[str]] = {}
    for one in report["components"]:
        states.setdefault(one["role"], set()).add(one["state"])
    for role in ("router", "dispatcher"):
        if "active" not in states.get(role, ()):
            yield Alarm(level="error", code="not-served", text=f"There is no {role} in service.", about=role)
        elif not states[role] & {"standby", "parked", "loading"}:
            text = f"The {role} has no standby at the moment."
            yield Alarm(level="warning", code="no-standby", text=text, about=role)
    for role in ("registrar", "streams"):
        state = str(report.get(role, {}).get("state", "switched off"))
        if state not in ("switched off", "active", "loading", "starting"):
            yield Alarm(level="warning", code="not-served", text=f"The {role} does not work: {state}.", about=role)
    if away := report.get("streams", {}).get("without_active"):
        text = f"{away} streams have no active adapter; see feeds."
        yield Alarm(level="error", code="no-adapter", text=text, about="streams")


def _managers(report: Report) -> Iterator[Alarm]:
    serving = {one["index"] for one in report["components"] if one["role"] == "manager" and one["state"] == "active"}
    for one in report["managers"]:
        about = f"manager {one['index']}"
        if one["index"] not in serving:
            yield Alarm(level="error", code="not-served", text=f"There is no {about} in service.", about=about)
        if not one["reading"]:
            text = "Its clients wait, since its queue is at the limit: the router does not keep up."
            yield Alarm(level="warning", code="reading-stopped", text=text, about=about)
        for name in ("up", "down"):
            ring = one[name]
            if ring["capacity"] and ring["bytes"] > FULL * ring["capacity"]:
                text = f"Its ring {name} is {100 * ring['bytes'] // ring['capacity']} % full."
                yield Alarm(level="warning", code="ring-full", text=text, about=about)
        if one["draining"]:
            yield Alarm(level="warning", code="draining", text="It takes no new connections.", about=about)


def _messages(report: Report) -> Iterator[Alarm]:
    messages = report["messages"]
    if not messages.get("enabled"):
        return
    if messages["state"] != "active":
        text = f"Queues and durable topics are away: the message manager is {messages['state']}."
        yield Alarm(level="error", code="no-message-manager", text=text, about="message-manager")
    if messages.get("store_full"):
        text = "There is no room left on stable storage: consume messages or make room."
        yield Alarm(level="error", code="store-full", text=text, about="message-manager")
    if messages.get("blocked"):
        which = "one destination" if messages["blocked"] == 1 else f"{messages['blocked']} destinations"
        text = f"Producers of {which} are held back; see destinations."
        yield Alarm(level="warning", code="blocked", text=text, about="")
    if messages.get("sync") == "memory":
        text = "What is confirmed is in memory only and does not survive the host ([messages] sync)."
        yield Alarm(level="warning", code="sync-memory", text=text, about="message-manager")
