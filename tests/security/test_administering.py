"""No command of administration without a right: every one there is stands in the table, and the table is kept."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.security.administering import COMMANDS, judge
from fairlead.security.quotas import Quota
from fairlead.security.rules import ACTIONS, Rights, Rules
from tests.cluster.test_admin import Manager, manager, order

__all__ = ["manager"]  # a fixture

RULES = Rules(
    {
        "root": Rights(admin=("_ADMIN",)),
        "some": Rights(publish=(), subscribe=(), browse=("orders.>",), admin=("orders.>",)),
        "blind": Rights(browse=(), admin=("orders.>",)),
        "reader": Rights(publish=(), subscribe=(), browse=("orders.>",)),
        "plain": Rights(),
        "red": Rights(tenant="red", admin=("_ADMIN",)),
        "rosa": Rights(tenant="red"),
    },
    tenants={"red": Quota()},
)


def asked(command: str, value: str = "orders.eu") -> dict[str, Any]:
    return {"command": command, "args": dict.fromkeys(COMMANDS[command].of, value), "reply": ""}


def test_every_command_there_is_stands_in_the_table(manager: Manager) -> None:
    offered = {one["name"] for one in order(manager, "commands")["commands"]}
    assert offered <= COMMANDS.keys()
    for name, asks in COMMANDS.items():
        offer = manager.core.admin._offers.get(name)
        if offer is not None:
            assert asks.of.keys() <= set(offer.arguments.__struct_fields__), name


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_command_is_for_who_has_the_right(command: str) -> None:
    asks = COMMANDS[command]
    assert judge(RULES, "root", "", asked(command)) == ""
    assert bool(judge(RULES, "some", "", asked(command))) == (not asks.of)
    assert judge(RULES, "some", "", asked(command, "prices"))
    assert judge(RULES, "some", "", {"command": command, "args": {}})
    assert judge(RULES, "plain", "", asked(command))
    assert judge(RULES, "reader", "", asked(command))
    assert bool(judge(RULES, "blind", "", asked(command))) == (asks.reads or not asks.of)
    assert judge(RULES, "rosa", "red", asked(command))
    request = asked(command)
    assert bool(judge(RULES, "red", "red", request)) == (not asks.of)
    assert all(value == "_T.red.orders.eu" for value in request["args"].values())


def test_a_command_nobody_thought_of_is_for_whole_administrators() -> None:
    request = {"command": "explode", "args": {"destination": "orders.eu"}}
    assert judge(RULES, "root", "", dict(request)) == ""
    assert judge(RULES, "some", "", dict(request))
    assert judge(RULES, "red", "red", dict(request))


@pytest.mark.parametrize("args", [None, [], "x", {"destination": 7}, {"destination": ["orders.eu"]}])
def test_arguments_that_are_none_get_nobody_past(args: Any) -> None:
    assert judge(RULES, "some", "", {"command": "purge", "args": args})


def test_answers_go_where_the_user_may_publish_and_dead_messages_where_it_may_send() -> None:
    assert "answers" in judge(RULES, "some", "", asked("purge") | {"reply": "prices"})
    assert judge(RULES, "some", "", asked("purge") | {"reply": "admin-reply.00"}) == ""
    trap = {"command": "create", "args": {"destination": "orders.x", "parameters": {"dead_queue": "prices"}}}
    assert "dead" in judge(RULES, "some", "", trap)
    mapped = {"command": "create", "args": {"destination": "x", "parameters": {"dead_queue": "_T.blue.x"}}}
    judge(RULES, "red", "red", mapped)
    assert mapped["args"]["parameters"]["dead_queue"] == "_T.red._T.blue.x"  # type: ignore[index]


def test_the_actions_of_the_table_are_actions() -> None:
    assert {right for asks in COMMANDS.values() for rights in asks.of.values() for right in rights} <= set(ACTIONS)
