"""`connection.stream()` against scripted adapters and a scripted administration: what only the edge can get wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import fairlead
from fairlead import errors
from fairlead.feeds import words
from fairlead.feeds.events import Down, FailedOver, Lost, NoBackup, Resumed
from fairlead.feeds.frames import word_frame
from fairlead.feeds.records import Place
from tests.client.feeds.scripted import BEAT_S, SCHEMA, SOURCE, ScriptedAdapter, ScriptedAdministration

Run = Callable[[Callable[[Any], Awaitable[None]]], None]
NAME = "prices.emea"


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def world(
    server: Any, **options: Any
) -> AsyncIterator[tuple[Any, ScriptedAdministration, list[ScriptedAdapter]]]:
    """A connection, an administration, and two adapters that have made the same 100 messages."""
    adapters = [ScriptedAdapter("east"), ScriptedAdapter("west", "backup")]
    for adapter in adapters:
        adapter.publish(100)
        await adapter.start()
    administration = ScriptedAdministration(server.url, adapters, **options)
    await administration.start()
    connection = await fairlead.connect(server.url, name="reader")
    try:
        yield connection, administration, adapters
    finally:
        await connection.close()
        await administration.stop()
        for adapter in adapters:
            await adapter.stop()


def both(adapters: list[ScriptedAdapter], count: int) -> None:
    for adapter in adapters:
        adapter.publish(count)


async def take(stream: Any, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [message.sequence for message in await stream.batch(count - len(found), timeout=15)]
    return found


def test_the_application_gets_one_stream_and_goes_on_with_the_backup(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, administration, adapters):
            heard: list[Any] = []
            seen: list[int] = []
            async with connection.stream(NAME, start="oldest", on_event=heard.append) as stream:
                async for message in stream:
                    assert message.record() == {"symbol": "ABC", "price": message.sequence}
                    seen.append(message.sequence)
                    if message.sequence == 100:
                        assert (stream.line, stream.state) == ("east", "normal")
                        both(adapters, 50)
                    if message.sequence == 150:
                        await adapters[0].stop()
                        adapters[1].publish(50)
                    if message.sequence == 200:
                        break
                assert seen == list(range(1, 201))
                assert stream.line == "west"
                assert [event.new for event in heard if isinstance(event, FailedOver)] == ["west"]
                await until(lambda: stream.state == "no-backup")
                assert stream.counters["delivered"] == 200
                assert stream.schema == SCHEMA
                await until(lambda: administration.reports and administration.reports[-1].line == "west")
            assert [word.start for word in administration.subscribed] == ["oldest"]
            await until(lambda: not administration.talks)  # the subscription ended with the stream

    run(story)


def test_a_plain_application_sees_only_messages(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters):
            seen = []
            async for message in connection.stream(NAME, start="oldest"):
                seen.append(message.sequence)
                if message.sequence == 100:
                    await adapters[0].stop()
                    adapters[1].publish(10)
                if message.sequence == 110:
                    break
            assert seen == list(range(1, 111))

    run(story)


def test_events_are_in_their_place_for_those_who_ask(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters):
            items: list[Any] = []
            async for item in connection.stream(NAME, start="oldest", events=True):
                items.append(item)
                if getattr(item, "sequence", 0) == 100:
                    await adapters[0].stop()
                    adapters[1].publish(5)
                if getattr(item, "sequence", 0) == 105:
                    break
            switch = next(i for i, item in enumerate(items) if isinstance(item, FailedOver))
            sequences = [getattr(item, "sequence", 0) for item in items]
            assert sequences.index(100) < switch < sequences.index(101)

    run(story)


def test_leaving_the_loop_loses_nothing_and_batches_go_on_behind_it(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, _), connection.stream(NAME, start="oldest") as stream:
            seen = []
            async for message in stream:
                seen.append(message.sequence)
                if len(seen) == 10:
                    break
            assert stream.position == {SOURCE: Place(10)}
            seen += [message.sequence for message in await stream.batch(7)]
            assert stream.position == {SOURCE: Place(17)}
            first = await stream.next(timeout=15)
            seen.append(first.sequence)
            async for message in stream:
                seen.append(message.sequence)
                if message.sequence == 100:
                    break
            assert seen == list(range(1, 101))
            with pytest.raises(errors.RequestTimeout):
                await stream.batch(timeout=0.01)

    run(story)


@pytest.mark.requirement("STR-24", half="scripted adapters")
def test_a_kept_position_is_a_place_to_start_from(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, administration, adapters):
            async with connection.stream(NAME, start="oldest") as stream:
                assert await take(stream, 42) == list(range(1, 43))
                kept = {source: list(place) for source, place in stream.position.items()}  # as JSON gives it back
            both(adapters, 10)
            async with connection.stream(NAME, start=kept) as stream:
                assert await take(stream, 68) == list(range(43, 111))
            assert administration.subscribed[-1].positions == {SOURCE: (42, 1, 1)}

    run(story)


def test_what_is_new_begins_where_the_brokering_says(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters), connection.stream(NAME) as stream:
            await until(lambda: stream.line == "east")
            both(adapters, 3)
            assert await take(stream, 3) == [101, 102, 103]

    run(story)


@pytest.mark.requirement("STR-24", half="scripted adapters")
def test_a_slow_application_holds_the_lines_back_and_loses_nothing_when_the_active_dies(
    run: Run,
) -> None:
    async def story(server: Any) -> None:
        async with (
            world(server) as (connection, _, adapters),
            connection.stream(NAME, start="oldest", buffer=1000, hold_s=0.2) as stream,
        ):
            assert await take(stream, 1) == [1]
            both(adapters, 40_000)
            await until(lambda: [line for line in stream._desk._lines.lines() if line.is_paused])
            waiting = stream.counters["waiting"]
            assert waiting < 20_000  # bounded by what one read can bring
            await asyncio.sleep(5 * BEAT_S)  # longer than an adapter may be silent
            assert stream.counters["waiting"] == waiting
            assert (stream.state, stream.line) == ("normal", "east")  # that we do not read is not its fault
            await adapters[0].stop()
            adapters[1].publish(10)
            assert await take(stream, 40_109) == list(range(2, 40_111))
            assert stream.counters["lost"] == 0
            assert stream.line == "west"

    run(story)


def test_a_program_that_works_without_a_pause_does_not_take_its_adapter_for_dead(run: Run) -> None:
    async def story(server: Any) -> None:
        import time

        async with world(server) as (connection, _, adapters), connection.stream(NAME, start="oldest") as stream:
            await take(stream, 100)
            for _ in range(3):
                time.sleep(6 * BEAT_S)  # noqa: ASYNC251 - that is the point
                both(adapters, 1)
                await take(stream, 1)
            assert (stream.line, stream.counters["failovers"]) == ("east", 0)

    run(story)


@pytest.mark.requirement("STR-30", half="scripted adapters; silence and closing only")
def test_a_frozen_adapter_is_left_after_three_intervals(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters), connection.stream(NAME, start="oldest") as stream:
            await take(stream, 100)
            await until(lambda: stream.state == "normal")
            adapters[0].frozen = True
            adapters[1].publish(10)
            assert await take(stream, 10) == list(range(101, 111))
            assert stream.line == "west"
            adapters[0].publish(10)
            adapters[0].frozen = False
            for line in adapters[0].lines:
                line.catch_up()
            adapters[1].publish(10)
            assert await take(stream, 10) == list(range(111, 121))

    run(story)


@pytest.mark.requirement("STR-38", half="scripted adapters")
def test_with_no_adapter_left_it_says_so_and_goes_on_when_one_is_back(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters):
            heard: list[Any] = []
            async with connection.stream(NAME, start="oldest", on_event=heard.append) as stream:
                await take(stream, 100)
                for adapter in adapters:
                    await adapter.stop()
                await until(lambda: stream.state == "down")
                adapters[1].incarnation += 1
                adapters[1].publish(20)
                await adapters[1].start()
                assert await take(stream, 20) == list(range(101, 121))
                kinds = [type(event) for event in heard]
                assert Down in kinds
                assert Resumed in kinds
                assert Lost not in kinds

    run(story)


@pytest.mark.requirement("STR-4", half="scripted adapters: the state without a backup only")
def test_without_a_backup_it_is_served_and_told(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, administration, adapters):
            west = administration.adapters.pop()
            heard: list[Any] = []
            async with connection.stream(NAME, start="oldest", on_event=heard.append) as stream:
                assert await take(stream, 100) == list(range(1, 101))
                await until(lambda: stream.state == "no-backup")
                administration.adapters.append(west)
                await administration.notice()
                await until(lambda: stream.state == "normal")
                both(adapters, 1)
                assert await take(stream, 1) == [101]
            assert any(isinstance(event, NoBackup) for event in heard)

    run(story)


@pytest.mark.requirement("STR-3", half="scripted administration")
def test_lines_do_not_mind_the_loss_of_the_administration_or_of_the_server(run: Run) -> None:
    async def story(server: Any) -> None:
        async with (
            world(server) as (connection, administration, adapters),
            connection.stream(NAME, start="oldest") as stream,
        ):
            await take(stream, 100)
            await administration.stop()
            for transport in server.transports:
                transport.abort()
            both(adapters, 10)
            assert await take(stream, 10) == list(range(101, 111))
            await adapters[0].stop()
            adapters[1].publish(10)
            assert await take(stream, 10) == list(range(111, 121))
            assert [adapter.accepted for adapter in adapters] == [1, 1]
            again = ScriptedAdministration(server.url, adapters[1:])
            await again.start()
            await until(lambda: again.subscribed)
            assert again.subscribed[0].positions == {SOURCE: (120, 1, 1)}
            assert again.subscribed[0].client == stream.client
            adapters[1].publish(10)
            assert await take(stream, 10) == list(range(121, 131))
            assert adapters[1].accepted == 1  # the line is the same
            await again.stop()

    run(story)


@pytest.mark.requirement("STR-80", half="scripted administration: silent renewal only")
def test_tokens_are_renewed_before_they_run_out(run: Run) -> None:
    async def story(server: Any) -> None:
        async with (
            world(server, token_life_s=1.0) as (connection, administration, adapters),
            connection.stream(NAME, start="oldest") as stream,
        ):
            await take(stream, 100)
            await until(lambda: administration.renewals >= 2)
            assert [adapter.accepted for adapter in adapters] == [1, 1]

    run(story)


def test_a_token_that_an_adapter_has_not_heard_of_yet_is_tried_again(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, administration, adapters):
            adapters[0].tokens = set()
            async with connection.stream(NAME, start="oldest") as stream:
                await until(lambda: len(adapters[0].hellos) >= 2 and administration.renewals)
                adapters[0].tokens = {"token"}
                assert await take(stream, 100) == list(range(1, 101))

    run(story)


def test_nobody_lets_us_in(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, administration, adapters):
            for adapter in adapters:
                adapter.tokens = set()
            with pytest.raises(errors.StreamRefused, match="token is not known"):
                async for _ in connection.stream(NAME, timeout=0.3):
                    pass
            await until(lambda: not administration.talks)  # and nothing goes on behind it
            tried = [len(adapter.hellos) for adapter in adapters]
            await asyncio.sleep(0.3)
            assert [len(adapter.hellos) for adapter in adapters] == tried

    run(story)


@pytest.mark.requirement("STR-82", half="scripted administration")
def test_a_revoked_right_ends_the_stream_with_what_waits_before_it(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, administration, adapters):
            seen: list[int] = []
            with pytest.raises(errors.StreamRevoked, match="not paid"):
                async for message in connection.stream(NAME, start="oldest"):
                    seen.append(message.sequence)
                    if len(seen) == 100:
                        await administration.tell(words.Revoked(why="not paid"))
            assert seen == list(range(1, 101))
            await until(lambda: not adapters[0].lines and not adapters[1].lines)
            both(adapters, 1)
            await asyncio.sleep(0.1)
            assert [adapter.accepted for adapter in adapters] == [1, 1]  # nobody dials again

    run(story)


@pytest.mark.requirement("STR-82", half="scripted adapters")
def test_an_adapter_that_knows_of_the_revocation_first_ends_it_too(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters), connection.stream(NAME, start="oldest") as stream:
            await take(stream, 100)
            adapters[0].tell(words.Refusal(code="stream-revoked", why="not paid"))
            with pytest.raises(errors.StreamRevoked, match="not paid"):
                await stream.batch(timeout=15)
            assert stream.closed

    run(story)


@pytest.mark.parametrize(
    ("code", "expected"), [("not-allowed", errors.NotAllowed), ("bad-parameter", errors.BadParameter)]
)
def test_a_refused_subscription_says_why(run: Run, code: str, expected: type[Exception]) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, administration, _):
            administration.refusal = words.Refusal(code=code, why="alice may not have prices.emea")
            with pytest.raises(expected, match="alice"):
                async with connection.stream(NAME):
                    pass
            assert len(administration.subscribed) == 1

    run(story)


def test_without_administration_it_waits_a_while_and_says_what_to_do(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection:
            with pytest.raises(errors.NoReceiver, match="fairlead streams serve"):
                await connection.stream(NAME, timeout=0.2).start()
            with pytest.raises(errors.NoReceiver, match="fairlead streams serve"):
                await connection.list_streams()

    run(story)


def test_the_list_of_streams(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, _):
            assert await connection.list_streams() == [{"name": "prices.emea"}]

    run(story)


def test_an_adapter_that_talks_nonsense_is_left_for_the_other(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters), connection.stream(NAME, start="oldest") as stream:
            await take(stream, 100)
            for line in adapters[0].lines:
                line.transport.write(b"\x05\x00\x00\x00\x09oops")
            adapters[1].publish(10)
            assert await take(stream, 10) == list(range(101, 111))

    run(story)


def test_words_nobody_asked_for_do_no_harm(run: Run) -> None:
    huge = (1 << 63) - 1
    strange = [
        words.Unavailable(id=huge, why="x" * 4096, first=huge),
        words.SnapshotPart(id=77, positions={SOURCE: (huge, 1, 1)}, bodies=(b"x",) * 1000, is_last=True),
        words.Fetched(id=5, admin=words.Admin(id="x", kind="text"), source="nowhere", place=(huge, 1, 1)),
        words.Beat(epoch=1, incarnation=1, role="active", last=0, positions={"nowhere": (1, 0, 0)}),
        words.Welcome(
            adapter="east", stream=NAME, incarnation=1, epoch=1, role="active", first=1, last=1, heartbeat_s=0.05
        ),
        words.Closing(why="tired"),
    ]

    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters), connection.stream(NAME, start="oldest") as stream:
            assert await take(stream, 100) == list(range(1, 101))
            for count, word in enumerate(strange):
                adapters[0].tell(word)
                both(adapters, 10)
                assert await take(stream, 10) == list(range(101 + 10 * count, 111 + 10 * count))
            assert stream.counters["lost"] == 0

    run(story)


@pytest.mark.parametrize(
    "said",
    [
        words.Beat(epoch=1, incarnation=1, role="active", last=1),
        words.Welcome(
            adapter="mallory", stream=NAME, incarnation=1, epoch=1, role="active", first=1, last=1, heartbeat_s=0.05
        ),
        words.Welcome(
            adapter="east", stream="another", incarnation=1, epoch=1, role="active", first=1, last=1, heartbeat_s=0.05
        ),
    ],
    ids=["no-welcome", "another-adapter", "another-stream"],
)
def test_a_line_begins_with_the_right_welcome(run: Run, said: Any) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters):

            async def strange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read(10)
                writer.write(word_frame(said))
                await reader.read()  # until it is closed
                writer.close()

            await adapters[0].stop()
            stranger = await asyncio.start_server(strange, "127.0.0.1", adapters[0].port)
            async with connection.stream(NAME, start="oldest") as stream:
                assert await take(stream, 100) == list(range(1, 101))
                assert stream.line == "west"
            stranger.close()

    run(story)


@pytest.mark.requirement("STR-74", half="scripted adapters: the snapshot only")
def test_a_snapshot_and_what_follows(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters):
            for adapter in adapters:
                adapter.has_snapshots = True
            async with connection.stream(NAME, start="snapshot") as stream:
                first = await stream.next(timeout=15)
                assert first.snapshot
                assert first.record()["price"] == 100
                both(adapters, 5)
                assert await take(stream, 5) == list(range(101, 106))
                assert stream.position == {SOURCE: Place(105)}

    run(story)


def test_both_lines_at_once_take_the_first_copy(run: Run) -> None:
    async def story(server: Any) -> None:
        async with (
            world(server) as (connection, _, adapters),
            connection.stream(NAME, start="oldest", mode="both") as stream,
        ):
            assert await take(stream, 100) == list(range(1, 101))
            await until(lambda: all(any(line.cursor for line in a.lines) for a in adapters))
            adapters[1].publish(5)  # the backup is first
            assert await take(stream, 5) == list(range(101, 106))
            adapters[0].publish(6)
            assert await take(stream, 1) == [106]

    run(story)


def test_closing_while_somebody_waits_ends_the_iteration(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, _):
            stream = connection.stream(NAME, start="oldest")
            seen: list[int] = []

            async def read() -> None:
                async for message in stream:
                    seen.append(message.sequence)

            task = asyncio.create_task(read())
            await until(lambda: len(seen) == 100)
            await stream.aclose()
            await task
            assert stream.closed
            assert await stream.batch() == []

    run(story)


def test_closing_within_the_loop_hands_out_nothing_more(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, _), connection.stream(NAME, start="oldest") as stream:
            seen = []
            async for message in stream:
                seen.append(message.sequence)
                if len(seen) == 10:
                    await stream.aclose()
            assert seen == list(range(1, 11))

    run(story)


def test_closing_the_connection_closes_its_streams(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (connection, _, adapters):
            stream = connection.stream(NAME, start="oldest")
            await stream.start()
            starting = connection.stream(NAME)
            task = asyncio.create_task(starting.start())
            await asyncio.sleep(0)
            await connection.close()
            assert stream.closed
            assert starting.closed
            await asyncio.wait([task])
            task.exception()
            await until(lambda: not adapters[0].lines)

    run(story)


def test_a_connection_that_is_gone_for_good_leaves_the_lines_until_they_fail(run: Run) -> None:
    async def story(server: Any) -> None:
        async with world(server) as (_connection, _administration, adapters):
            lone = await fairlead.connect(server.url, reconnect=False)
            async with lone.stream(NAME, start="oldest") as stream:
                await take(stream, 100)
                for transport in server.transports:
                    transport.abort()
                await until(lambda: lone.closed)
                both(adapters, 10)
                assert await take(stream, 10) == list(range(101, 111))
                for adapter in adapters:
                    await adapter.stop()
                with pytest.raises(errors.ConnectionLost):
                    await stream.batch(timeout=15)

    run(story)


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"mode": "all"}, "mode"),
        ({"gaps": "skip"}, "gaps"),
        ({"start": "yesterday"}, "start"),
        ({"start": {}}, "position"),
        ({"start": {"S": "x"}}, "place"),
        ({"start": {"S": (1, 2, 3, 4)}}, "place"),
        ({"start": {"S": (-1,)}}, "place"),
        ({"hold_s": 0}, "hold_s"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_options_that_cannot_be(run: Run, options: dict[str, Any], about: str) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection:
            with pytest.raises(errors.BadParameter, match=about):
                connection.stream(NAME, **options)

    run(story)


def test_a_name_is_not_endless(run: Run) -> None:
    async def story(server: Any) -> None:
        async with fairlead.connect(server.url) as connection:
            for name in ("", "x" * 256):
                with pytest.raises(errors.BadParameter, match="name"):
                    connection.stream(name)

    run(story)
