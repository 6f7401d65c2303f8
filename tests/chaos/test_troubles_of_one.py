"""One daemon and its machine: a disk without room, a state directory that is taken away."""

from pathlib import Path

import pytest
from swarm_of_processes import START_S, Peer, endless, swarm_in

from atom.cli.shell.failures import ExitCode

FULL_AT_BYTES = 300_000
"""Room for tokens and results, not for a snapshot."""


@pytest.mark.timeout(6 * START_S)
def test_without_room_it_trains_on_and_without_its_directory_it_ends(tmp_path: Path) -> None:
    with swarm_in(tmp_path, endless("alone", 2, 2), ["ada"]) as swarm:
        peer, after = swarm.founder, Peer("ada", swarm.root)
        swarm.peers.append(after)
        peer.start("start", str(swarm.run_file))
        peer.limit_files(FULL_AT_BYTES)
        swarm.until(lambda: peer.last_round >= 5, "rounds without a snapshot", START_S)
        disk = peer.ask("info")["disk"]
        assert (disk["snapshots"], list(disk["paused"])) == ([], ["snapshots"])
        peer.limit_files(None)
        swarm.until(lambda: peer.events("disk-room"), "a snapshot again", START_S)
        assert peer.ask("info")["disk"]["paused"] == {}

        peer.state.rename(swarm.root / "taken away")
        after.start("start", str(swarm.run_file))
        assert peer.wait(START_S) == ExitCode.STORAGE
        assert f"error: the state directory {peer.state} was deleted or moved" in peer.errors()
        swarm.until(lambda: after.last_round >= 2, "rounds of another peer in its place", START_S)
        assert "Traceback" not in after.errors()
