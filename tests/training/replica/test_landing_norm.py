"""A step of a peer's own: its norm is summed as gradients land, and has the bits of any other."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.optim import clipping
from atom.optim.clipping import gradient_norm
from atom.swap.schedule import Arrangement
from atom.swap.voided import PassVoided
from atom.training.replica import local_steps
from atom.training.replica.local_steps import LocalSteps
from atom.training.replica.replica import Replica
from tests.training.conftest import NewDevice
from tests.training.small_replica import SEQUENCES, batches, filled, program, same

BLOCK = 256
FORMS = [
    {},
    {"precision": torch.bfloat16},
    {"precision": torch.bfloat16, "gradients": torch.bfloat16},
]
"""A tied weight's gradients land once; twice; and are rounded."""
LOCAL = partial(LocalSteps, inner_sequences=4 * SEQUENCES, outer_rate=0.7, outer_momentum=0.9)


class Norms:
    """Stands for `gradient_norm`, and looks at what it is told."""

    def __init__(self) -> None:
        self.told = list[tuple[int, int]]()
        """Number of known blocks and of all blocks, for each norm."""
        self.elsewhere = False
        """Some gradients are on the device."""

    def __call__(self, flat: Tensor, known: Mapping[int, float]) -> float:
        self.told.append((len(known), -(-flat.numel() // BLOCK)))
        found = gradient_norm(flat, known)
        assert self.elsewhere or found == gradient_norm(flat)
        return found


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> Norms:
    norms = Norms()
    monkeypatch.setattr(clipping, "LANES", 16)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", BLOCK)
    for module in (local_steps, clipping):
        monkeypatch.setattr(module, "gradient_norm", norms)
    return norms


def new_replica(new_device: NewDevice, settings: Mapping[str, Any]) -> Replica:
    made = program(precision=settings.get("precision", torch.float32))
    return filled(new_device(), made, clip_norm=0.01, **settings)


ON_DEVICE = {"arrangement": Arrangement(2, frozenset({1}), trained=frozenset({1}))}


@pytest.mark.parametrize("settings", [*FORMS, ON_DEVICE, {**ON_DEVICE, **FORMS[1]}])
def test_alone(new_device: NewDevice, norms: Norms, settings: dict[str, Any]) -> None:
    """Two steps of two passes each."""
    told, untold = (new_replica(new_device, settings) for _ in range(2))
    norms.elsewhere = "arrangement" in settings
    for replica in (told, untold):
        for number in range(4):
            replica.run_pass(batches(2, number), last=replica is told and number % 2 == 1)
            if number % 2:
                replica.begin_own_step()
                replica.reset_gradients()
        replica.finish_step()
    assert same(told, untold)
    told_first, _, untold_first, _ = norms.told
    assert told_first[0] > untold_first[0]
    assert norms.elsewhere or told_first == (told_first[1], told_first[1])


@pytest.mark.parametrize("settings", FORMS)
def test_local_steps(new_device: NewDevice, norms: Norms, settings: dict[str, Any]) -> None:
    """Two passes each; and one that a round asks for before its last pass."""
    replica = new_replica(new_device, {**settings, "update_rule": LOCAL})
    for number in range(5):
        replica.run_pass(batches(2, number))
    replica.contribution()
    (first, blocks), (second, _), (asked_for, _) = norms.told
    assert (first, second, asked_for) == (blocks, blocks, 0)


def test_what_a_void_pass_brought_is_in_no_norm(new_device: NewDevice, norms: Norms) -> None:
    replica = new_replica(new_device, {})
    replica.run_pass(batches(2, 0))
    state = {name: arena.clone() for name, arena in replica.state_arenas().items()}
    replica.load_state({name: torch.full_like(a, torch.inf) for name, a in state.items()}, 0)
    with pytest.raises(PassVoided):
        replica.run_pass(batches(2, 1), last=True)
    replica.load_state(state, 0)
    replica.begin_own_step()
    replica.finish_step()
    ((known, _),) = norms.told
    assert known == 0
