"""A run with a list, in one process: a stranger does all it can, and members go on without it."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.clock import BootClock
from atom.base.errors import PeerRefused
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.chain.commit import Ballot, Contribution
from atom.swarm.identity import Identity
from atom.swarm.records.codec import encode_manifest
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.lease_book import LeaseBook
from atom.swarm.records.manifest import OPEN, AllowList, Manifest
from atom.swarm.stream.frames import Purpose
from atom.training.exchange import Exchange, RingStyle
from atom.training.round.events import RingFailed, RingFinished, StartRing
from atom.training.storage.results import Results
from tests.manual_clock import ManualClock
from tests.swarm.directory_memory import MemoryDht, MemoryDirectory
from tests.swarm.local_transport import LocalNetwork, LocalTransport

ELEMENTS, WAIT_S = 256, 20.0
RUN = """
[run]
name = "listed"
[model]
family = "gpt3"
layers = 1
heads = 1
model_dim = 8
[data]
source = "python-stdlib"
[batch]
global_sequences = 8
micro_batch_sequences = 4
[optimizer]
learning_rate = 1e-3
[swarm]
members = {members}
"""


class Peer:
    """A directory, a transport and an exchange; `number` decides its gradients."""

    def __init__(
        self, number: int, net: LocalNetwork, dht: MemoryDht, folder: Path, allowed: AllowList
    ) -> None:
        self.number = number
        self.identity = IDENTITIES[number]
        self.heard = queue.SimpleQueue[str]()
        self.directory = MemoryDirectory(dht, "listed", IDENTITIES[0].peer_id, self.identity)
        self.transport = LocalTransport(net, self.identity, bytes(16), EventList(), allowed=allowed)
        self.transport.set_handlers(
            on_message=lambda peer_id, incarnation, raw: self.heard.put(peer_id),
            on_blobs=lambda channel: None,
        )
        self.transport.start()
        self.book = LeaseBook()
        self.results = Results(folder / str(number), ELEMENTS)
        self.gradients = torch.full((ELEMENTS,), float(10**number))
        self.outcomes: queue.SimpleQueue[RingFinished | RingFailed] = queue.SimpleQueue()
        self.exchange = Exchange(
            self.transport, self.results, lambda parent: self.gradients, self.outcomes.put,
            BootClock(), RingStyle(),
        )  # fmt: skip

    def lease(self, serial: int) -> Lease:
        return Lease(
            peer_id=self.identity.peer_id, incarnation=bytes(16), serial=serial, issued_at=0.0,
            state=PeerState.ACCUMULATING, head=bytes(32), round=serial, work=0, sequences=4,
            rounds_joined=0, sequences_committed=0, sequences_per_s=1.0, tokens_per_s=1.0,
            pass_seconds=0.5, loss=None, state_digest=bytes(32), addresses=(),
        )  # fmt: skip

    def ring(self, parent: bytes, ballot: Ballot, of: list[str]) -> None:
        shares = tuple(Contribution(peer_id, bytes(16), 4, 1.0) for peer_id in of)
        self.exchange.start(StartRing(parent, ballot, shares, False))

    def close(self) -> None:
        self.exchange.close()
        self.transport.close()


IDENTITIES = [Identity.create() for _ in range(4)]
MEMBERS, STRANGER = [one.peer_id for one in IDENTITIES[:3]], IDENTITIES[3].peer_id


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def peers(clock: ManualClock, tmp_path: Path) -> Iterator[list[Peer]]:
    net, dht = LocalNetwork(), MemoryDht(clock)
    allowed = AllowList.of(MEMBERS[0], MEMBERS[1:])
    before = set(threading.enumerate())
    made = [Peer(n, net, dht, tmp_path, OPEN if n == 3 else allowed) for n in range(4)]
    yield made
    for peer in made:
        peer.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def manifest() -> Manifest:
    run = parse_run_text(RUN.format(members=MEMBERS[1:]))
    return Manifest(
        run="listed", owner=MEMBERS[0], run_file=normalised_run_text(run), graph_hash="",
        program_hash="", versions=(), data_digest="", initial_state_digest=bytes(32),
        founder_incarnation=bytes(16), created_at=0.0,
    )  # fmt: skip


async def look_around(peers: list[Peer], clock: ManualClock, serial: int) -> None:
    """Everybody, the stranger included, publishes a lease; then everybody reads them."""
    for peer in peers:
        await peer.directory.publish_lease(peer.lease(serial))
    for peer in peers:
        peer.book.update(await peer.directory.read_leases(), clock.now())
    clock.advance(1.0)


def test_members_go_on_while_a_stranger_cannot_take_part(
    peers: list[Peer], clock: ManualClock
) -> None:
    async def enter() -> None:
        await peers[0].directory.publish_manifest(encode_manifest(manifest(), IDENTITIES[0]))
        for peer in peers[1:]:
            await peer.directory.read_manifest()

    asyncio.run(enter())
    *members, stranger = peers
    for number in range(1, 4):
        asyncio.run(look_around(peers, clock, number))
        for purpose in (Purpose.MESSAGES, Purpose.RING, Purpose.BLOBS):
            for member in members:
                with pytest.raises(PeerRefused) as refused:
                    stranger.transport.connect(member.identity.peer_id, purpose, bytes(8))
                assert refused.value.reason is Reason.NOT_ON_THE_LIST
        parent = bytes([number]) * 32
        ballot = Ballot(number, MEMBERS[0], bytes(16))
        for member in members:
            seen = sorted(member.book.fresh(clock.now()))
            assert seen == sorted(MEMBERS), "nobody counts on a stranger"
            member.ring(parent, ballot, seen)
        outcomes = [member.outcomes.get(timeout=WAIT_S) for member in members]
        assert len(set(outcomes)) == 1, outcomes
        assert isinstance(outcomes[0], RingFinished)
        mean = members[0].results.get(outcomes[0].digest)
        assert mean is not None
        assert torch.equal(mean, torch.full((ELEMENTS,), 111.0 / 12.0))
    assert all(member.heard.empty() for member in members)
    assert members[0].transport.send(MEMBERS[1], b"still here")
    assert members[1].heard.get(timeout=WAIT_S) == MEMBERS[0]
