"""The table of operations: routing, its description, what may be asked, and how problems are told."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from fairlead.console import queries
from fairlead.console.edge.app import AllHandlers
from fairlead.console.openapi import document
from fairlead.console.operations import OPERATIONS, Routes, WrongMethod
from fairlead.console.problems import STATUS, TITLES, Denied, problem_of, status_of
from fairlead.errors import CODES, FairleadError, NoDestination, NoMessageManager, Refused

ROUTES = Routes()


def test_every_operation_has_a_handler_and_a_name_of_its_own() -> None:
    names = [one.name for one in OPERATIONS]
    assert len(set(names)) == len(names)
    of_the_app = {"login", "logout", "live"}
    for name in set(names) - of_the_app:
        assert inspect.iscoroutinefunction(getattr(AllHandlers, name)), name


def test_what_changes_something_is_for_somebody() -> None:
    for one in OPERATIONS:
        assert one.right != "anybody" or not one.changes or one.name in ("login", "logout")


def test_a_piece_of_a_path_is_decoded_after_it_was_found() -> None:
    found = ROUTES.find("GET", "/api/v1/destinations/a%2Fb/messages/7")
    assert (found.operation.name, found.values) == ("message", {"name": "a/b", "order": "7"})
    assert ROUTES.find("GET", "/api/v1/destinations/%C3%A9").values == {"name": "é"}


@pytest.mark.parametrize(
    "path", ["", "/", "/api/v1", "/api/v1/destinations/", "/api/v1/overview/", "//api/v1/overview"]
)
def test_what_is_not_there_is_not_found(path: str) -> None:
    with pytest.raises(Denied) as caught:
        ROUTES.find("GET", path)
    assert caught.value.status == 404


def test_another_method_is_told_which_there_are() -> None:
    with pytest.raises(WrongMethod) as caught:
        ROUTES.find("PATCH", "/api/v1/destinations/x")
    assert caught.value.allowed == ["DELETE", "GET", "POST"]
    with pytest.raises(Denied) as refused:
        ROUTES.find("GET", "/api/v1/destinations/%FF")
    assert refused.value.status == 400


def test_the_description_has_every_operation_and_every_reference_leads_somewhere() -> None:
    found = document("1")
    described = {(path, method) for path, methods in found["paths"].items() for method in methods}
    assert described == {(one.path, one.method.lower()) for one in OPERATIONS}
    text = msgspec.json.encode(found).decode()
    for name in {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in found["components"]["schemas"]


def test_queries_are_checked() -> None:
    asked = queries.read(queries.MessagesQuery, [("as", "hex"), ("limit", "3")])
    assert (asked.shown, asked.limit) == ("hex", 3)
    for pairs in (
        [("limit", "0")],
        [("limit", "x")],
        [("as", "xml")],
        [("unknown", "1")],
        [("limit", "1"), ("limit", "2")],
    ):
        with pytest.raises(Denied) as caught:
            queries.read(queries.MessagesQuery, pairs)
        assert caught.value.status == 422


def test_every_error_is_a_problem_with_its_code() -> None:
    problem = problem_of(NoDestination("There is no queue 'x'."))
    assert (problem.status, problem.code, problem.detail) == (404, "no-destination", "There is no queue 'x'.")
    assert status_of(NoMessageManager("away")) == 503
    assert status_of(Refused("no")) == 409
    assert status_of(FairleadError("oh", code="internal")) == 500
    assert problem_of(FairleadError("", code="timeout")).detail
    assert STATUS.keys() <= CODES.keys()
    assert {*STATUS.values(), 404, 405, 413, 415, 421, 503} <= TITLES.keys()
