"""Liars are asked once, the unlucky a few times."""

import pytest

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.donor_queue import DonorQueue
from atom.swarm.transport.contacts import Unreachable


def test_in_the_order_given_each_once() -> None:
    queue = DonorQueue(["a", "b", "a"], tries=3, pause_s=1.0)
    assert queue.first(5) == ["a", "b"]
    assert [queue.take(0.0), queue.take(0.0), queue.take(0.0)] == ["a", "b", None]


@pytest.mark.parametrize("reason", [Reason.HASH_MISMATCH, Reason.MALFORMED, Reason.NOT_FOUND])
def test_a_final_word(reason: Reason) -> None:
    queue = DonorQueue(["a"], tries=3, pause_s=1.0)
    assert queue.take(0.0) == "a"
    assert not queue.failed("a", PeerRefused(reason), 0.0)
    assert len(queue) == 0
    assert queue.last.reason is reason


@pytest.mark.parametrize("error", [TimeoutError("silent"), Unreachable("no byte for too long")])
def test_who_was_silent_from_the_beginning_is_not_waited_for_again(error: OSError) -> None:
    queue = DonorQueue(["a"], tries=3, pause_s=1.0)
    assert queue.take(0.0) == "a"
    assert not queue.failed("a", error, 0.0)
    assert len(queue) == 0


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), TimeoutError("silent"), PeerRefused(Reason.BUSY)]
)
def test_a_bad_moment_is_waited_out(error: PeerRefused | OSError) -> None:
    queue = DonorQueue(["a"], tries=3, pause_s=1.0)
    assert queue.take(0.0) == "a"
    queue.helped("a")
    assert queue.failed("a", error, 10.0)
    assert queue.take(10.9) is None
    assert queue.take(11.0) == "a"
    assert queue.failed("a", error, 20.0)
    assert queue.take(21.9) is None, "twice as long"
    assert queue.take(22.0) == "a"
    assert not queue.failed("a", error, 30.0)


def test_a_piece_makes_up_for_failures() -> None:
    queue = DonorQueue(["a"], tries=2, pause_s=0.0)
    for now in range(5):
        assert queue.take(now) == "a"
        queue.helped("a")
        assert queue.failed("a", ConnectionError(), now)
