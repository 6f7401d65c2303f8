"""One peer of the measured transfers: a donor that may also average, or the joiner."""

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from atom.swarm.exchange.contribution import Sums
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.fetch import Wanted, Watch, fetch
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.transport.limits import Handlers
from atom.training.storage.disk import read_tensors
from benchmarks.shared.exchange import Contact, exchanged, introduce, opened

_NAME = "state/" + "ab" * 32


@dataclass(frozen=True)
class Setting:
    """Order to a peer before it starts."""

    snapshot: Path
    downloads: Path
    upload_bits_per_s: float | None


@dataclass(frozen=True)
class Averaging:
    """Rounds that donors run."""

    contacts: tuple[Contact, ...]
    elements: int
    rounds: int
    pause_s: float
    number: int
    """Number of the series of rounds."""


def peer(setting: Setting, parent: Connection) -> None:
    """Main function of a process: obey commands until it is killed."""
    torch.set_num_threads(1)
    this = _Peer(setting)
    while True:
        match parent.recv():
            case ("contact",):
                parent.send(this.contact)
            case ("fetch", contacts, digest):
                parent.send(this.fetch(contacts, digest))
            case ("average", averaging):
                parent.send(this.average(averaging))
            case ("fetch on", contacts, digest):
                while True:
                    this.fetch(contacts, digest)


class _Peer:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        bandwidth = Bandwidth(setting.upload_bits_per_s, None)
        contents = {_NAME: read_tensors(setting.snapshot)}
        server = BlobServer(contents.get)
        server.manifest(_NAME)  # hashed before the clock runs
        handlers = Handlers(on_blobs=server.serve)
        self._transport = opened(bandwidth=bandwidth, handlers=handlers)

    @property
    def contact(self) -> Contact:
        return self._transport.peer_id, self._transport.address

    def fetch(self, contacts: Sequence[Contact], digest: bytes) -> tuple[float, int]:
        """Return seconds and bytes of one fetch into empty files."""
        introduce(self._transport, contacts)
        shutil.rmtree(self._setting.downloads, ignore_errors=True)
        started = time.perf_counter()
        wanted = Wanted(_NAME, [peer for peer, _ in contacts], digest, 1 << 40)
        folder = self._setting.downloads
        fetched = fetch(self._transport, wanted, folder, threading.Event(), Watch())
        return time.perf_counter() - started, sum(arena.nbytes for arena in fetched.values())

    def average(self, job: Averaging) -> list[float]:
        """Run rounds; return the seconds of each."""
        introduce(self._transport, job.contacts)
        order, source = [peer_id for peer_id, _ in job.contacts], torch.ones(job.elements)
        seconds = []
        for run in range(job.rounds):
            started, number = time.perf_counter(), 1 + run + 1000 * job.number
            time.sleep(job.pause_s)  # stands for the computing between rounds
            mean, _ = exchanged(self._transport, order, number, Sums(source), job.elements)
            seconds.append(time.perf_counter() - started)
        assert torch.equal(source, mean[:]), "fast and wrong would be no result"
        return seconds
