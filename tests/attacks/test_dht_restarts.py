"""Attack: a record that ends the DHT process whenever it is read, so that it restarts for ever."""

import asyncio
import errno
from collections.abc import Sequence
from typing import Any

import pytest

from atom.swarm.dht import client as client_module
from atom.swarm.dht.client import HEALTHY_SECONDS, DhtClient
from atom.swarm.dht.p2pd import NodeSettings
from tests.event_list import EventList
from tests.manual_clock import ManualClock

STARTS_SECONDS = 3.0


def pauses_of(
    lives: Sequence[float | Exception], patch: pytest.MonkeyPatch, events: EventList
) -> list[float]:
    """Return the pauses before each restart of a node that lives for these times, in seconds, or
    fails to start."""
    clock, pauses, starts = ManualClock(), list[float](), iter(lives)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    async def opened(client: Any, _: NodeSettings) -> None:
        clock.advance(STARTS_SECONDS)
        life_s = next(starts, None)
        if isinstance(life_s, Exception):
            raise life_s
        client._reading = asyncio.create_task(live(life_s))

    async def live(life_s: float | None) -> None:
        if life_s is None:
            await asyncio.Event().wait()
        else:
            clock.advance(life_s)

    async def run() -> None:
        client = DhtClient(NodeSettings(), events, clock=clock, sleep=sleep)
        await client.start()
        async with asyncio.timeout(60.0):
            while len(pauses) < len(lives):
                await asyncio.sleep(0.0)
        await client.close()

    patch.setattr(DhtClient, "_open", opened)
    patch.setattr(client_module, "CONTACTS_EVERY_SECONDS", 60.0)
    asyncio.run(run())
    return pauses


FULL = OSError(errno.EMFILE, "Too many open files")
NO_THREAD = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("lives", "pauses"),
    [
        ([1.0] * 9, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]),
        # One that was healthy for minutes restarts without delay.
        ([1.0, 1.0, HEALTHY_SECONDS - 1.0, HEALTHY_SECONDS, 1.0], [0.5, 1.0, 2.0, 0.5, 1.0]),
        ([1.0, FULL, ValueError("no object"), NO_THREAD], [0.5, 1.0, 2.0, 4.0]),
    ],
)
def test_a_node_that_ends_soon_or_does_not_start_pauses_twice_as_long(
    monkeypatch: pytest.MonkeyPatch, lives: Sequence[float | Exception], pauses: list[float]
) -> None:
    assert 120.0 <= HEALTHY_SECONDS <= 900.0
    events = EventList()
    assert pauses_of(lives, monkeypatch, events) == pauses
    failures = [each["detail"] for each in events.events if each["event"] == "dht-restart-failed"]
    problems = [life for life in lives if isinstance(life, Exception)]
    for failure, problem in zip(failures, problems, strict=True):
        assert str(problem) in failure
