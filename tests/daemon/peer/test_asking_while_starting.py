"""A DHT that is slow, or being started again, while a peer starts."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from atom.base.errors import AddressError
from atom.base.events import EventList
from atom.daemon.console import Silence
from atom.daemon.peer import lookout as lookout_module
from atom.daemon.peer import peer
from atom.daemon.peer.lookout import PATIENCE_S, Lookout
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.p2pd import NodeSettings
from tests.manual_clock import ManualClock


class SlowDht:
    """Each question that is in vain takes so long."""

    def __init__(self, clock: ManualClock, vain: int, seconds: float) -> None:
        self._clock, self._vain, self._seconds = clock, vain, seconds
        self.asked = 0

    async def answer(self) -> str:
        self.asked += 1
        if self.asked > self._vain:
            return "answer"
        self._clock.advance(self._seconds)
        raise DirectoryUnavailable("keep: no answer from the DHT")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lookout(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lookout]:
    monkeypatch.setattr(lookout_module, "ASK_AGAIN_S", 0.0)
    lookout = Lookout(clock, EventList())
    lookout.start()
    yield lookout
    lookout.close()


def test_it_is_asked_again(lookout: Lookout, clock: ManualClock) -> None:
    dht = SlowDht(clock, vain=3, seconds=PATIENCE_S / 4)
    assert lookout.ask(dht.answer) == "answer"
    assert dht.asked == 4


def test_one_that_stays_silent_is_no_fault_of_ours(lookout: Lookout, clock: ManualClock) -> None:
    dht = SlowDht(clock, vain=99, seconds=PATIENCE_S / 4)
    with pytest.raises(AddressError, match="no answer from the DHT") as caught:
        lookout.ask(dht.answer)
    assert dht.asked == 4
    assert caught.value.hint == "try again in a moment"


def test_time_that_is_up_is_said_in_words(lookout: Lookout) -> None:
    async def too_late() -> None:
        raise TimeoutError

    with pytest.raises(AddressError, match="no answer in time"):
        lookout.ask(too_late)


def test_a_node_that_does_not_come_up_in_time_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def too_late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(peer, "open_directory", too_late)
    with ExitStack() as stack, pytest.raises(AddressError, match=r"did not come up: no answer$"):
        peer._look(stack, EventList(), NodeSettings(), "tiny", None, Silence())  # type: ignore[arg-type]
