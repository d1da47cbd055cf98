"""W3C trace context: what is read, what is refused, and how it lies in a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire import frames, headers, kinds, properties
from fairlead.wire.codec import Message
from fairlead.wire.trace_context import TraceContext, header_section, property_section

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_it_is_read_and_said_again_as_it_was() -> None:
    found = TraceContext.parse(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert found == TraceContext(TRACE, SPAN, True, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert found.headers() == {"traceparent": PARENT, "tracestate": found.state}
    assert TraceContext.of(found.headers()) == found
    assert TraceContext.parse(PARENT.encode()) == TraceContext(TRACE, SPAN)
    assert TraceContext(TRACE, SPAN, sampled=False).headers() == {"traceparent": f"00-{TRACE}-{SPAN}-00"}


@pytest.mark.parametrize(
    "parent",
    [
        "", "00", PARENT[:-1], f"{PARENT}0", f"{PARENT}-more", f" {PARENT}", PARENT.upper(), PARENT.replace("-", "_"),
        f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-0g",
        "x" * 65_000, f"01-{TRACE}-{SPAN}-01-{'x' * 65_000}", b"\xff" * 55, "\u0664" * 55, 7, 1.5, True, None, b"",
    ],
)  # fmt: skip
def test_what_is_no_trace_context_is_absent(parent: object) -> None:
    assert TraceContext.parse(parent) is None
    assert TraceContext.of({"traceparent": parent}) is None


def test_a_version_to_come_may_say_more() -> None:
    assert TraceContext.parse(f"01-{TRACE}-{SPAN}-01-what-comes-later") == TraceContext(TRACE, SPAN)
    assert TraceContext.parse(f"cc-{TRACE}-{SPAN}-03") == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "state",
    [
        "x" * 513,
        "a=" + "b" * 600,
        ",".join(f"k{n}=v" for n in range(33)),
        "no-value",
        "A=upper",
        "a=\n",
        "ä=1",
        5,
        b"\xff",
    ],
)
def test_a_state_that_is_wrong_or_too_long_is_left_out(state: object) -> None:
    assert TraceContext.parse(PARENT, state) == TraceContext(TRACE, SPAN)


@given(st.text(max_size=300) | st.binary(max_size=300), st.text(max_size=600))
def test_whatever_comes_is_taken_or_refused_and_bounded(parent: object, state: str) -> None:
    found = TraceContext.parse(parent, state)
    assert found is None or len(found.state) <= 512


@pytest.mark.parametrize("state", ["", "congo=t61rcWkgMzE"])
def test_the_sections_are_those_of_the_codecs(state: str) -> None:
    given = TraceContext(TRACE, SPAN, True, state).headers()
    assert header_section(PARENT, state) == headers.encode_headers(given.items())
    assert property_section(PARENT, state) == properties.encode_properties(given)


@pytest.mark.parametrize("make", [Message, frames.Message], ids=["chosen", "plain"])
def test_a_message_knows_its_trace(make: type[Message]) -> None:
    message = make(kinds.KIND_PUBLISH, 0, 0, 0, 1, "prices", header_section(PARENT), b"body")
    assert message.trace == TraceContext(TRACE, SPAN)
    assert message.span_facts() == ("prices", {"messaging.message.body.size": 4})
    assert make(kinds.KIND_PUBLISH, 0, 0, 0, 1, "prices", b"", b"").trace is None
