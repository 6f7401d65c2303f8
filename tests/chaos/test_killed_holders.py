"""Real daemons that each hold parts of the optimizer's state: holders are killed, and come back."""

import os
import signal
from pathlib import Path

import pytest
from swarm_history import check_peers, read_chain
from swarm_of_processes import IN_PARTS, START_S, Peer, Swarm, endless, gather, swarm_in

from atom.daemon.peer.lifecycle import LEAVE_S
from atom.swarm.chain.commit import Commit
from atom.training.round.holders import parts_in

pytestmark = pytest.mark.timeout(6 * START_S)

POWER_CUTS = 2
RUN, NAMES = "parts", ("red", "green", "blue")
TEXT = endless(RUN, START_S, 3, rule=IN_PARTS, model_dim=384, sequences=60)


def newest(peer: Peer) -> Commit:
    return read_chain(peer.state, RUN)[0][-1]


def is_dealt(peer: Peer) -> bool:
    """Each part has two holders, and nobody all of them."""
    held = {c.peer_id: parts_in(c.holds) for c in newest(peer).value.contributions}
    parts = frozenset[int]().union(*held.values())
    counts = [sum(part in each for each in held.values()) for part in parts]
    return set(counts) == {2} and all(each < parts for each in held.values())


def test_killed_holders_are_replaced_and_all_of_them_come_back_from_their_disks(
    tmp_path: Path,
) -> None:
    with swarm_in(tmp_path, TEXT, NAMES, memory="auto") as swarm:
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        red, victim, _ = swarm.peers
        swarm.until(lambda: red.last_round >= 2 and is_dealt(red), "parts dealt", START_S)
        assert not victim.kill()
        mark = red.last_round
        swarm.until(lambda: red.last_round >= mark + 3, "rounds without it", START_S)
        rest = [c for c in read_chain(red.state, RUN)[0] if c.value.round > mark]
        assert not any(c.value.renewed or c.survivors for c in rest), swarm.story()
        victim.start()
        swarm.until(lambda: holds(red, victim), "the victim holds parts again", START_S)
        for _ in range(POWER_CUTS):
            cut_power(swarm)
        for peer in swarm.peers:
            peer.ask("leave", LEAVE_S)
        assert [peer.wait(LEAVE_S) for peer in swarm.peers] == [0] * len(NAMES), swarm.story()
        check_peers(swarm.peers, RUN)
        assert not any(c.value.renewed for c in read_chain(red.state, RUN)[0])


def cut_power(swarm: Swarm) -> None:
    """Of all, as soon as one of them has committed. They go on."""
    mark = max(newest(peer).value.round for peer in swarm.peers)
    chains = [peer.state / "chain.bin" for peer in swarm.peers]
    before = [path.stat().st_size for path in chains]

    def one_committed() -> bool:
        return [path.stat().st_size for path in chains] != before

    swarm.until(one_committed, "another round", START_S, poll_s=0.001)
    for peer in swarm.peers:
        os.kill(peer.pid, signal.SIGKILL)
    for peer in swarm.peers:
        peer.wait()
    swarm.founder.start()
    swarm.until(swarm.founder.info, "the founder, by whose address others join", START_S)
    for peer in swarm.joiners:
        peer.start()

    def all_went_on() -> bool:
        return all(newest(peer).value.round >= mark + 4 for peer in swarm.peers)

    swarm.until(all_went_on, "rounds after a power cut", START_S)


def holds(peer: Peer, other: Peer) -> bool:
    given = newest(peer).value.contributions
    return any(c.holds for c in given if c.peer_id == other.peer_id)
