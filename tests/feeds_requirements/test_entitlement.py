"""Section 4.10: who may have a stream, who may be an adapter of it, and what is left when the right is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import FairleadError, NotAllowed, StreamRevoked
from fairlead.feeds import words
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users
from fairlead.testing.feed_adapter import FeedAdapter
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Line, Reader, order, subscribed

PASSWORD = "of-all-of-them"
LIFE_S = 1.0
ADMIN = ("feed", PASSWORD)
READER, SECOND, STRANGER = (("reader", PASSWORD), ("second", PASSWORD), ("stranger", PASSWORD))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeedWorld]:
    file = tmp_path_factory.mktemp("rights") / "users.toml"
    write(file, "reader", "second")
    settings = {"security.users": str(file), "streams.token_life_s": LIFE_S}
    with FeedWorld("ab", settings=settings, login=ADMIN) as made:
        made.users = file  # type: ignore[attr-defined]
        yield made


def write(file: Path, *readers: str) -> None:
    word = hash_password(PASSWORD)
    everybody = {
        "feed": User(hash=word, publish=["stream.prices"], subscribe=["stream.prices"], admin=["stream.prices"]),
        "stranger": User(hash=word, publish=["stream.others"], subscribe=["stream.others"], admin=[]),
    }
    for name in ("reader", "second"):
        everybody[name] = User(hash=word, subscribe=["stream.prices"] if name in readers else [], publish=[], admin=[])
    users.write(file, Users(everybody))


@pytest.mark.requirement("STR-80")
async def test_without_the_right_a_subscription_is_refused_with_a_reason(guarded: FeedWorld) -> None:
    with pytest.raises(NotAllowed, match=r"stream\.prices"):
        async with Reader(guarded, login=STRANGER):
            pass
    async with subscribed(guarded, login=STRANGER) as (_, answer):
        assert isinstance(answer, words.Refusal)
        assert answer.why


@pytest.mark.requirement("STR-80")
async def test_forged_and_foreign_tokens_are_refused_by_adapters(guarded: FeedWorld) -> None:
    async def refused(adapter: str, stream: str, token: str) -> None:
        async with Line(guarded.adapters[adapter].address) as line:
            line.say(words.Hello(stream=stream, token=token, client="evil"))
            assert isinstance(await line.word(words.Refusal, words.Welcome), words.Refusal), token
            assert await line.frame() is None

    async with subscribed(guarded, login=READER) as (_, answer):
        tried = [refused(offer.adapter, "others", offer.token) for offer in answer.lines]
        for offer in answer.lines:
            for token in ("forged", offer.token[:-1] + "x", offer.token.swapcase()):
                tried.append(refused(offer.adapter, "prices", token))
        await asyncio.gather(*tried)


@pytest.mark.requirement("STR-80", scaled="a life of 1 s")
async def test_tokens_are_renewed_silently_and_expire_otherwise(guarded: FeedWorld) -> None:
    async with subscribed(guarded, login=SECOND) as (_, answer):
        offer = answer.lines[0]
    async with Reader(guarded, login=READER) as reader:
        guarded.source.run(500)
        await asyncio.sleep(2.5 * LIFE_S)
        await reader.reached(guarded.source.sent)
        guarded.source.pause()
        await reader.reached(guarded.source.sent)
        reader.check(guarded.source.sent)
        assert not reader.events
    async with Line(guarded.adapters[offer.adapter].address) as line:
        line.say(words.Hello(stream="prices", token=offer.token, client="second"))
        assert isinstance(await line.word(words.Refusal, words.Welcome), words.Refusal)


@pytest.mark.requirement("STR-80", "STR-5")
async def test_an_adapter_without_the_right_is_refused(guarded: FeedWorld, tmp_path: Path) -> None:
    settings = {**guarded.adapters["a"].settings}
    settings["feed"] = {**settings["feed"], "name": "evil", "preference": 1}
    settings["administration"] = {"url": guarded.server.url, "user": "stranger", "password": PASSWORD}
    settings["listen"] = {"address": "127.0.0.1:0"}
    settings["source"] = [guarded.source.add("evil").table(id="exchange")]
    evil = FeedAdapter("evil", tmp_path / "evil", settings)
    evil.start()
    try:
        await guarded.until(
            lambda: not evil.runs or "stream.prices" in evil.output() or "not-allowed" in evil.output(), "it is told"
        )
        assert "evil" not in {row["name"] for row in (await guarded.facts())["adapters"]}
    finally:
        evil.stop()


@pytest.mark.requirement("STR-80")
async def test_orders_need_the_right_to_give_them(guarded: FeedWorld) -> None:
    epoch = await guarded.epoch()
    for do in ("switch", "revoke", "forget"):
        answer = await order(guarded, do, READER, user="second", adapter="b")
        assert isinstance(answer, words.Refusal), (do, answer)
    assert await guarded.epoch() == epoch


@pytest.mark.requirement("STR-82")
async def test_a_revoked_client_gets_nothing_more_even_after_a_failover(guarded: FeedWorld) -> None:
    await guarded.restore()
    async with Reader(guarded, login=READER) as bad, Reader(guarded, login=SECOND) as good:
        guarded.source.run(1000)
        await bad.reached(guarded.source.sent + 100)
        answer = await order(guarded, "revoke", ADMIN, user="reader")
        assert isinstance(answer, words.StreamFacts), answer
        await bad.until(lambda: bad.ended, "the stream ends", 5.0)
        assert isinstance(bad.ended, StreamRevoked)
        had = len(bad.messages)
        guarded.adapters[await guarded.active()].kill()
        await good.told("FailedOver")
        await good.reached(guarded.source.sent + 300)
        with pytest.raises(FairleadError):
            async with Reader(guarded, login=READER, timeout=2.0):
                pass
        guarded.source.pause()
        await good.reached(guarded.source.sent)
        good.check(guarded.source.sent)
        assert len(bad.messages) == had
    answer = await order(guarded, "permit", ADMIN, user="reader")
    assert isinstance(answer, words.StreamFacts), answer


@pytest.mark.requirement("STR-82")
async def test_a_right_taken_from_the_users_file_ends_the_stream(guarded: FeedWorld) -> None:
    await guarded.restore()
    async with Reader(guarded, login=SECOND) as reader:
        guarded.source.send(50)
        await reader.reached(guarded.source.sent)
        write(guarded.users, "reader")  # type: ignore[attr-defined]
        guarded.server.ask("reload")
        await reader.until(lambda: reader.ended, "the stream ends")
        assert isinstance(reader.ended, StreamRevoked)
