"""Everything the description of the admin API allows, and some of what it does not, asked of a real server.

What is refused has to be refused with a problem; nothing may be a fault of the server; every answer has to be what the
description says. Names and selectors have grammars that the description cannot express, so what it allows may still be
refused: that one check is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fairlead.console.operations import OPERATIONS, Operation
from fairlead.testing import Server

pytestmark = [pytest.mark.processes]

HEADERS = {"X-Fairlead-CSRF": "1"}
# A stream does not end, and an update restarts what the other tests ask.
ASKED = [one for one in OPERATIONS if one.name not in ("live", "update")]
FEW = settings(max_examples=5, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=400, derandomize=False)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=1, console=True) as one:
        yield one


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    import schemathesis

    return schemathesis.openapi.from_url(f"{server.console_url}/api/openapi.json")


def ask_everything(api: Any, one: Operation, how: settings) -> None:
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    left_out = [CHECKS.get_one("positive_data_acceptance")]

    def ask(strategy: Any) -> None:
        @how
        @given(strategy)
        def check(case: Any) -> None:
            case.call_and_validate(headers=HEADERS, excluded_checks=left_out, timeout=30)

        check()

    operation = api[one.path][one.method]
    ask(operation.as_strategy())
    if one.variables or one.body or one.query.__struct_fields__:
        ask(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


@pytest.mark.parametrize("one", ASKED, ids=lambda one: one.name)
def test_the_api_is_as_it_is_described(api: Any, one: Operation) -> None:
    ask_everything(api, one, FEW)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("one", ASKED, ids=lambda one: one.name)
def test_the_api_is_as_it_is_described_whatever_is_asked(api: Any, one: Operation) -> None:
    ask_everything(api, one, MANY)


def test_the_server_is_still_well_afterwards(server: Server) -> None:
    report = server.status()
    assert report["console"]["state"] == "active"
    assert report["messages"]["state"] == "active"
    assert "Traceback" not in (server.data / "log" / "fairlead.log").read_text()
