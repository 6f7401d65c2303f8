"""One peer of the transfers that are measured: a donor that may also average, or the joiner."""

import contextlib
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from atom.base.errors import PeerRefused
from atom.base.events import EventFan
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import Sums, Terms, all_reduce, open_exchange
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.identity import Identity
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.fetch import Wanted, Watch, fetch
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import Handlers
from atom.swarm.transport.transport import Transport
from atom.training.storage.disk import read_tensors

PATIENCE_S = 300.0
ALONE = "alone"
_NAME, _PARENT = "state/" + "ab" * 32, bytes(32)
Contact = tuple[str, tuple[str, int]]


@dataclass(frozen=True)
class Setting:
    """What a peer is told before it starts."""

    snapshot: Path
    downloads: Path
    upload_bits_per_s: float | None


@dataclass(frozen=True)
class Averaging:
    """Rounds to take part in."""

    contacts: tuple[Contact, ...]
    elements: int
    rounds: int
    pause_s: float
    number: int
    """Tells one series of rounds from another."""


def peer(setting: Setting, parent: Connection) -> None:
    """A process's whole life: obeys commands until told to end."""
    torch.set_num_threads(1)
    with contextlib.closing(_Peer(setting)) as this:
        while True:
            match parent.recv():
                case ("contact",):
                    parent.send(this.contact)
                case ("fetch", contacts, digest):
                    parent.send(this.fetch(contacts, digest, threading.Event()))
                case ("average", averaging):
                    parent.send(this.average(averaging))
                case ("fetch on", contacts, digest):
                    this.fetch_on(contacts, digest)
                case ("enough",):
                    parent.send(this.enough())
                case _:
                    return


class _Peer:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        bandwidth = Bandwidth(setting.upload_bits_per_s, None)
        contents = {_NAME: read_tensors(setting.snapshot)}
        server = BlobServer(contents.get)
        server.manifest(_NAME)  # hashed before anybody's clock runs
        self._transport = Transport(
            Local(Identity.create(), bytes(32), bytes(16)),
            ("127.0.0.1", 0),
            EventFan(),
            bandwidth=bandwidth,
            handlers=Handlers(on_blobs=server.serve),
        )
        self._transport.start()
        self._enough = threading.Event()
        self._got_bytes = self._whole_bytes = 0
        self._fetching = threading.Thread()

    @property
    def contact(self) -> Contact:
        return self._transport.peer_id, self._transport.address

    def close(self) -> None:
        self._transport.close()

    def fetch(
        self, contacts: Sequence[Contact], digest: bytes, stop: threading.Event
    ) -> tuple[float, int]:
        """Seconds and bytes of one fetch into empty files."""
        self._know(contacts)
        shutil.rmtree(self._setting.downloads, ignore_errors=True)
        watch = Watch(on_progress=self._on_progress)
        started = time.perf_counter()
        wanted = Wanted(_NAME, [peer for peer, _ in contacts], digest, 1 << 40)
        fetched = fetch(self._transport, wanted, self._setting.downloads, stop, watch)
        return time.perf_counter() - started, sum(arena.nbytes for arena in fetched.values())

    def fetch_on(self, contacts: Sequence[Contact], digest: bytes) -> None:
        """Again and again, until `enough`."""
        self._enough.clear()
        self._got_bytes = self._whole_bytes = 0

        def work() -> None:
            with contextlib.suppress(PeerRefused):  # stopped
                while not self._enough.is_set():
                    self._whole_bytes += self.fetch(contacts, digest, self._enough)[1]

        self._fetching = threading.Thread(target=work)
        self._fetching.start()

    def enough(self) -> int:
        """How many bytes came meanwhile."""
        self._enough.set()
        self._fetching.join(PATIENCE_S)
        return self._got_bytes

    def average(self, job: Averaging) -> list[float]:
        """Seconds from one round's end to the next's."""
        self._know(job.contacts)
        order = tuple(peer_id for peer_id, _ in job.contacts)
        source = torch.ones(job.elements)
        seconds = []
        for run in range(job.rounds):
            ballot = Ballot(1 + run + 1000 * job.number, order[0], bytes(16))
            started = time.perf_counter()
            time.sleep(job.pause_s)  # stands for the computing between rounds
            terms = Terms(
                order,
                order.index(self._transport.peer_id),
                ring_tag(_PARENT, ballot),
                1 / len(order),
                codec_named("float32"),
                progress_timeout_s=PATIENCE_S,
            )
            channels = open_exchange(self._transport, terms, PATIENCE_S)
            wires = terms.mean_wires(source.numel())
            all_reduce(Sums(source), wires, terms, channels)
            seconds.append(time.perf_counter() - started)
            result = wires.numbers[:]
        assert torch.equal(source, result), "fast and wrong would be no result"
        return seconds

    def _on_progress(self, done: int, total: int) -> None:
        self._got_bytes = self._whole_bytes + done

    def _know(self, contacts: Sequence[Contact]) -> None:
        for peer_id, (host, port) in contacts:
            self._transport.set_addresses(peer_id, [f"{host}:{port}"])
