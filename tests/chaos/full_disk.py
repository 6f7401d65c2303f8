"""Real daemons whose disk is full: they train on, say so, and go on writing when there is room.
`make chaos` runs it, as root; not in the suite. A disk that turns read-only: `test_run_storage.py`.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from swarm_history import all_end_on_one_chain, contributes, contribution, read_chain, say
from swarm_of_processes import START_S, Event, Peer, Swarm, endless, swarm_in

from atom.cli.shell.failures import ExitCode
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import list_snapshots

RUN = "full"
EVERYTHING = {"snapshots", "results", "chain"}
BOUND_S = 60.0
ROUNDS = 6
SIZE = "16m"
_BLOCK_BYTES = 4096
pytestmark = pytest.mark.timeout(6 * START_S)


@dataclass(frozen=True)
class SmallDisk:
    """Mounted at `place`; a file of somebody else's lies on it."""

    place: Path

    @property
    def _filler(self) -> Path:
        return self.place / "somebody-elses"

    def fill(self, leave_bytes: int = 0) -> None:
        """All but so much; again, if something was removed since."""
        left = shutil.disk_usage(self.place).free - leave_bytes
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while left > 0:
                left -= file.write(bytes(min(left, _BLOCK_BYTES)))

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[SmallDisk]:
    """Raises: subprocess.CalledProcessError."""
    with _mounted(place, "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "atom-small-disk"):
        yield SmallDisk(place)


@contextlib.contextmanager
def _mounted(place: Path, *what: str) -> Iterator[None]:
    place.mkdir()
    _run("mount", *what, str(place))
    try:
        yield
    finally:  # lazily: whoever was killed a moment ago may still have a file open
        _run("umount", "--lazy", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def not_written(peer: Peer) -> Mapping[str, str] | None:
    """By its own word; None while it starts."""
    disk: Mapping[str, Mapping[str, str]] | None = peer.info().get("disk")
    return disk and disk["paused"]


def fill_up(swarm: Swarm, peer: Peer, fill: Callable[[], None]) -> None:
    """Until nothing of it is written any more: what the daemon removes, somebody else takes."""

    def nothing_is_written() -> bool:
        fill()
        return (not_written(peer) or {}).keys() >= EVERYTHING

    swarm.until(nothing_is_written, "a full disk, and its word for it", BOUND_S)


def make_room(swarm: Swarm, disk: SmallDisk, peer: Peer) -> None:
    disk.make_room()
    swarm.until(lambda: not_written(peer) == {}, "everything on disk", BOUND_S)


def rounds_with(peer: Peer, seen: Sequence[Event]) -> int:
    """Of the rounds that another one has seen, those with work of this one."""
    return sum(bool(contribution(event, peer.peer_id)) for event in seen)


def trains_on(swarm: Swarm, peer: Peer, witness: Peer, fill: Callable[[], None]) -> None:
    """Until it had a part in some more rounds, with the disk full all the time."""
    mark = len(witness.rounds)

    def it_did() -> bool:
        assert peer.exit_code is None, peer.story()
        fill()
        return rounds_with(peer, witness.rounds[mark:]) >= ROUNDS

    swarm.until(it_did, "rounds with its part", START_S)
    times = [event["time"] for event in witness.rounds[mark - 1 :]]
    longest = max(later - sooner for sooner, later in pairwise(times))
    say(f"{peer.name} trains on; longest wait for a round {longest:.1f} s")


def check_what_is_there(peer: Peer) -> list[bytes]:
    """Chain and snapshots on its disk are sound, whatever was half-written. The chain's heads."""
    _, heads = read_chain(peer.state, RUN)
    snapshots = list_snapshots(peer.state / "snapshots")
    assert snapshots, "the only one must never go"
    for snapshot in snapshots:
        assert state_digest(snapshot.load()) == snapshot.state_digest
    return [head.digest for head in heads]


def check_refused(peer: Peer) -> None:
    """It did not begin, and says why."""
    assert peer.wait(START_S) == ExitCode.STORAGE, peer.story()
    assert "the disk is full" in peer.errors()
    assert "Traceback" not in peer.errors()


def test_a_joiner_from_its_first_start_on(tmp_path: Path) -> None:
    run = endless(RUN, 4.0, 2)
    with small_disk(tmp_path / "bob") as disk, swarm_in(tmp_path, run, ("ada", "bob")) as swarm:
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
        swarm.until(lambda: "downloads" in (not_written(bob) or {}), "no room", START_S)
        assert "cannot reserve " in bob.errors()
        disk.make_room()
        swarm.until(lambda: contributes(swarm, bob, 0), "its part", START_S)

        fill_up(swarm, bob, disk.fill)
        trains_on(swarm, bob, ada, disk.fill)
        make_room(swarm, disk, bob)
        assert {event["what"] for event in bob.events("disk-room")} >= EVERYTHING

        fill_up(swarm, bob, disk.fill)
        assert bob.kill() == []
        heads = check_what_is_there(bob)
        theirs = [head.digest for head in read_chain(ada.state, RUN)[1]]
        assert theirs[: len(heads)] == heads
        mark = len(bob.rounds)
        bob.start()
        swarm.until(lambda: not_written(bob), "its word for it", START_S)
        make_room(swarm, disk, bob)
        swarm.until(lambda: contributes(swarm, bob, mark), "its part", START_S)
        assert not bob.events("snapshot-damaged")
        assert "Traceback" not in bob.errors()
        all_end_on_one_chain(swarm, RUN)
