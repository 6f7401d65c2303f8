"""A whole peer of a tiny run in this process: its parts are real, but for the directory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from atom.config.peer_file import Schedule
from atom.daemon.console import Console
from atom.daemon.peer.box import open_box
from atom.daemon.peer.founding import Membership, found_run
from atom.daemon.peer.heartbeat import DirectoryThread
from atom.daemon.peer.peer import Peer
from atom.swarm.addresses import EXAMPLE_MULTIADDR, EXAMPLE_PEER, JoinAddress
from atom.swarm.dht.directory import Directory
from atom.swarm.records.lease import Lease, SignedLease
from atom.training.run_optimizer import load_run
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import TINY_PEER, TINY_RUN, TINY_TEXT
from tests.manual_clock import ManualClock

SMALL_BOX = TINY_PEER.format(device="") + '[network]\nlisten = "127.0.0.1:0"\n'


ENTRANCE = JoinAddress((EXAMPLE_MULTIADDR,), "tiny", EXAMPLE_PEER)


class SmallDirectory:
    """Answers at once, with the leases that were published here."""

    def __init__(self) -> None:
        self.published: list[Lease] = []
        self.records: dict[bytes, Lease] = {}
        self.known: frozenset[str] = frozenset()
        self.is_closed = False

    def sign_lease(self, lease: Lease) -> SignedLease:
        return SignedLease(b"", lease, 0.0)

    async def store_lease(self, signed: SignedLease) -> None:
        self.published.append(signed.lease)

    async def read_leases(self) -> Mapping[str, Lease]:
        return {each.peer_id: each for each in self.published[-1:]}

    def contacts(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        self.is_closed = True


def on_thread(directory: Any, clock: ManualClock | None = None) -> DirectoryThread:
    async def opened() -> Directory:
        return cast(Directory, directory)

    return DirectoryThread(opened(), clock or ManualClock())


def found_in(
    root: Path, run_text: str = TINY_RUN, console: Console | None = None, more: str = ""
) -> Membership:
    """Found a run in the state directory `root`/state, which is unlocked again.

    Args:
        root: folder for the files.
        run_text: content of the run file.
        console: console of the founder; None: no output.
        more: further text of the peer file.
    """
    (root / "run.toml").write_text(run_text)
    (root / "peer.toml").write_text(SMALL_BOX + more)
    (root / "text.txt").write_text(TINY_TEXT)
    run = load_run(root / "run.toml")
    box = open_box(run.run.name, root / "peer.toml", root / "state", console or Silence())
    try:
        return found_run(run, root, box)
    finally:
        box.state.unlock()


@contextmanager
def small_peer(
    root: Path, member: Membership, console: Console, clock: ManualClock | None = None
) -> Iterator[Peer]:
    """Build a peer of `member` without starting it.

    Args:
        root: its state directory.
        clock: monotonic clock; None: the machine's.
    """
    box = open_box(member.run.run.name, None, root, console, {"--listen": "127.0.0.1:0"})
    peer_file = box.peer.model_copy(update={"schedule": Schedule(pause_on_battery=False)})
    incarnation = member.manifest.founder_incarnation  # the voter of round 0
    box = replace(box, peer=peer_file, incarnation=incarnation)
    thread = on_thread(SmallDirectory(), clock)
    try:
        peer = Peer(box, member, thread, ENTRANCE, clock)
        try:
            yield peer
        finally:
            peer.close()
    finally:
        thread.close()
        box.state.unlock()
