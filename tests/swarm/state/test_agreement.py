"""The majority is heard, and nobody's silence is waited out."""

import threading

import pytest

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.agreement import agree


def test_the_silent_do_not_hold_up_a_majority() -> None:
    ended = threading.Event()

    def ask(donor: str, stop: threading.Event) -> bytes:
        if donor == "silent":
            assert stop.wait(20.0)
            ended.set()
        return b"same"

    answers = agree(["silent", "a", "b"], ask, threading.Event())
    assert answers == {"a": b"same", "b": b"same"}
    assert ended.is_set()


def test_without_a_majority_all_are_heard() -> None:
    def ask(donor: str, stop: threading.Event) -> bytes:
        if donor == "refuses":
            raise PeerRefused(Reason.NOT_FOUND)
        if donor == "gone":
            raise ConnectionError("gone")
        return donor.encode()

    answers = agree(["refuses", "gone", "a"], ask, threading.Event())
    assert answers["a"] == b"a"
    assert isinstance(answers["refuses"], PeerRefused)
    assert isinstance(answers["gone"], ConnectionError)


def test_what_nobody_foresaw_is_raised_and_not_waited_for() -> None:
    def ask(donor: str, stop: threading.Event) -> bytes:
        if donor == "odd":
            raise OverflowError("a port of thirty digits")
        stop.wait(20.0)
        return b""

    with pytest.raises(OverflowError, match="thirty digits"):
        agree(["odd", "silent"], ask, threading.Event())


def test_whoever_stops_us_gets_what_is_there() -> None:
    stop = threading.Event()

    def ask(donor: str, ended: threading.Event) -> bytes:
        stop.set()
        assert ended.wait(20.0)
        raise InterruptedError("stopped")

    assert agree(["a"], ask, stop) == {}
    assert agree([], ask, threading.Event()) == {}
