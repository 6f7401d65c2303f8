"""How other peers reach a peer, as its lease shows it."""

from types import SimpleNamespace
from typing import Any

import pytest

from atom.daemon.peer.reach import Status
from atom.swarm.records.lease import HowReached, Reached

YES, NO, UNKNOWN = Reached.YES, Reached.NO, Reached.UNKNOWN


@pytest.mark.parametrize(
    ("reached", "mapped", "steady", "listens", "reach"),
    [
        (YES, False, False, True, HowReached.OPEN),
        (YES, True, False, True, HowReached.MAPPED),
        (YES, False, False, False, HowReached.OPEN),
        (NO, True, False, True, HowReached.CALLED),
        (NO, False, False, False, HowReached.CALLED),
        (NO, False, True, True, HowReached.PUNCHED),
        (UNKNOWN, True, True, True, HowReached.UNKNOWN),
    ],
)
def test_a_peer_says_how_others_reach_it(
    reached: Reached, mapped: bool, steady: bool, listens: bool, reach: HowReached
) -> None:
    transport = SimpleNamespace(listens=listens, address=("0.0.0.0", 31338), is_steady=steady)
    ports = SimpleNamespace(outside=lambda inside: object() if mapped else None)
    parts: Any = SimpleNamespace(
        box=SimpleNamespace(ports=ports),
        training=SimpleNamespace(executor=SimpleNamespace(transport=transport)),
        outreach=SimpleNamespace(reached=reached),
    )
    status = Status(parts.box, parts, parts.training, parts.outreach, parts)
    assert status.reach is reach
