"""A joiner that is interrupted while it fetches its first state. `make chaos` runs it alone.

The donor's upload is held so low that the fetch takes a while. After Ctrl-C, and after SIGKILL, the
next life goes on with what has arrived.
"""

import os
import signal
from pathlib import Path

import pytest
from swarm_of_processes import START_S, Peer, Swarm, endless, swarm_in

from atom.cli.shell.failures import ExitCode

STATE_BYTES = 38_750_208
CHUNK_BYTES = 4 << 20
AT_ONCE_S = 15.0
RUN = endless("slow", 2.0, 2)
for small, large in {
    "model_dim = 32": "model_dim = 256",
    "layers = 2": "layers = 4",
    "heads = 2": "heads = 4",
    "global_sequences = 96": "global_sequences = 16",
}.items():
    RUN = RUN.replace(small, large)


def landed_chunks(peer: Peer) -> int:
    """Those that hold anything but the zeros that their room was reserved with."""
    files = [path.read_bytes() for path in peer.state.glob("downloads/*/arena-*")]
    return sum(
        bool(raw[start : start + CHUNK_BYTES].strip(b"\0"))
        for raw in files
        for start in range(0, len(raw), CHUNK_BYTES)
    )


def interrupt_in_the_middle(swarm: Swarm, number: int) -> int:
    """Starts the joiner and sends the signal after two more chunks. Returns its exit code."""
    (bob,), before = swarm.joiners, landed_chunks(swarm.joiners[0])
    bob.start("join", swarm.address)
    swarm.until(lambda: landed_chunks(bob) >= before + 2, "two chunks", START_S)
    os.kill(bob.pid, number)
    return bob.wait(AT_ONCE_S)


@pytest.mark.timeout(5 * START_S)
def test_it_ends_at_once_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    with swarm_in(tmp_path, RUN, ["ada", "bob"], "auto") as swarm:
        ada, bob = swarm.peers
        ada.configure('upload = "8 Mbit/s"')
        swarm.found()
        swarm.until(lambda: ada.last_round >= 9, "rounds and snapshots", START_S)
        ada.control.pause()
        swarm.until(lambda: ada.control.info()["state"] == "paused", "the pause", START_S)
        swarm.address = ada.control.info()["join_address"]
        assert interrupt_in_the_middle(swarm, signal.SIGINT) == 0, bob.story()
        assert bob.events("left")[-1]["ending"] == "left"
        assert "what has arrived is kept for the next start" in bob.errors()
        assert interrupt_in_the_middle(swarm, signal.SIGKILL) == -signal.SIGKILL
        kept_bytes = landed_chunks(bob) * CHUNK_BYTES
        ada.change("network.upload", '"1 Gbit/s"')
        bob.start("join", swarm.address)
        swarm.until(lambda: bob.events("caught-up"), "the state", START_S)
        (state,) = [event for event in bob.events("fetched") if event["what"] == "state"]
        assert state["reused_bytes"] + state["bytes"] == STATE_BYTES
        assert 0 <= kept_bytes - state["reused_bytes"] < 3 * CHUNK_BYTES, (
            "an arena's last is shorter"
        )
        assert state["reused_bytes"] >= 3 * CHUNK_BYTES
        assert "fetching the state: " in bob.errors()
        ada.control.resume()
        swarm.until(lambda: bob.rounds, "a round of both", START_S)
        bob.control.leave(60.0)
        # the donor closes a round with any pass of its own: what was counted here may be too late
        assert bob.wait() in (ExitCode.OK, ExitCode.LEFT_LATE), swarm.story()
