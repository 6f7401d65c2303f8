"""A joiner that is killed in the middle of a state fetches only what it lacks when it is back."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torch

from atom.base.events import EventList
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import CHUNK_BYTES, state_digest
from atom.swarm.state.blobs import BlobServer, BlobStore
from atom.swarm.state.fetch import Wanted, fetch
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport
from tests.swarm.shelf import Shelf

NAME = "state/" + "ab" * 32
PIECES, LANDED = 6, 3
STATE = {"master": torch.arange(PIECES * CHUNK_BYTES // 4, dtype=torch.float32)}
SOON = 60.0


class HaltingStore(Shelf):
    """Gives some pieces, then none until released."""

    def __init__(self) -> None:
        super().__init__({NAME: STATE})
        self.given = 0
        self.release = threading.Event()

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        if self.given >= LANDED:
            assert self.release.wait(SOON)
        self.given += 1
        return super().chunk(name, arena, chunk)


def transport(store: BlobStore | None) -> Transport:
    local = Local(Identity.create(), bytes(32), bytes(16))
    made = Transport(local, ("127.0.0.1", 0), EventList())
    made.set_handlers(on_blobs=BlobServer(store).serve if store is not None else None)
    made.start()
    return made


def test_only_what_is_lacking_is_fetched_after_a_kill(tmp_path: Path) -> None:
    store, folder, torn = HaltingStore(), tmp_path / "whole", tmp_path / "torn"
    donor, me = transport(store), transport(None)
    address = f"127.0.0.1:{donor.address[1]}"
    me.set_addresses(donor.peer_id, [address])
    kill_in_the_middle(donor.peer_id, address, folder)
    store.release.set()
    shutil.copytree(folder, torn)
    with (torn / "arena-0").open("r+b") as file:  # a power failure
        file.write(b"torn")
    wanted = Wanted(NAME, [donor.peer_id], state_digest(STATE), 1 << 30)
    for place, lacking in ((folder, PIECES - LANDED), (torn, PIECES - LANDED + 1)):
        fetched = fetch(me, wanted, place)
        assert torch.equal(fetched.arenas["master"], STATE["master"])
        assert fetched.given_bytes == {donor.peer_id: lacking * CHUNK_BYTES}
        assert fetched.reused_bytes == (PIECES - lacking) * CHUNK_BYTES
    me.close()
    donor.close()


def kill_in_the_middle(donor: str, address: str, folder: Path) -> None:
    program = str(Path(__file__).parent / "fetching_process.py")
    arguments = [donor, address, NAME, state_digest(STATE).hex(), str(folder)]
    joiner = subprocess.Popen(
        [sys.executable, program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert joiner.stdout is not None
    with joiner.stdout:
        while int(joiner.stdout.readline()) < LANDED * CHUNK_BYTES:
            pass
        joiner.send_signal(signal.SIGKILL)
    assert joiner.wait(SOON) == -signal.SIGKILL
