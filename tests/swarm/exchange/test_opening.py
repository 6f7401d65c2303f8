"""The connections of an exchange: opened in time and all of them, or none, and one is named."""

import pytest
from threaded_ring import SOON, Make, Swarm

from atom.base.reasons import Reason
from atom.swarm.exchange.allreduce import ExchangeBroken
from atom.swarm.exchange.reduction import hear_broken
from atom.swarm.stream.frames import Patience, Purpose


def not_opened(swarm: Swarm) -> tuple[str | None, Reason]:
    """By the first member."""
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open(0, 0.5)
    return failure.value.suspect, failure.value.reason


@pytest.mark.parametrize("shares", [(), (1, 1, 1), (0, 1, 0)])
def test_an_absent_neighbour_is_named(swarm_of: Make, shares: tuple[int, ...]) -> None:
    swarm = swarm_of(3, shares)
    if not shares:
        assert not_opened(swarm) == (swarm.order[2], Reason.TIMEOUT)
    swarm.transports[1].close()
    assert not_opened(swarm) == (swarm.order[1], Reason.RING_BROKEN)


@pytest.mark.parametrize("trouble", ["late", "unreachable"])
def test_an_exchange_that_cannot_be_opened_leaves_no_connection_and_says_who_is_missing(
    swarm_of: Make, trouble: str
) -> None:
    swarm = swarm_of(3, (1, 1, 1))
    here, there, missing = swarm.transports
    tag = swarm.terms(0).tag + bytes([1])
    arrived = there.connect(here.peer_id, Purpose.RING, tag)
    if trouble == "unreachable":
        here.set_addresses(missing.peer_id, [])
    with pytest.raises(ExchangeBroken):
        swarm.open(0, 0.5)
    told = [there.accept_ring(here.peer_id, tag, SOON)]
    told += [arrived] if trouble == "late" else []  # or nobody has asked for it yet
    for channel in told:
        assert hear_broken(channel, swarm.order).suspect == missing.peer_id
        with pytest.raises(ConnectionError):
            channel.recv_header(0, Patience(SOON))
