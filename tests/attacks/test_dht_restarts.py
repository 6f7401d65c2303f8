"""Attack: a record that ends the DHT process whenever it is read, so that it restarts for ever."""

import asyncio
from typing import Any

import pytest

from atom.swarm.dht import client as client_module
from atom.swarm.dht.client import HEALTHY_SECONDS, LONGEST_PAUSE_SECONDS, DhtClient
from atom.swarm.dht.p2pd import NodeSettings
from tests.manual_clock import ManualClock

STARTS_SECONDS = 3.0


def pauses_of(lives_s: list[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses before each restart of a node that lives for these times, in seconds."""
    clock, pauses = ManualClock(), list[float]()
    lives = iter(lives_s)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    async def opened(client: Any, _: NodeSettings) -> None:
        clock.advance(STARTS_SECONDS)
        life_s = next(lives, None)
        client._reading = asyncio.create_task(live(life_s))

    async def live(life_s: float | None) -> None:
        if life_s is None:
            await asyncio.Event().wait()
        else:
            clock.advance(life_s)

    async def run() -> None:
        client = DhtClient(NodeSettings(), clock=clock, sleep=sleep)
        await client.start()
        async with asyncio.timeout(60.0):
            while len(pauses) < len(lives_s):
                await asyncio.sleep(0.0)
        await client.close()

    with monkeypatch.context() as patch:
        patch.setattr(DhtClient, "_open", opened)
        patch.setattr(client_module, "CONTACTS_EVERY_SECONDS", 60.0)
        asyncio.run(run())
    return pauses


def test_a_node_that_ends_soon_after_each_start_pauses_twice_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = pauses_of([1.0] * 9, monkeypatch)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_a_node_that_was_healthy_for_minutes_restarts_without_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 120.0 <= HEALTHY_SECONDS <= 900.0
    nearly = HEALTHY_SECONDS - 1.0
    pauses = pauses_of([1.0, 1.0, nearly, HEALTHY_SECONDS, 1.0], monkeypatch)
    assert pauses == [0.5, 1.0, 2.0, 0.5, 1.0]
