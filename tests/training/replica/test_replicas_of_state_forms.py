"""Each form of the state trains, and moves between replicas, disks and peers, bit for bit."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.events import EventList
from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.swap.state_form import StateForm
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer, BlobStore
from atom.swarm.state.fetch import Watch
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.state_sync.donors import Offer, PeerDonors
from atom.training.storage.snapshot import load_snapshot, write_snapshot
from tests.manual_clock import ManualClock
from tests.swarm.local_transport import LocalNetwork, LocalTransport

MODEL = GPT3Config(1, 2, 16, sequence_tokens=8, vocabulary_size=29, dropout=0.0)
HEAD = b"h" * 32
FORMS = pytest.mark.parametrize("form", StateForm)


def batches(seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randint(29, (2, 8), generator=generator) for name in ("tokens", "targets")}
    ]


@functools.cache
def program() -> Program:
    return compile_program(GPT3(MODEL, dtype=torch.bfloat16), batches(0)[0])


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def new_replica(
    device: CpuDevice, form: StateForm, gradients: torch.dtype = torch.float32
) -> Replica:
    settings = ReplicaSettings(
        RateSettings(1e-2),
        clip_norm=1.0,
        precision=torch.bfloat16,
        state_form=form,
        gradients=gradients,
    )
    replica = Replica(program(), None, settings, device, ManualClock())
    replica.initialise(functools.partial(initial_value, MODEL, seed=7))
    return replica


def train(replica: Replica, rounds: range) -> list[float]:
    losses = []
    for number in rounds:
        replica.reset_gradients()
        replica.run_pass(batches(number % 3))
        losses.append(replica.loss_sum)
        mean = replica.gradients / replica.sequences
        replica.apply(mean, gradient_norm(mean), number)
    return losses


@FORMS
def test_it_learns_as_the_exact_form_does(device: CpuDevice, form: StateForm) -> None:
    losses = train(new_replica(device, form), range(1, 31))
    exact = train(new_replica(device, StateForm.EXACT), range(1, 31))
    assert losses[-1] < 0.9 * losses[0]
    assert losses[-1] == pytest.approx(exact[-1], rel=0.05)


@FORMS
def test_it_learns_from_gradients_in_sixteen_bits(device: CpuDevice, form: StateForm) -> None:
    """Several passes per round, the step on the very arena that they are summed in."""
    replica = new_replica(device, form, torch.bfloat16)
    losses = []
    for number in range(1, 31):
        replica.reset_gradients()
        for part in range(4):
            replica.run_pass(batches((number + part) % 3), last=part == 3)
        losses.append(replica.loss_sum)
        norm = replica.gradient_norm()
        assert norm == gradient_norm(replica.gradients.float())
        replica.begin_step(replica.gradients, norm, number, times=replica.sequences)
    replica.finish_step()
    assert replica.gradients.dtype == torch.bfloat16
    assert losses[-1] < 0.9 * losses[0]


@FORMS
def test_replicas_agree_and_a_restored_one_goes_on_alike(
    device: CpuDevice, form: StateForm, tmp_path: Path
) -> None:
    one, other, restored = (new_replica(device, form) for _ in range(3))
    for replica in (one, other):
        train(replica, range(1, 4))
    digest = state_digest(one.state_arenas())
    assert state_digest(other.state_arenas()) == digest
    snapshot = write_snapshot(tmp_path, 3, HEAD, digest, one.state_arenas())
    state_bytes = sum(arena.nbytes for arena in one.state_arenas().values())
    assert state_bytes == sum(arena.size_bytes for arena in one.state_form.values())
    restored.load_state(load_snapshot(snapshot), 3)
    assert state_digest(restored.state_arenas()) == digest
    for replica in (one, restored):
        train(replica, range(4, 6))
    assert state_digest(restored.state_arenas()) == state_digest(one.state_arenas())


@FORMS
def test_exported_weights_are_float32_and_were_what_was_put_in(
    device: CpuDevice, form: StateForm
) -> None:
    for name, weight in new_replica(device, form).export_parameters().items():
        assert torch.equal(weight, initial_value(MODEL, name, tuple(weight.shape), seed=7)), name


@pytest.mark.parametrize("given", StateForm)
@FORMS
def test_a_state_of_another_form_is_refused(
    device: CpuDevice, form: StateForm, given: StateForm
) -> None:
    replica, other = new_replica(device, form), new_replica(device, given)
    digest = state_digest(replica.state_arenas())
    if form is given:
        replica.load_state(other.state_arenas(), 0)
    else:
        with pytest.raises(ValueError, match="does not fit"):
            replica.load_state(other.state_arenas(), 0)
    assert state_digest(replica.state_arenas()) == digest


@pytest.fixture
def town() -> Iterator[tuple[LocalTransport, LocalTransport, BlobStore]]:
    """A joiner, a donor and the donor's store."""
    network, store = LocalNetwork(), BlobStore()
    transports = [
        LocalTransport(network, Identity.create(), bytes([n]) * 16, EventList()) for n in range(2)
    ]
    transports[1].set_handlers(on_blobs=BlobServer(store).serve)
    for transport in transports:
        transport.start()
    yield transports[0], transports[1], store
    for transport in transports:
        transport.close()


@FORMS
def test_a_joiner_fetches_it_from_a_peer(
    device: CpuDevice,
    form: StateForm,
    town: tuple[LocalTransport, LocalTransport, BlobStore],
    tmp_path: Path,
) -> None:
    me, donor, store = town
    giver, joiner = new_replica(device, form), new_replica(device, form)
    train(giver, range(1, 4))
    digest, elements = state_digest(giver.state_arenas()), giver.gradients.numel()
    snapshot = write_snapshot(tmp_path, 3, HEAD, digest, giver.state_arenas())
    store.register(f"state/{HEAD.hex()}", load_snapshot(snapshot))

    def donors(expected: StateForm) -> PeerDonors:
        folder = tmp_path / "downloads"
        state = new_replica(device, expected).state_form
        return PeerDonors(me, elements, state, folder, Watch())

    joiner.load_state(donors(form).state(Offer(3, HEAD), [donor.peer_id], digest, None), 3)
    assert state_digest(joiner.state_arenas()) == digest
    for another in set(StateForm) - {form}:
        with pytest.raises(PeerRefused):
            donors(another).state(Offer(3, HEAD), [donor.peer_id], digest, None)
