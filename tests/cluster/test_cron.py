"""When schedules fall due."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.cron import EVERY_MS_MIN, check, next_after
from fairlead.errors import BadParameter


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("expression", "after", "due"),
    [
        ("* * * * *", "2024-05-01 10:00:00", "2024-05-01 10:01:00"),
        ("* * * * *", "2024-05-01 10:00:59.999", "2024-05-01 10:01:00"),
        ("*/15 * * * *", "2024-05-01 10:46:00", "2024-05-01 11:00:00"),
        ("30 9 * * MON-FRI", "2024-05-03 09:30:00", "2024-05-06 09:30:00"),
        ("0 0 29 2 *", "2024-03-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 L * *", "2023-02-01 00:00:00", "2023-02-28 00:00:00"),
        ("0 12 13 * FRI", "2024-05-01 00:00:00", "2024-05-03 12:00:00"),  # one or the other, as cron has it
        ("5 0 12 1 1 *", "2024-05-01 00:00:00", "2025-01-01 12:00:05"),
        ("  0   0 * * *  ", "2024-05-01 00:00:00", "2024-05-02 00:00:00"),
        ("@hourly", "2024-05-01 10:00:00", "2024-05-01 11:00:00"),
        ("@Daily", "2024-05-01 10:00:00", "2024-05-02 00:00:00"),
        ("@weekly", "2024-05-01 10:00:00", "2024-05-05 00:00:00"),
        ("@monthly", "2024-05-01 10:00:00", "2024-06-01 00:00:00"),
        ("@yearly", "2024-05-01 10:00:00", "2025-01-01 00:00:00"),
        ("@every 10s", "2024-05-01 10:00:01.500", "2024-05-01 10:00:11.500"),
        (" @every 1h30m", "2024-05-01 10:00:00", "2024-05-01 11:30:00"),
        ("@every 250ms", "2024-05-01 10:00:00", "2024-05-01 10:00:00.250"),
        ("@every 2d", "2024-05-01 10:00:00", "2024-05-03 10:00:00"),
    ],
)
def test_the_next_time(expression: str, after: str, due: str) -> None:
    assert next_after(expression, ms(after)) == ms(due)


def test_time_zones_and_their_summer() -> None:
    berlin = "Europe/Berlin"
    assert next_after("0 9 * * *", ms("2024-01-10 00:00:00"), berlin) == ms("2024-01-10 08:00:00")
    assert next_after("0 9 * * *", ms("2024-07-10 00:00:00"), berlin) == ms("2024-07-10 07:00:00")
    # On 31 March 2024 there was no half past two in Berlin; on 27 October there were two.
    assert next_after("30 2 * * *", ms("2024-03-30 12:00:00"), berlin) == ms("2024-03-31 01:00:00")
    first = next_after("30 2 * * *", ms("2024-10-26 12:00:00"), berlin)
    assert first == ms("2024-10-27 00:30:00")
    assert next_after("30 2 * * *", first, berlin) == ms("2024-10-28 01:30:00")


@pytest.mark.parametrize(
    ("expression", "column", "why"),
    [
        ("60 * * * *", 1, "'60' is not a minute"),
        ("* 24 * * *", 3, "'24' is not a hour"),
        ("* *  x * *", 6, "'x' is not a day of month"),
        ("0 0 * 13 *", 7, "'13' is not a month"),
        ("0 0 * * 8", 9, "'8' is not a day of week"),
        ("0 0 * * 1#1/2", 9, "is not a day of week"),
        ("61 0 0 * * *", 1, "is not a second"),
        ("*/0 * * * *", 1, "is not a minute"),
        ("* * * *", 8, "4 fields"),
        ("* * * * * * *", 13, "7 fields"),
        ("", 1, "0 fields"),
        ("0 0 30 2 *", 5, "no day '30' in these months"),
        ("@reboot", 1, "@hourly"),
        ("@every", 7, "belongs here"),
        ("@every 10", 8, "belongs here"),
        ("@every 5s x", 10, "belongs here"),
        ("@every 1ms", 8, f"every {EVERY_MS_MIN} ms"),
        ("@every 99999d", 8, "ten years"),
    ],
)
def test_a_mistake_is_pointed_at(expression: str, column: int, why: str) -> None:
    with pytest.raises(BadParameter) as caught:
        check(expression)
    said, shown, caret = str(caught.value).splitlines()
    assert f"column {column}" in said
    assert why in said
    assert shown == "  " + expression
    assert caret.index("^") - 2 == column - 1


@pytest.mark.parametrize("zone", ["No/Where", "../etc/passwd", "", "\x00", "x" * 5000])
def test_a_time_zone_that_does_not_exist(zone: str) -> None:
    with pytest.raises(BadParameter, match="no time zone"):
        next_after("* * * * *", 0, zone)


def test_never_again() -> None:
    assert next_after("* * * * *", 10**18) is None
    assert next_after("* * * * *", ms("9999-12-31 23:59:59")) is None
    assert next_after("0 0 */29 2 1#5", ms("2024-01-01 00:00:00")) is None


def test_what_is_too_long_is_not_read() -> None:
    with pytest.raises(BadParameter, match="longer"):
        check("* " * 1000)


@given(st.text(max_size=30) | st.lists(st.sampled_from([*"*/-,#L0159 ", "MON", "LW"]), max_size=20).map("".join))
def test_any_text_is_a_schedule_or_refused(expression: str) -> None:
    now = ms("2024-01-01 00:00:00")
    try:
        due = next_after(expression, now)
    except BadParameter:
        return
    assert due is None or due > now
