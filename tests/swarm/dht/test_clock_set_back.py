"""A DHT node begins anew when the clock on the wall is set back."""

import asyncio

import pytest

from atom.swarm.dht import process
from atom.swarm.dht.process import until_clock_is_set_back


def test_only_a_step_back_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLOCK_EVERY_SECONDS", 0.0)
    ahead_s = iter([50.0, 50.0, 49.5, 49.0, 900.0, 899.5, 898.0, 898.0])
    asyncio.run(until_clock_is_set_back(wall=lambda: next(ahead_s), steady=lambda: 0.0))
    assert list(ahead_s) == [898.0]
