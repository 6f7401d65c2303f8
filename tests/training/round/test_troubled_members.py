"""Swarms with a member that spoils every exchange it is in: the others commit, within the bound."""

from collections import Counter
from dataclasses import replace

import pytest
from simulated_ring import Trouble
from simulation import Swarm, begun

from atom.swarm.chain.messages import CommitNotice

MOST_SPOILT = 2
"""Exchanges of a round, until one troubled member is excluded."""


def spoilt_rings(swarm: Swarm) -> Counter[tuple[str, int]]:
    """How many rings broke, by their coordinator, if it is honest, and the round."""
    return Counter(
        (process.seat.name, report.fields["round"])
        for process in swarm.living
        for report in process.told
        if report.kind == "exchange-judged" and process.peer_id not in swarm.rings.troubled
    )


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("peers", [3, 5])
def test_rounds_go_on_with_one_troubled_member(trouble: Trouble, peers: int) -> None:
    swarm = begun(7, peers, pass_seconds=(0.5,))
    liar, *honest = swarm.living
    swarm.rings.troubled[liar.peer_id] = trouble
    swarm.run(120.0)
    assert min(process.chain.head.round for process in honest) >= 10, swarm.story(60)
    assert max(spoilt_rings(swarm).values()) <= MOST_SPOILT, swarm.story(200)
    last = [commit.value.contributions for commit in honest[0].chain.commits[-5:]]
    members = [part.peer_id for parts in last if len(parts) > 1 for part in parts]
    assert liar.peer_id not in members
    assert swarm.witness.branches == 0


def test_an_offender_is_in_no_ring_while_it_is_aside() -> None:
    swarm = begun(3, 4, pass_seconds=(0.5,))
    liar, *honest = swarm.living
    forged = replace(liar.chain.commits[-1], votes=())
    value = replace(forged.value, parent=liar.chain.head.digest, round=liar.chain.head.round + 1)
    for process in honest:
        for _ in range(4):  # excluded for 5, 10, 20, then 40 s
            process.receive(liar.me, CommitNotice(replace(forged, value=value)))
        assert process.offenders.held(process.now()) == {liar.peer_id}
    before = honest[0].chain.head.round
    swarm.run(30.0)
    rounds = [c for c in honest[0].chain.commits if c.value.round > before + 1]
    led = [c.value for c in rounds if c.ballot.coordinator != liar.peer_id]
    assert len(led) >= 2, swarm.story(60)
    assert all(part.peer_id != liar.peer_id for value in led for part in value.contributions)
    swarm.run(60.0)
    last = honest[0].chain.commits[-1].value
    assert liar.peer_id in {part.peer_id for part in last.contributions}, "not for ever"
