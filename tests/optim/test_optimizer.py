"""Declarations and updates of optimizers, and properties that all of them must have."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toy_sign_sgd import SignSGD

from atom.graph.ir import ParameterLayout, ParameterSpec
from atom.optim.adamw import AdamW, AdamW8Bit
from atom.optim.momentum import Lion
from atom.optim.muon import Muon
from atom.optim.optimizer import Optimizer, StateTensor, optimizer_state
from atom.optim.rate import RateSettings
from atom.plan.footprint import Footprint
from atom.swap.device import CpuDevice
from atom.swap.host_store import HostStore, StateForm
from atom.swarm.state.arenas import state_digest
from atom.training.run_optimizer import ReplicaTerms
from atom.training.storage.run_storage import write_snapshot
from tests.one_step import allocate_store, take_step
from tests.training.small_replica import apply, batches, filled, program, same, step_once

ROOT = Path(__file__).parent.parent.parent


class Contradicting(SignSGD):
    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        wide = len(parameter.shape) == 2
        return {"moment": StateTensor((1,), torch.float32 if wide else torch.bfloat16)}


def test_one_name_has_one_type() -> None:
    with pytest.raises(ValueError, match="moment is"):
        optimizer_state(Contradicting((0.8, 0.9)), SEVERAL, StateForm.EXACT)


# ---- what every optimizer owes

SEED = {"betas": (0.8, 0.9), "weight_decay": 0.2, "seed": 5}
OWING = {
    "AdamW8Bit": AdamW8Bit(**SEED),
    "Lion": Lion(**SEED),
    "Muon": Muon(**SEED),
    "SignSGD": SignSGD(betas=(0.8, 0.9)),
}
"""All optimizers but AdamW, whose forms have a separate test."""
SEVERAL = ParameterLayout.of(
    {"still": (20, 30), "odd": (37, 53), "bias": (7,), "long": (2, 700)}, {"odd"}, {"still"}
)


@pytest.mark.parametrize("form", StateForm)
@pytest.mark.parametrize("name", OWING)
def test_a_store_takes_what_is_estimated(name: str, form: StateForm) -> None:
    """The state differs between parameters in shape, dtype and presence."""
    narrow = torch.bfloat16
    store = allocate_store(OWING[name], SEVERAL, narrow, form=form, gradients=narrow)
    tensors = [*store.state.values(), store.gradients, store.working]  # the longest last
    held = {each.data_ptr(): each.nbytes for each in tensors}
    terms = ReplicaTerms(SEVERAL, narrow, OWING[name], form, narrow)
    assert sum(held.values()) == Footprint.of(terms, 0).host.total_bytes


def stepped(optimizer: Optimizer, form: StateForm, *gradients: torch.dtype) -> HostStore:
    """`gradients`: through these types, one after the other."""
    store = allocate_store(optimizer, SEVERAL, torch.bfloat16, form=form)
    for spec in SEVERAL.specs:
        store.write_weights(spec.name, uniform(spec.shape, spec.numel))
    for step in range(1, 4):
        gradient = uniform((SEVERAL.trained_elements,), step)
        for each in gradients:
            gradient = gradient.to(each)
        take_step(optimizer, store, gradient, 1e-2, step, 0.7)
    return store


def uniform(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return uniformly distributed numbers with the same bits on every processor."""
    whole = torch.randint(-(2**15), 2**15, shape, generator=torch.Generator().manual_seed(seed))
    return whole.float() / 2**14


@pytest.mark.parametrize("gradients", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OWING)
def test_split_weights_are_as_exact_and_a_half_state_is_near(
    name: str, gradients: torch.dtype
) -> None:
    exact, split, half = (stepped(OWING[name], form, gradients) for form in StateForm)
    copy, still = exact.working[: SEVERAL.trained_elements], uniform((20, 30), 600).bfloat16()
    assert torch.equal(copy, exact.master.bfloat16()), "the copy for the device"
    for store in (exact, split, half):
        assert torch.equal(store.weights("still"), still.float()), "frozen: no step changes it"
    kept = exact.state.keys() & split.state.keys()
    assert all(torch.equal(exact.state[each], split.state[each]) for each in kept)
    for spec in SEVERAL.specs:
        weights = exact.weights(spec.name)
        assert torch.equal(split.weights(spec.name), weights)
        way = (weights - uniform(spec.shape, spec.numel)).norm()
        assert (half.weights(spec.name) - weights).norm() < 0.05 * way
    rounded = any(half.state[each].dtype != exact.state[each].dtype for each in kept)
    differs = any(not torch.equal(half.weights(n), exact.weights(n)) for n in ("odd", "long"))
    assert differs == rounded


@pytest.mark.parametrize("optimizer", [AdamW(**SEED), *OWING.values()], ids=["AdamW", *OWING])
def test_a_gradient_in_sixteen_bits_counts_as_what_it_says(optimizer: Optimizer) -> None:
    exact, narrow, wide = (
        stepped(optimizer, StateForm.EXACT, *through)
        for through in ((), (torch.bfloat16,), (torch.bfloat16, torch.float32))
    )
    assert all(torch.equal(narrow.state[name], wide.state[name]) for name in wide.state)
    assert not torch.equal(narrow.master, exact.master)


def test_steps_have_the_same_bits_with_other_instructions() -> None:
    paths = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(__file__).parent)))}
    environment = os.environ | paths | {"ATEN_CPU_CAPABILITY": "default"}
    words = "import test_optimizer; print(test_optimizer.digests_of_steps())"
    told = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True)
    assert told.stdout.decode().strip() == str(digests_of_steps())
    assert len(digests_of_steps()) > 1


def digests_of_steps() -> list[tuple[str, str]]:
    stores = {
        name: stepped(optimizer, StateForm.EXACT)
        for name, optimizer in OWING.items()
        if optimizer.reproducible
    }
    return [(name, state_digest(store.state).hex()) for name, store in stores.items()]


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    with closing(CpuDevice()) as device:
        yield device


@pytest.mark.parametrize("name", [name for name, each in OWING.items() if each.reproducible])
def test_a_joiner_loads_its_snapshot_and_catches_up(
    name: str, tmp_path: Path, device: CpuDevice
) -> None:
    settings = {"rate": RateSettings(1e-2), "optimizer": OWING[name], "clip_norm": 1.0}
    giver, joiner = (filled(device, program(), **settings) for _ in range(2))
    for number in (1, 2):
        step_once(giver, batches(1, number), number)
    digest = state_digest(giver.state_arenas())
    snapshot = write_snapshot(tmp_path, 2, b"h" * 32, digest, giver.state_arenas())
    missed = [step_once(giver, batches(1, number), number) for number in (3, 4)]

    joiner.load_state(snapshot.checked(digest), 2)
    for number, mean in enumerate(missed, 3):
        apply(joiner, mean, number)
    assert same(joiner, giver)
