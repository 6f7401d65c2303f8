"""Frozen weights are no part of a state: they are fetched once, and are on disk from then on."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atom.graph.ir import Program, SubModel, padded_elements
from atom.graph.program import compile_program
from atom.graph.segment import Computed, compute
from atom.models.gpt3 import GPT3
from atom.optim.clipping import gradient_norm
from atom.swap import computation
from atom.swap.device import CpuDevice
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.shared_state import FirstState
from atom.training.storage.run_storage import STILL
from tests.manual_clock import ManualClock
from tests.swarm.chain_samples import a_commit, beginning
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.means import encoded
from tests.training.catching_peer import RecoveringPeer
from tests.training.small_history import FOUNDER
from tests.training.small_replica import FIRST_VALUE, RATE, batches, config


@functools.cache
def half_frozen_program() -> Program:
    """All but the last block and norm stays as it is."""
    model = GPT3(config())
    for part in (model.embedding, model.blocks[0]):
        part.requires_grad_(False)
    return compile_program(model, batches(1, 0)[0])


def half_frozen() -> Replica:
    settings = ReplicaSettings(rate=RATE)
    return Replica(half_frozen_program(), None, settings, CpuDevice(), ManualClock())


FOUNDERS = half_frozen()
FOUNDERS.fill_frozen(FIRST_VALUE)
FOUNDERS.initialise(FIRST_VALUE)
FROZEN_DIGEST = state_digest(FOUNDERS.frozen)
STATE_DIGEST = state_digest(FOUNDERS.state_arenas())


class Peer(RecoveringPeer):
    """A process: its replica, and its part of the disk."""

    def __init__(self, folder: Path, network: LocalNetwork, makes: bool = False) -> None:
        self.makes, self.file = makes, folder / "snapshots" / STILL
        first = FirstState(STATE_DIGEST, self._initialise, FROZEN_DIGEST, self._fill)
        super().__init__(folder, half_frozen(), beginning(FOUNDER, STATE_DIGEST), first, network)

    def _initialise(self) -> bool:
        self.replica.initialise(FIRST_VALUE)
        return True

    def _fill(self) -> bool:
        self.replica.fill_frozen(FIRST_VALUE)
        return self.makes

    def is_whole(self) -> bool:
        held = {**self.replica.frozen, **self.replica.state_arenas()}
        wanted = {**FOUNDERS.frozen, **FOUNDERS.state_arenas()}
        return self.shared.usable and all(torch.equal(held[name], wanted[name]) for name in wanted)


NewPeer = Callable[..., Peer]


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    with_doors = LocalNetwork()
    yield with_doors
    with_doors.close()


@pytest.fixture
def new_peer(tmp_path: Path, network: LocalNetwork) -> NewPeer:
    return lambda name, makes=False: Peer(tmp_path / name, network, makes)


@pytest.fixture
def founder(new_peer: NewPeer) -> Peer:
    """Return a peer with a snapshot of the first state."""
    founder = new_peer("founder", makes=True)
    founder.recovery.restore()
    assert founder.is_whole()
    founder.storage.snapshot(STATE_DIGEST, founder.replica.state_arenas())
    return founder


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    yield
    path.write_bytes(whole)


def test_it_is_fetched_once_and_loaded_from_disk_then(
    new_peer: NewPeer, founder: Peer, network: LocalNetwork
) -> None:
    content = founder.storage.content
    lie = {"frozen": torch.zeros_like(FOUNDERS.frozen["frozen"])}
    liar = network.add(BlobServer(lambda name: lie if name == "frozen" else content(name)).serve)
    honest = network.add(BlobServer(content).serve)

    joiner = new_peer("joiner")
    joiner.recovery.restore()
    assert not joiner.shared.usable, "its first state would do, but for what is frozen"
    assert "hash-mismatch" in joiner.recovery.run([liar.peer_id], discard=True)
    assert joiner.liars == [liar.peer_id]
    assert not joiner.recovery.run([honest.peer_id], discard=True)
    assert joiner.is_whole()

    again = new_peer("joiner")
    again.recovery.restore()
    assert again.is_whole()


def test_from_a_donor_whose_file_is_damaged_nothing_is_taken(
    new_peer: NewPeer, founder: Peer, network: LocalNetwork
) -> None:
    donor, joiner = network.add(BlobServer(founder.storage.content).serve), new_peer("joiner")
    for path in (founder.file, *founder.file.parent.glob("round-*")):
        with damaged(path):
            joiner.recovery.restore()
            assert "hash-mismatch" in joiner.recovery.run([donor.peer_id], discard=True)
    assert set(joiner.liars) == {donor.peer_id}
    assert joiner.shared.lacks == "the run's state"
    assert not joiner.recovery.run([donor.peer_id], discard=True)
    assert joiner.is_whole()


def test_a_damaged_file_is_none(new_peer: NewPeer, founder: Peer) -> None:
    result = torch.ones(founder.replica.elements)
    norm, travelled = gradient_norm(result), encoded(result)
    named = {"result_digest": state_digest(travelled.arenas), "parent_state_digest": STATE_DIGEST}
    founder.storage.results.hold(named["result_digest"], travelled)
    here = founder.storage.journal.head
    founder.storage.record(a_commit(here, {FOUNDER: 8}, [FOUNDER], gradient_norm=norm, **named))
    with damaged(founder.file):
        again = new_peer("founder")
        again.recovery.restore()
        assert not again.shared.usable
        assert again.shared.lacks == "what the run keeps frozen"
        assert again.storage.journal.head.round == 1, "nobody else may have what was trained"
        given = new_peer("founder", makes=True)
        given.recovery.restore()
        assert given.shared.usable
        assert not given.shared.lacks
        assert given.replica.step_count == 1


def test_what_is_behind_all_that_is_trained_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica, computed = half_frozen(), Counter[str]()

    def counted(module: nn.Module, sub_model: SubModel, *rest: Any) -> Computed:
        computed[sub_model.name] += 1
        return compute(module, sub_model, *rest)

    monkeypatch.setattr(computation, "compute", counted)
    replica.run_pass(batches(1, 0))
    assert computed["blocks.1"] == 2, "forward, and again for its backward"
    assert computed["embedding"] == computed["blocks.0"] == 1


def test_steps_and_their_memory_are_of_the_rest_alone() -> None:
    replica = half_frozen()
    replica.fill_frozen(FIRST_VALUE)
    replica.initialise(FIRST_VALUE)
    before = {name: value.clone() for name, value in replica.export_parameters().items()}
    replica.run_pass(batches(2, 0))
    replica.begin_own_step()
    after = replica.export_parameters()
    for name, value in before.items():
        still = name.startswith(("embedding", "blocks.0"))
        assert torch.equal(value, after[name]) == still, name
    trained = [value for name, value in before.items() if name.startswith(("blocks.1", "final"))]
    assert replica.elements == sum(padded_elements(value.numel()) for value in trained)
    assert {arena.numel() for arena in replica.state_arenas().values()} == {replica.elements}
