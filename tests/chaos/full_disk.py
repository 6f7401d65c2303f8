"""Real daemons whose disk is full: they train on, say so, and go on writing when there is room. One
that breaks is read-only from then on: they train on as well.
`make chaos` runs it, as root; not in the suite.

A vote needs no disk: who starts again is another incarnation, and so no voter.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from small_disk import SmallDisk, breaking_disk, small_disk
from swarm_history import check_peers, read_chain
from swarm_of_processes import START_S, Event, Peer, Swarm, atom_command, endless, gather, swarm_in
from test_faults import at_one_head, contributes, contribution, say

from atom.base.errors import ControlError
from atom.cli.shell.exit_codes import ExitCode
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import list_snapshots

RUN = "full"
EVERYTHING = {"snapshots", "results", "chain"}
BOUND_S = 60.0
ROUNDS = 6


@contextlib.contextmanager
def one_with_a_small_disk(
    root: Path, names: Sequence[str], on_it: str, snapshot_rounds: int
) -> Iterator[tuple[Swarm, SmallDisk]]:
    run = endless(RUN, 4.0, snapshot_rounds)
    with small_disk(root / on_it) as disk, swarm_in(root, run, names) as swarm:
        yield swarm, disk


def info(peer: Peer) -> Mapping[str, Any]:
    """What it says of itself; nothing while it starts."""
    assert peer.exit_code is None, peer.story()
    with contextlib.suppress(ControlError):
        return dict(peer.control.info())
    return {}


def not_written(peer: Peer) -> Mapping[str, str]:
    disk = info(peer).get("disk")
    return {} if disk is None else disk["paused"]


def is_well(peer: Peer) -> bool:
    """Whether all of it is on disk, as it says."""
    disk = info(peer).get("disk")
    return disk is not None and not disk["paused"]


def fill_up(swarm: Swarm, disk: SmallDisk, peer: Peer) -> float:
    """Until nothing of it is written any more: what the daemon removes, somebody else takes."""

    def nothing_is_written() -> bool:
        disk.fill()
        return not_written(peer).keys() >= EVERYTHING

    return swarm.until(nothing_is_written, "a full disk, and its word for it", BOUND_S)


def rounds_with(peer: Peer, seen: Sequence[Event]) -> int:
    """Of the rounds that another one has seen, those with work of this one."""
    return sum(bool(contribution(event, peer.peer_id)) for event in seen)


def trains_on(swarm: Swarm, disk: SmallDisk, peer: Peer, witness: Peer) -> float:
    """Until it had a part in some more rounds, with the disk full all the time; the longest wait
    for a round."""
    mark = len(witness.rounds)

    def it_did() -> bool:
        assert peer.exit_code is None, peer.story()
        disk.fill()
        return rounds_with(peer, witness.rounds[mark:]) >= ROUNDS

    swarm.until(it_did, "rounds with its part", START_S)
    times = [event["time"] for event in witness.rounds[mark - 1 :]]
    return max(later - sooner for sooner, later in pairwise(times))


def check_what_is_there(peer: Peer) -> tuple[int, list[bytes]]:
    """Chain and snapshots on its disk are sound, whatever was half-written. The round of the newest
    snapshot; the chain's heads."""
    _, heads = read_chain(peer.state, RUN)
    snapshots = list_snapshots(peer.state / "snapshots")
    assert snapshots, "the only one must never go"
    for snapshot in snapshots:
        assert state_digest(snapshot.load()) == snapshot.state_digest
    return snapshots[0].round, [head.digest for head in heads]


def check_words(swarm: Swarm, peer: Peer) -> None:
    """On the terminal, and in `atom info`."""
    assert "no room for a snapshot of " in peer.errors()
    assert "the disk is full; tried again later (free some " in peer.errors()
    assert "Traceback" not in peer.errors()
    page = atom_command(swarm.root, "info", "--state", str(peer.state)).stdout
    assert "disk paused" in page
    assert "the disk is full" in page


def check_refused(peer: Peer) -> None:
    """It did not begin, and says why."""
    assert peer.wait(START_S) == ExitCode.STORAGE, peer.story()
    assert "the disk is full" in peer.errors()
    assert "hint:" in peer.errors()
    assert "Traceback" not in peer.errors()


