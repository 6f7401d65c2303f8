"""The lookout's end: its rhythms end when they are told to, whatever comes at that moment."""

import asyncio
from typing import cast

from atom.base.events import EventList
from atom.daemon.peer.lookout import Lookout
from atom.swarm.dht.directory import Directory
from atom.swarm.records.lease import Lease
from tests.manual_clock import ManualClock

LEASE = cast(Lease, "what this directory does not look at")
LOOP_STEPS = 20
"""More than a rhythm takes to the moment from which it waits."""


class QuickDirectory:
    """Answers at once."""

    def __init__(self) -> None:
        self.is_closed = False

    async def publish_lease(self, lease: Lease) -> bool:
        return True

    async def read_leases(self) -> dict[str, Lease]:
        return {}

    async def close(self) -> None:
        self.is_closed = True


async def end_with_news(lookout: Lookout) -> int:
    """How many of its rhythms go on, although they were ended in the moment of some news."""
    for _ in range(LOOP_STEPS):
        await asyncio.sleep(0)
    lookout.nudge()
    await asyncio.sleep(0)  # it is heard, and who waits for it has not been waked yet
    for rhythm in lookout._tasks:
        rhythm.cancel()
    _, going_on = await asyncio.wait(lookout._tasks, timeout=5.0)
    return len(going_on)


def test_news_at_the_moment_of_leaving_keep_nobody() -> None:
    directory, events = QuickDirectory(), EventList()
    lookout = Lookout(ManualClock(), events)
    lookout.start()
    lookout.attend(cast(Directory, directory))
    lookout.watch(lambda: LEASE, lambda leases: None, lambda failure: None, lambda: 60.0)
    try:
        assert lookout.call(end_with_news(lookout)) == 0
    finally:
        lookout.close()
    assert directory.is_closed
    assert events.events == []
