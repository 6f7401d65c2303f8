"""A real daemon with a slow line: after a few rings it owns no part, and nobody diverges.
`make chaos` runs it, as root; not in the suite."""

import re
from pathlib import Path

import pytest
from home_networks import homes
from swarm_history import check_peers
from swarm_of_processes import START_S, Peer, Swarm, endless, gather, swarm_in
from test_faults import say

from atom.cli.shell.exit_codes import ExitCode

NAMES = ("ada", "bea", "cyd", "dan")
RUN = "slow-line"
LINE = "200mbit"
BOUND_S = 300.0
"""Its speed towards two others has to be seen first; they are dealt anew by every round."""
ROUNDS = 3


def larger(run_text: str) -> str:
    """An average of 102 MB: more than what send buffers hide."""
    wide = run_text.replace("model_dim = 32", "model_dim = 1024")
    assert wide != run_text
    return wide


def all_on_device(peer_text: str, host: str) -> str:
    """The peer file of somebody at home, whose device holds the whole model."""
    at_home = peer_text.replace("127.0.0.1", host)
    return re.sub(r'^memory = ".*"$', 'memory = "auto"', at_home, flags=re.MULTILINE)


def rounds_without_a_part(swarm: Swarm, slow: Peer) -> list[int]:
    """Rounds whose exchange was by parts, none of them the slow peer's."""
    return [
        event["round"] + 1
        for peer in swarm.peers
        for event in peer.events("exchange-chosen")
        if dict(zip(event["members"], event["shares"], strict=False)).get(slow.peer_id) == 0
    ]


def counted_rounds(slow: Peer) -> set[int]:
    """Committed with work of its own."""
    return {
        event["round"]
        for event in slow.rounds
        for member, sequences in zip(event["members"], event["contributed"], strict=True)
        if member == slow.peer_id and sequences
    }


@pytest.mark.timeout(4 * START_S + BOUND_S)
def test_a_slow_line_owns_no_part_and_counts(tmp_path: Path) -> None:
    with (
        homes([False] * len(NAMES)) as places,
        swarm_in(tmp_path, larger(endless(RUN, 4.0, 50)), NAMES) as swarm,
    ):
        for peer, home in zip(swarm.peers, places, strict=True):
            peer.namespace = home.namespace
            path = swarm.root / f"{peer.name}.toml"
            path.write_text(all_on_device(path.read_text(encoding="utf-8"), home.host))
        listen = f"{places[0].host}:31337"
        swarm.founder.start("start", str(swarm.run_file), "--listen", listen)
        gather([swarm])
        slow = swarm.peers[-1]
        places[-1].slow_down(LINE)
        swarm.resume()

        def spared() -> int:
            return len(counted_rounds(slow).intersection(rounds_without_a_part(swarm, slow)))

        took_s = swarm.until(lambda: spared() >= ROUNDS, "rounds without a part", BOUND_S)
        for peer in swarm.peers:
            peer.control.leave(60.0)
        endings = {peer.wait() for peer in swarm.peers}  # the last to leave may find no company
        assert endings <= {ExitCode.OK, ExitCode.LEFT_LATE}, swarm.story()
        check_peers(swarm.peers, RUN)
        say(f"{spared()} of {len(slow.rounds)} rounds without a part, after {took_s:.0f} s")
