"""Who waits for a password check: sources take turns, guesses are few, and nothing is forgotten or grows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.security.waiting import Question, WaitingRoom


def question(user: str, password: str, source: str = "here") -> Question:
    return Question(f"{user}\0{password}".encode(), user, password, source)


def test_one_source_does_not_keep_others_waiting() -> None:
    room = WaitingRoom()
    for number in range(100):
        assert room.ask((number, 0), question(f"user-{number}", "x", "there"))
    assert room.ask((100, 0), question("alice", "right", "here"))
    found = [room.next() for _ in range(2)]
    assert [one.source for one in found if one] == ["there", "here"]


def test_a_source_cannot_take_all_places() -> None:
    room = WaitingRoom(waiting_max=10, source_max=5)
    taken = [room.ask((number, 0), question(f"user-{number}", "x", "there")) for number in range(8)]
    assert taken == [True] * 5 + [False] * 3
    assert room.ask((9, 0), question("alice", "right", "here"))


def test_passwords_sent_at_once_are_no_more_than_a_few_guesses() -> None:
    room = WaitingRoom(guesses_max=3)
    asked = [room.ask((number, 0), question("dora", str(number))) for number in range(50)]
    assert sum(asked) == 3
    assert room.ask((50, 0), question("dora", "right", "elsewhere"))  # who comes from there is not concerned
    assert room.ask((51, 0), question("bob", "right"))


def test_the_same_password_again_is_no_guess_and_gets_the_same_answer() -> None:
    room = WaitingRoom(guesses_max=1)
    assert all(room.ask((number, 0), question("alice", "right")) for number in range(1000))
    assert len(room) == 1
    asked = room.next()
    assert asked is not None
    assert room.next() is None
    assert room.done(asked) == [(number, 0) for number in range(1000)]
    assert len(room) == 0


def test_a_question_shows_no_password() -> None:
    assert "secret" not in repr(question("alice", "secret"))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=60))
def test_everybody_who_was_let_in_is_answered_once(steps: list[tuple[int, int, int, bool]]) -> None:
    room = WaitingRoom(waiting_max=6, source_max=4, guesses_max=2)
    let_in: list[tuple[int, int]] = []
    answered: list[tuple[int, int]] = []
    for number, (user, password, source, is_checked) in enumerate(steps):
        if room.ask((number, 0), question(str(user), str(password), str(source))):
            let_in.append((number, 0))
        assert len(room) <= 6
        if is_checked and (found := room.next()) is not None:
            answered += room.done(found)
    while (found := room.next()) is not None:
        answered += room.done(found)
    assert sorted(answered) == let_in
    assert len(room) == 0
    assert all(not value for value in (room._lines, room._guesses, room._sources))
