"""A real daemon with a slow line: after a few rings it owns no part, and nobody diverges.
`make chaos` runs it, as root; not in the suite."""

from pathlib import Path

import pytest
from home_networks import swarm_at_home
from swarm_history import check_peers, contribution, say
from swarm_of_processes import START_S, Peer, Swarm, endless, gather

from atom.cli.shell.failures import ExitCode

NAMES = ("ada", "bea", "cyd", "dan")
RUN = "slow-line"
LINE = "200mbit"
BOUND_S = 300.0
"""Its speed towards two others has to be seen first; they are dealt anew by every round."""
ROUNDS = 3


def counted_without_a_part(swarm: Swarm, slow: Peer) -> int:
    """Rounds with work of its own whose exchange was by parts, none of them its own."""
    spared = {
        event["round"] + 1
        for peer in swarm.peers
        for event in peer.events("exchange-chosen")
        if dict(zip(event["members"], event["shares"], strict=False)).get(slow.peer_id) == 0
    }
    return sum(e["round"] in spared and bool(contribution(e, slow.peer_id)) for e in slow.rounds)


@pytest.mark.timeout(4 * START_S + BOUND_S)
def test_a_slow_line_owns_no_part_and_counts(tmp_path: Path) -> None:
    """An average of 102 MB: more than what send buffers hide."""
    run = endless(RUN, 4.0, 50).replace("model_dim = 32", "model_dim = 1024")
    with swarm_at_home(tmp_path, run, NAMES, [False] * len(NAMES), "auto") as (swarm, places):
        gather(swarm)
        slow = swarm.peers[-1]
        places[-1].slow_down(LINE)
        swarm.resume()
        took_s = swarm.until(
            lambda: counted_without_a_part(swarm, slow) >= ROUNDS, "rounds without a part", BOUND_S
        )
        for peer in swarm.peers:
            peer.control.leave(60.0)
        endings = {
            peer.wait(START_S) for peer in swarm.peers
        }  # the last to leave may find no company
        assert endings <= {ExitCode.OK, ExitCode.LEFT_LATE}, swarm.story()
        check_peers(swarm.peers, RUN)
        say(f"{ROUNDS} of {len(slow.rounds)} rounds without a part, after {took_s:.0f} s")
