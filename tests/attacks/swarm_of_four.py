"""A running swarm of four daemons, and checks that it continues through an attack on its DHT."""

import time
from collections.abc import Iterator

import pytest
from swarm_history import all_end_on_one_chain, contribution
from swarm_of_processes import START_S, Swarm, endless, gather, swarm_in

RUN = "four"
SOON_S = 60.0
"""Bound on the time until a round is committed, on a busy machine."""
TIMEOUT_S = 5 * START_S + 4 * SOON_S
"""Bound on a test, beside the time that the attack takes."""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Yield four daemons after a round of all of them."""
    run, names = endless(RUN, grace_s=8, snapshot_rounds=10), ["ann", "bob", "cleo", "dan"]
    with swarm_in(tmp_path_factory.mktemp("of"), run, names, memory="auto") as swarm:
        swarm.slow_lines()
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        everybody = {peer.peer_id for peer in swarm.peers}

        def all_are_in() -> bool:
            return all(p.rounds and {*p.rounds[-1]["members"]} == everybody for p in swarm.peers)

        swarm.until(all_are_in, "a round of all four", START_S)
        yield swarm


def assert_it_continues(swarm: Swarm, seconds: float) -> None:
    """Assert that after `seconds` all see all others, and each still contributes to rounds."""
    ends_at = time.monotonic() + seconds
    swarm.until(lambda: time.monotonic() >= ends_at, "the end of the attack", seconds + 1)
    swarm.until(swarm.all_see_all, "each peer sees all others", SOON_S)
    marks = [len(peer.rounds) for peer in swarm.peers]

    def all_contributed() -> bool:
        return all(
            any(contribution(event, peer.peer_id) for event in peer.rounds[mark:])
            for peer, mark in zip(swarm.peers, marks, strict=True)
        )

    swarm.until(all_contributed, "a round with each of them", SOON_S)


def assert_no_branch(swarm: Swarm) -> None:
    """Assert that no peer went on alone, as if the others were dead."""
    branches = [event for peer in swarm.peers for event in peer.rounds if event["branch"]]
    assert branches == []


def assert_one_chain(swarm: Swarm) -> None:
    """Assert that no peer went on alone, and end the daemons."""
    assert_no_branch(swarm)
    assert all_end_on_one_chain(swarm, RUN) == 0
