"""The real compiler, the real GPT: a replica against plain PyTorch, bit for bit."""

import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initialise
from atom.optim.adamw import AdamW
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.optim.gradients import GradientsPoisoned
from atom.optim.rate import learning_rate
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.engine import PassCancelled
from atom.swap.schedule import GradientOut, Shape, training_pass
from atom.swap.timeline import Recording
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.training.small_replica import (
    FIRST_VALUE,
    RATE,
    SEED,
    SEQUENCES,
    MicroBatch,
    batches,
    config,
    filled,
    program,
    same,
    step_once,
)

STEPS = 3
TIED = "embedding.tokens.weight"
CUTS = {"finest": None, "halves": ((0, 1), (2, 3)), "whole": ((0, 3),)}
SETTINGS = {
    "optimizer": AdamW(betas=(0.9, 0.99), weight_decay=0.1), "clip_norm": 0.5, "dropout_seed": 3
}  # fmt: skip


def new_replica(device: CpuDevice, dropout: float = 0.1, cut: str = "finest") -> Replica:
    made = program(dropout, cut=CUTS[cut])
    return filled(device, made, program(0.0, cut=CUTS["halves"]), **SETTINGS)


class PlainTraining:
    """The same training without Atom. `apart`: sums the tied weight's uses layer by layer."""

    def __init__(self, dropout: float, apart: bool) -> None:
        self.model = GPT3(config(dropout))
        initialise(self.model, SEED)
        self.apart = apart
        self.parameters = dict(self.model.named_parameters())
        self.seeds = torch.Generator().manual_seed(3)
        groups = [
            {"params": [p for p in self.model.parameters() if p.dim() >= 2]},
            {"params": [p for p in self.model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=1.0, betas=(0.9, 0.99), weight_decay=0.1, fused=True
        )

    def step(self, micro_batches: Sequence[MicroBatch], round: int) -> list[float]:
        seeds = torch.randint(2**63 - 1, (len(micro_batches),), generator=self.seeds).tolist()
        losses = self.accumulate(micro_batches, seeds)
        for parameter in self.model.parameters():
            parameter.grad /= SEQUENCES * len(micro_batches)
        coefficient = clip_coefficient(self.norm(), 0.5)
        for parameter in self.model.parameters():
            parameter.grad *= coefficient
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(RATE, round)
        self.optimizer.step()
        return losses

    def accumulate(self, micro_batches: Sequence[MicroBatch], seeds: Sequence[int]) -> list[float]:
        tied = self.parameters[TIED]
        head = tied.detach().clone().requires_grad_() if self.apart else tied
        self.model.zero_grad()
        losses, early = [], []
        for batch, seed in zip(micro_batches, seeds, strict=True):
            torch.manual_seed(seed)
            loss = self.loss(batch, head)
            loss.backward(torch.tensor(float(SEQUENCES)))
            losses.append(loss.item())
            if self.apart:
                early.append(tied.grad)
                tied.grad = None
        if self.apart:
            tied.grad = functools.reduce(torch.add, early, head.grad)
        return losses

    def loss(self, batch: MicroBatch, head: Tensor) -> Tensor:
        if not self.apart:
            return self.model(**batch)
        hidden = self.model.embedding(batch["tokens"])
        for block in self.model.blocks:
            hidden = block(hidden)
        logits = functional.linear(self.model.final_norm(hidden), head)
        return functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    def norm(self) -> float:
        """In the arena's order: the norm's bits depend on it."""
        layout = program().layout
        flat = torch.zeros(layout.total_elements)
        for name, parameter in self.parameters.items():
            layout.view(flat, name).copy_(parameter.grad)
        return gradient_norm(flat)


# --- passes and steps ---------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("cut", CUTS)
def test_training_is_bit_equal_to_plain_pytorch(
    device: CpuDevice, cut: str, dropout: float, micro_batches: int, slots: int
) -> None:
    made = program(dropout, cut=CUTS[cut])
    replica = filled(device, made, arrangement=Arrangement(slots), **SETTINGS)
    plain = PlainTraining(dropout, apart=micro_batches > 1 and cut != "whole")
    for round in range(1, STEPS + 1):
        data = batches(micro_batches, seed=round)
        step_once(replica, data, round)
        losses = plain.step(data, round)
        assert replica.loss_sum == sum(loss * SEQUENCES for loss in losses)
        for name, weight in replica.export_parameters().items():
            assert torch.equal(weight, plain.parameters[name]), (round, name)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("resident", [{0}, {1, 2}, {0, 1, 2, 3}])
@pytest.mark.parametrize("slots", [2, 3])
def test_what_stays_on_the_device_changes_no_bits(
    device: CpuDevice, slots: int, resident: set[int], kept: bool
) -> None:
    stay = frozenset(resident)
    arrangement = Arrangement(slots, stay, stay if kept else frozenset())
    settings = ReplicaSettings(RATE, arrangement=arrangement, **SETTINGS)
    recording = Recording()
    arranged = Replica(program(0.1), program(), settings, device, observer=recording)
    arranged.initialise(FIRST_VALUE)
    swapped = new_replica(device)
    for round in range(1, STEPS + 1):
        for replica in (arranged, swapped):
            step_once(replica, batches(3, seed=round), round)
        assert arranged.evaluate(batches(2, 9)) == swapped.evaluate(batches(2, 9))
        assert arranged.loss_sum == swapped.loss_sum
        assert torch.equal(arranged.gradients, swapped.gradients)
        assert same(arranged, swapped)
        loads = [span.sub_model for span in recording.take().lane("load")]
        if round > 1:
            assert not stay.intersection(loads), "the evaluation loaded them"


def test_a_pass_reports_what_it_added(device: CpuDevice) -> None:
    replica = new_replica(device)
    replica.reset_gradients(b"head")
    first = replica.run_pass(batches(1, 1))
    second = replica.run_pass(batches(3, 2))
    assert (first.sequences, second.sequences) == (2, 6)
    assert replica.sequences == 8
    assert replica.loss_sum == first.loss_sum + second.loss_sum
    assert replica.gradients_tag == b"head"


def stop_after(calls: int) -> Callable[[], bool]:
    remaining = iter([False] * calls)
    return lambda: next(remaining, True)


def test_a_cancelled_pass_poisons_the_gradients_only(device: CpuDevice) -> None:
    replica = new_replica(device)
    weights = replica.state_arenas()["master"].clone()
    schedule = training_pass(Shape(len(program(0.1).sub_models), 2))
    first_sums = next(n for n, event in enumerate(schedule) if isinstance(event, GradientOut))
    with pytest.raises(PassCancelled):
        replica.run_pass(batches(2, 1), stop_after(first_sums))
    assert not replica.gradients.any(), "nothing of it had left yet"
    replica.run_pass(batches(1, 1))
    with pytest.raises(PassCancelled):
        replica.run_pass(batches(2, 1), stop_after(first_sums + 1))
    with pytest.raises(GradientsPoisoned):
        _ = replica.gradients
    with pytest.raises(GradientsPoisoned):
        replica.run_pass(batches(1, 1))
    replica.reset_gradients()
    replica.run_pass(batches(1, 1))
    assert replica.sequences == SEQUENCES
    assert torch.equal(replica.state_arenas()["master"], weights)


def test_evaluation_has_no_dropout_and_changes_nothing(device: CpuDevice) -> None:
    replica = new_replica(device, dropout=0.1)
    model = GPT3(config(0.1)).eval()
    initialise(model, SEED)
    data = batches(3, 5)
    with torch.no_grad():
        expected = sum(model(**batch).item() * SEQUENCES for batch in data) / (3 * SEQUENCES)
    assert replica.evaluate(data) == expected
    assert not replica.gradients.any()
    replica.run_pass(data)
    assert replica.evaluate(data) == expected


def test_bfloat16_trains_with_float32_master_weights(device: CpuDevice) -> None:
    narrow = torch.bfloat16
    half = filled(device, program(precision=narrow), precision=narrow, **SETTINGS)
    exact = new_replica(device, dropout=0.0)
    losses = []
    for round in range(1, 9):
        for replica in (half, exact):
            step_once(replica, batches(2, 1), round)
        losses.append(half.loss_sum)
    assert half.loss_sum == pytest.approx(exact.loss_sum, rel=0.02)
    assert losses[-1] < 0.9 * losses[0]
    assert half.state_arenas()["master"].dtype == torch.float32


# --- what is looked at --------------------------------------------------------------------------


def test_a_replica_looks_at_a_pass_now_and_then(device: CpuDevice) -> None:
    replica = new_replica(device)
    assert replica.watch.figures() is None
    replica.run_pass(batches(2, 1))
    figures = replica.watch.figures()
    replica.run_pass(batches(1, 2))
    replica.evaluate(batches(1, 3))
    assert replica.watch.figures() == figures, "the second pass was not looked at"
    ticket = replica.watch.ask()
    replica.run_pass(batches(1, 2))
    trace, summary = replica.watch.trace(ticket, "a run")
    assert "backward blocks.1, micro-batch 0" in trace
    assert "the device computes" in summary


def test_who_looked_at_a_pass_that_broke_off_looks_at_nothing_else(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, looking = filled(device, program()), Recording()
    monkeypatch.setattr(replica.watch, "begin", lambda: looking)
    with pytest.raises(PassCancelled):
        replica.run_pass(batches(1, 1), stop_after(4))
    seen = len(looking.spans)
    assert seen
    replica.evaluate(batches(1, 2))
    assert len(looking.spans) == seen


# --- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 5])
def test_first_values_do_not_depend_on_threads(device: CpuDevice, threads: int) -> None:
    replica, plain = filled(device, program()), filled(device, program())
    replica.initialise(FIRST_VALUE, threads)
    assert same(replica, plain)
    with pytest.raises(ValueError, match="is not"):
        replica.initialise(lambda name, shape: torch.zeros(3), threads)


def test_state_moves_between_replicas(device: CpuDevice) -> None:
    old, new = new_replica(device), new_replica(device, cut="whole")
    step_once(old, batches(1, 1), 1)
    new.load_state({name: arena.clone() for name, arena in old.state_arenas().items()}, 1)
    assert new.round == 1
    assert old.evaluate(batches(1, 9)) == new.evaluate(batches(1, 9))
    gradient = torch.randn(old.gradients.shape)
    for replica in (old, new):
        replica.apply(gradient, gradient_norm(gradient), 2)
    assert same(old, new)


def test_what_does_not_fit_changes_nothing(device: CpuDevice) -> None:
    replica, untouched = new_replica(device), new_replica(device)
    state = {name: arena + 1 for name, arena in replica.state_arenas().items()}
    with pytest.raises(ValueError, match="exp_avg_sq"):
        replica.load_state({**state, "exp_avg_sq": torch.zeros(3)}, 4)
    with pytest.raises(ValueError, match="norm"):
        replica.apply(torch.ones_like(replica.gradients), float("nan"), 1)
    short = [{name: value[:1] for name, value in batches(1, 1)[0].items()}]
    with pytest.raises(ValueError, match="was made for"):
        replica.run_pass(short)
    assert same(replica, untouched)
    assert replica.round == 0
    assert not replica.torn


def test_apply_may_be_repeated_but_not_out_of_order(device: CpuDevice) -> None:
    replica, once = new_replica(device), new_replica(device)
    gradient = torch.ones_like(replica.gradients)
    for _ in range(2):
        replica.apply(gradient, 1.0, 1)
    once.apply(gradient, 1.0, 1)
    assert same(replica, once)
    for round in (0, 3):
        with pytest.raises(ValueError, match="does not follow"):
            replica.apply(gradient, 1.0, round)


def test_a_program_of_another_precision_or_model_is_refused(device: CpuDevice) -> None:
    with pytest.raises(ValueError, match="traced in"):
        filled(device, program(), precision=torch.bfloat16)
    smaller = GPT3(GPT3Config(1, 1, 8, sequence_tokens=8, vocabulary_size=29))
    other: Program = compile_program(smaller, batches(1, 0)[0])
    with pytest.raises(ValueError, match="different models"):
        filled(device, program(), other)
