"""How often one coordinator is listened to at one head."""

from atom.training.round.calls import FREE, Calls

ATTEMPT_S, TURN_S = 16.0, 10.0


class Caller:
    """It calls, and we say when we listen."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.now = 0.0

    def calls_once(self) -> float:
        """As soon as we listen. Returns how long it had to wait."""
        began = self.now
        while not self.calls.allow(self.now, ATTEMPT_S, TURN_S):
            self.now += 1.0
        self.calls.made(self.now)
        return self.now - began


def test_the_first_calls_are_free() -> None:
    caller = Caller()
    assert [caller.calls_once() for _ in range(FREE)] == [0.0] * FREE


def test_after_them_others_have_their_turns_longer_and_longer() -> None:
    caller = Caller()
    waits = [caller.calls_once() for _ in range(FREE + 4)][FREE:]
    once = ATTEMPT_S + TURN_S
    assert waits == [once, 2 * once, 4 * once, 4 * once]


def test_who_calls_off_waits_in_proportion_to_what_it_took() -> None:
    caller = Caller()
    for _ in range(FREE):
        caller.calls_once()
    caller.now += 2.0
    caller.calls.called_off(caller.now)
    assert caller.calls_once() == TURN_S, "2 s of them are over"
    caller.now += ATTEMPT_S + 100.0
    caller.calls.called_off(caller.now)
    assert caller.calls_once() == 0.0, "late, but it took no more than an attempt takes"


def test_a_call_that_was_called_off_says_nothing_of_the_next() -> None:
    caller = Caller()
    for _ in range(FREE):
        caller.calls_once()
    caller.calls.called_off(caller.now)
    assert caller.calls_once() == TURN_S
    assert caller.calls_once() == 2 * (ATTEMPT_S + TURN_S)
