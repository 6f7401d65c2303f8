"""An optimizer that the code has never heard of: trained, saved, fetched, caught up, planned."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.config.load import parse_run_text
from atom.config.run_file import OPTIMIZERS, RunFile
from atom.daemon.fitting.device_choice import peer_bytes
from atom.daemon.model.run_optimizer import optimizer, shared_state
from atom.graph.ir import ParameterLayout
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.swap.state_form import StateForm
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.storage.run_storage import write_snapshot
from tests.one_step import allocate_store, take_step
from tests.training.plain_training import CLIP_NORM, PlainTraining
from tests.training.small_replica import apply, batches, filled, program, same, step_once

RATE, BETA, ROUNDS = 1e-2, 0.8, 4
RUN = """
run = { name = "signs" }
data = { source = "python-stdlib" }
batch = { global_sequences = 8, micro_batch_sequences = 1 }
model = { family = "gpt3", size = "small", vocabulary_size = 512 }
optimizer = { name = "sign-sgd", learning_rate = 1e-2, betas = [0.8, 0.9] }
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a contributor adds to `OPTIMIZERS`."""
    monkeypatch.setitem(OPTIMIZERS, "sign-sgd", "toy_sign_sgd:SignSGD")


@pytest.fixture
def run(registered: None) -> RunFile:
    return parse_run_text(RUN)


@pytest.fixture
def new_replica(run: RunFile) -> Iterator[Callable[[], Replica]]:
    with closing(CpuDevice()) as device:
        settings = {"optimizer": optimizer(run), "clip_norm": CLIP_NORM}
        yield lambda: filled(device, program(), rate=RateSettings(RATE), **settings)


def train(replica: Replica, round_number: int) -> Tensor:
    return step_once(replica, batches(1, round_number), round_number)


class PlainSignSGD(torch.optim.Optimizer):
    """The rule in plain PyTorch."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter]
            momentum = kept.setdefault("momentum", torch.zeros_like(parameter))
            momentum.mul_(BETA).add_(parameter.grad, alpha=1 - BETA)
            parameter.sub_(momentum.sign(), alpha=RATE)


def test_training_is_bit_equal_to_plain_pytorch(new_replica: Callable[[], Replica]) -> None:
    replica = new_replica()
    plain = PlainTraining(0.0, False, lambda model: PlainSignSGD(model.parameters()))
    for round_number in range(1, ROUNDS + 1):
        train(replica, round_number)
        plain.step(batches(1, round_number), round_number)
        for name, weight in replica.export_parameters().items():
            assert torch.equal(weight, plain.parameters[name]), (round_number, name)


def test_a_joiner_loads_its_snapshot_and_catches_up(
    new_replica: Callable[[], Replica], tmp_path: Path
) -> None:
    giver, joiner = new_replica(), new_replica()
    train(giver, 1)
    train(giver, 2)
    digest = state_digest(giver.state_arenas())
    snapshot = write_snapshot(tmp_path, 2, b"h" * 32, digest, giver.state_arenas())
    missed = [train(giver, 3), train(giver, 4)]

    joiner.load_state(snapshot.checked(digest), 2)
    for round_number, mean in enumerate(missed, 3):
        apply(joiner, mean, round_number)
    assert same(joiner, giver)


def test_memory_and_snapshots_are_reckoned_by_what_it_declares(run: RunFile) -> None:
    layout = ParameterLayout.of({"matrix": (32, 16), "bias": (16,)})
    assert list(shared_state(run, layout)) == ["master", "momentum"]
    assert sum(arena.size_bytes for arena in shared_state(run, layout).values()) == 8 * 528
    assert peer_bytes(run, layout) == (8 + 4 + 2 * 4) * 528


@pytest.mark.parametrize("form", [StateForm.SPLIT, StateForm.HALF])
def test_split_weights_take_the_same_steps(run: RunFile, form: StateForm) -> None:
    layout = ParameterLayout.of({"matrix": (37, 53), "bias": (7,)})
    stores = [
        allocate_store(optimizer(run), layout, torch.bfloat16, form=each)
        for each in (StateForm.EXACT, form)
    ]
    for store in stores:
        for spec in layout.specs:
            generator = torch.Generator().manual_seed(spec.numel)
            store.write_weights(spec.name, torch.randn(spec.shape, generator=generator))
        for step in range(1, 4):
            gradient = torch.randn(layout.total_elements, generator=generator)
            take_step(optimizer(run), store, gradient, RATE, step, 0.7)
    for spec in layout.specs:
        assert torch.equal(*(store.weights(spec.name) for store in stores))