@pytest.mark.timeout(6 * START_S)
def test_one_of_three(tmp_path: Path) -> None:
    with one_with_a_small_disk(tmp_path, ("ada", "bob", "cyd"), "bob", 5) as (swarm, disk):
        ada, bob, _ = swarm.peers
        swarm.found()
        gather([swarm])
        swarm.resume()
        swarm.until(lambda: contributes(swarm, bob, 3), "rounds of all", BOUND_S)
        filled = fill_up(swarm, disk, bob)
        longest = trains_on(swarm, disk, bob, ada)
        check_words(swarm, bob)
        disk.make_room()
        well = swarm.until(lambda: is_well(bob), "everything on disk", BOUND_S)
        assert {event["what"] for event in bob.events("disk-room")} >= EVERYTHING
        assert "the disk has room again: snapshots written" in bob.errors()

        fill_up(swarm, disk, bob)
        assert bob.kill() == []
        _, heads = check_what_is_there(bob)
        theirs = [head.digest for head in read_chain(ada.state, RUN)[1]]
        assert theirs[: len(heads)] == heads
        lives, mark = bob.lives, len(bob.rounds)
        bob.start()
        swarm.until(lambda: bob.lives > lives and not_written(bob), "no room", START_S)
        disk.make_room()
        again = swarm.until(lambda: contributes(swarm, bob, mark), "its part", START_S)
        swarm.until(lambda: is_well(bob), "everything on disk", BOUND_S)
        assert not bob.events("snapshot-damaged")
        all_end_on_one_chain(swarm)
        say(
            f"full after {filled:.1f} s, longest wait for a round {longest:.1f} s; written again"
            f" after {well:.1f} s; killed, started while full, and given room: {again:.1f} s"
        )


@pytest.mark.timeout(4 * START_S)
def test_the_only_voter(tmp_path: Path) -> None:
    with one_with_a_small_disk(tmp_path, ("ada",), "ada", 2) as (swarm, disk):
        ada = swarm.founder
        disk.fill()
        swarm.found()
        check_refused(ada)
        disk.make_room()
        ada.start()
        swarm.until(lambda: ada.last_round >= 5, "rounds", START_S)
        fill_up(swarm, disk, ada)
        full_at = info(ada)["round"]
        swarm.until(lambda: info(ada)["round"] >= full_at + ROUNDS, "rounds", BOUND_S)
        check_words(swarm, ada)
        assert ada.kill() == []
        sound, heads = check_what_is_there(ada)
        disk.make_room()
        lives = ada.lives
        ada.start()
        swarm.until(lambda: ada.lives > lives, "its next life", START_S)
        begins_at = ada.events("started")[-1]["round"]
        assert sound <= begins_at < len(heads), "what was on disk is there"
        swarm.until(lambda: ada.last_round >= full_at + ROUNDS and is_well(ada), "rounds", BOUND_S)
        say(f"full at round {full_at}; killed there, it goes on from round {begins_at}")


@pytest.mark.timeout(4 * START_S)
def test_a_joiner_without_room_for_the_state(tmp_path: Path) -> None:
    with one_with_a_small_disk(tmp_path, ("ada", "bob"), "bob", 2) as (swarm, disk):
        ada, bob = swarm.peers
        swarm.found()
        swarm.until(lambda: ada.last_round >= 5, "rounds and snapshots", START_S)
        address = ada.control.info()["join_address"]
        disk.fill()
        bob.start("join", address)
        check_refused(bob)
        disk.make_room()
        state_bytes = max(s.path.stat().st_size for s in list_snapshots(ada.state / "snapshots"))
        tokens_bytes = sum(path.stat().st_size for path in (ada.state / "tokens").iterdir())
        disk.fill(leave_bytes=tokens_bytes + state_bytes // 2)
        bob.start()
        swarm.until(lambda: "downloads" in not_written(bob), "no room", START_S)
        assert "cannot reserve " in bob.errors()
        disk.make_room()
        swarm.until(lambda: contributes(swarm, bob, 0), "its part", START_S)
        swarm.until(lambda: is_well(bob), "everything on disk", BOUND_S)
        all_end_on_one_chain(swarm)
        say("it waited for room for the state, and joined")


@pytest.mark.timeout(4 * START_S)
def test_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    run = endless(RUN, 4.0, 2)
    with breaking_disk(tmp_path / "bob") as disk, swarm_in(tmp_path, run, ("ada", "bob")) as swarm:
        ada, bob = swarm.peers
        swarm.found()
        gather([swarm])
        swarm.resume()
        swarm.until(lambda: contributes(swarm, bob, 3), "rounds of all", BOUND_S)
        disk.turn_read_only()
        told = swarm.until(lambda: not_written(bob).keys() >= EVERYTHING, "its word", BOUND_S)
        mark = len(ada.rounds)
        swarm.until(lambda: rounds_with(bob, ada.rounds[mark:]) >= ROUNDS, "its part", START_S)
        assert "Read-only file system; tried again later (" in bob.errors()
        assert "a restart would end this, cannot write" in bob.control.pause()
        bob.control.leave(60.0)
        assert bob.wait(BOUND_S) == ExitCode.OK, swarm.story()
        assert "Traceback" not in bob.errors()
        check_what_is_there(bob)
        say(f"read-only, and all of it told after {told:.1f} s; it trained on, and left")


def all_end_on_one_chain(swarm: Swarm) -> None:
    for peer in swarm.peers:
        peer.control.pause()
    swarm.until(lambda: at_one_head(swarm), "everybody at one head", BOUND_S)
    for peer in swarm.peers:
        peer.control.leave(60.0)
        assert peer.wait(BOUND_S) == ExitCode.OK, swarm.story()
    check_peers(swarm.peers, RUN)
