"""The real compiler, the real GPT: a replica against plain PyTorch, bit for bit."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value, initialise
from atom.optim import clipping
from atom.optim.adamw import AdamW
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.optim.gradients import GradientsPoisoned
from atom.optim.rate import RateSettings, learning_rate
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.engine import PassCancelled
from atom.swap.schedule import GradientOut, Shape, training_pass
from atom.swap.timeline import Recording
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock

SEQUENCES, SEED, STEPS = 2, 11, 3
TIED = "embedding.tokens.weight"
RATE = RateSettings(1e-2, 1e-3, warmup_rounds=2, decay="cosine", rounds=10)


def config(dropout: float) -> GPT3Config:
    return GPT3Config(2, 2, 16, sequence_tokens=8, vocabulary_size=29, dropout=dropout)


def settings(slots: int = 2, precision: torch.dtype = torch.float32) -> ReplicaSettings:
    adamw = AdamW(betas=(0.9, 0.99), weight_decay=0.1)
    return ReplicaSettings(RATE, adamw, 0.5, precision, Arrangement(slots), dropout_seed=3)


def batches(count: int, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            name: torch.randint(29, (SEQUENCES, 8), generator=generator)
            for name in ("tokens", "targets")
        }
        for _ in range(count)
    ]


@functools.cache
def program(dropout: float, cut: str, dtype: torch.dtype = torch.float32) -> Program:
    model = GPT3(config(dropout), dtype=dtype)
    finest = compile_program(model, batches(1, 0)[0])
    last = finest.sub_models[-1].last_layer
    cuts = {"halves": [(0, last // 2), (last // 2 + 1, last)], "whole": [(0, last)]}
    return compile_program(model, batches(1, 0)[0], cuts[cut]) if cut in cuts else finest


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def new_replica(device: CpuDevice, dropout: float = 0.1, cut: str = "finest") -> Replica:
    evaluation = program(0.0, "halves")
    replica = Replica(program(dropout, cut), evaluation, settings(), device, ManualClock())
    replica.initialise(functools.partial(initial_value, config(dropout), seed=SEED))
    return replica


def step_once(replica: Replica, micro_batches: Sequence[dict[str, Tensor]], round: int) -> None:
    replica.reset_gradients()
    replica.run_pass(micro_batches)
    mean = replica.gradients / replica.sequences
    replica.apply(mean, gradient_norm(mean), round)


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

    def step(self, micro_batches: Sequence[dict[str, Tensor]], round: int) -> list[float]:
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

    def accumulate(
        self, micro_batches: Sequence[dict[str, Tensor]], seeds: Sequence[int]
    ) -> list[float]:
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

    def loss(self, batch: dict[str, Tensor], head: Tensor) -> Tensor:
        if not self.apart:
            return self.model(**batch)
        hidden = self.model.embedding(batch["tokens"])
        for block in self.model.blocks:
            hidden = block(hidden)
        logits = functional.linear(self.model.final_norm(hidden), head)
        return functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    def norm(self) -> float:
        """In the arena's order: the norm's bits depend on it."""
        layout = program(0.0, "whole").layout
        flat = torch.zeros(layout.total_elements)
        for name, parameter in self.parameters.items():
            layout.view(flat, name).copy_(parameter.grad)
        return gradient_norm(flat)


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("cut", ["finest", "halves", "whole"])
def test_training_is_bit_equal_to_plain_pytorch(
    device: CpuDevice, cut: str, dropout: float, micro_batches: int, slots: int
) -> None:
    replica = Replica(program(dropout, cut), None, settings(slots), device)
    replica.initialise(functools.partial(initial_value, config(dropout), seed=SEED))
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
    recording = Recording()
    arranged = Replica(
        program(0.1, "finest"),
        program(0.0, "finest"),
        dataclasses.replace(settings(), arrangement=arrangement),
        device,
        ManualClock(),
        recording,
    )
    arranged.initialise(functools.partial(initial_value, config(0.1), seed=SEED))
    swapped = new_replica(device)
    for round in range(1, STEPS + 1):
        for replica in (arranged, swapped):
            step_once(replica, batches(3, seed=round), round)
        assert arranged.evaluate(batches(2, 9)) == swapped.evaluate(batches(2, 9))
        assert arranged.loss_sum == swapped.loss_sum
        assert torch.equal(arranged.gradients, swapped.gradients)
        for mine, theirs in zip(
            arranged.state_arenas().values(), swapped.state_arenas().values(), strict=True
        ):
            assert torch.equal(mine, theirs)
        loads = [span.sub_model for span in recording.take().lane("load")]
        if round > 1:
            assert not stay.intersection(loads), "the evaluation loaded them"


@pytest.mark.parametrize("threads", [2, 5])
def test_first_values_do_not_depend_on_threads(device: CpuDevice, threads: int) -> None:
    replica = Replica(program(0.0, "finest"), None, settings(), device)
    replica.initialise(functools.partial(initial_value, config(0.0), seed=SEED), threads)
    expected = new_replica(device, dropout=0.0).state_arenas()
    for name, arena in replica.state_arenas().items():
        assert torch.equal(arena, expected[name]), name
    with pytest.raises(ValueError, match="is not"):
        replica.initialise(lambda name, shape: torch.zeros(3), threads)


def test_the_loss_falls(device: CpuDevice) -> None:
    replica = new_replica(device, dropout=0.0)
    data = batches(2, seed=1)
    before = replica.evaluate(data)
    for round in range(1, 9):
        step_once(replica, data, round)
    assert replica.evaluate(data) < 0.9 * before


def test_a_gradient_may_be_so_many_times_the_mean(device: CpuDevice) -> None:
    replicas = [new_replica(device), new_replica(device)]
    for round in range(1, STEPS + 1):
        for replica, times in zip(replicas, (1, 4), strict=True):
            replica.reset_gradients()
            replica.run_pass(batches(2, seed=round))
            gradient = replica.gradients / (4 // times)
            replica.begin_step(gradient, gradient_norm(gradient), round, times)
            replica.finish_step()
    states = [replica.state_arenas() for replica in replicas]
    for name, arena in states[0].items():
        assert torch.equal(arena, states[1][name]), name
    with pytest.raises(ValueError, match="6 is no power of two"):
        replicas[0].begin_step(gradient, 1.0, STEPS + 1, 6)


@pytest.mark.parametrize("cut", ["finest", "halves", "whole"])
def test_the_norm_under_the_last_pass_is_that_after_it(
    device: CpuDevice, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipping, "LANES", 16)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 160)
    replica = new_replica(device, cut=cut)
    for passes in (1, 3):
        replica.reset_gradients()
        for number in range(passes):
            replica.run_pass(batches(2, number), last=number == passes - 1)
        expected = gradient_norm(replica.gradients)
        assert replica.gradient_norm() == expected > 0


def test_a_pass_reports_what_it_added(device: CpuDevice) -> None:
    replica = new_replica(device)
    replica.reset_gradients(b"head")
    first = replica.run_pass(batches(1, 1))
    second = replica.run_pass(batches(3, 2))
    assert (first.sequences, second.sequences) == (2, 6)
    assert replica.sequences == 8
    assert replica.loss_sum == first.loss_sum + second.loss_sum
    assert replica.gradients_tag == b"head"


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
    replica = Replica(program(0.0, "finest"), None, settings(), device)
    replica.initialise(functools.partial(initial_value, config(0.0), seed=SEED))
    looking = Recording()
    monkeypatch.setattr(replica.watch, "begin", lambda: looking)
    with pytest.raises(PassCancelled):
        replica.run_pass(batches(1, 1), stop_after(4))
    seen = len(looking.spans)
    assert seen
    replica.evaluate(batches(1, 2))
    assert len(looking.spans) == seen


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


def test_state_moves_between_replicas(device: CpuDevice) -> None:
    old, new = new_replica(device), new_replica(device, cut="whole")
    step_once(old, batches(1, 1), 1)
    new.load_state({name: arena.clone() for name, arena in old.state_arenas().items()}, 1)
    assert new.round == 1
    assert old.evaluate(batches(1, 9)) == new.evaluate(batches(1, 9))
    gradient = torch.randn(old.gradients.shape)
    for replica in (old, new):
        replica.apply(gradient, gradient_norm(gradient), 2)
    for name, arena in old.state_arenas().items():
        assert torch.equal(arena, new.state_arenas()[name]), name


def test_a_state_that_does_not_fit_changes_nothing(device: CpuDevice) -> None:
    replica = new_replica(device)
    before = {name: arena.clone() for name, arena in replica.state_arenas().items()}
    wrong = {**{name: arena + 1 for name, arena in before.items()}, "exp_avg_sq": torch.zeros(3)}
    with pytest.raises(ValueError, match="exp_avg_sq"):
        replica.load_state(wrong, 4)
    assert replica.round == 0
    for name, arena in replica.state_arenas().items():
        assert torch.equal(arena, before[name])


def test_apply_may_be_repeated_but_not_out_of_order(device: CpuDevice) -> None:
    replica = new_replica(device)
    gradient = torch.ones_like(replica.gradients)
    replica.apply(gradient, 1.0, 1)
    after = replica.state_arenas()["master"].clone()
    replica.apply(gradient, 1.0, 1)
    assert torch.equal(replica.state_arenas()["master"], after)
    for round in (0, 3):
        with pytest.raises(ValueError, match="does not follow"):
            replica.apply(gradient, 1.0, round)


def test_a_norm_that_is_not_finite_changes_nothing(device: CpuDevice) -> None:
    replica = new_replica(device)
    before = replica.state_arenas()["master"].clone()
    with pytest.raises(ValueError, match="norm"):
        replica.apply(torch.ones_like(replica.gradients), float("nan"), 1)
    assert torch.equal(replica.state_arenas()["master"], before)
    assert replica.round == 0
    assert not replica.torn


def stop_after(calls: int) -> Callable[[], bool]:
    remaining = iter([False] * calls)
    return lambda: next(remaining, True)


def test_a_cancelled_pass_poisons_the_gradients_only(device: CpuDevice) -> None:
    replica = new_replica(device)
    weights = replica.state_arenas()["master"].clone()
    schedule = training_pass(Shape(len(program(0.1, "finest").sub_models), 2))
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


def test_batches_of_another_shape_are_refused(device: CpuDevice) -> None:
    replica = new_replica(device)
    short = [{name: value[:1] for name, value in batches(1, 1)[0].items()}]
    with pytest.raises(ValueError, match="was made for"):
        replica.run_pass(short)


def test_bfloat16_trains_with_float32_master_weights(device: CpuDevice) -> None:
    half = Replica(
        program(0.0, "finest", dtype=torch.bfloat16),
        None,
        settings(precision=torch.bfloat16),
        device,
    )
    half.initialise(functools.partial(initial_value, config(0.0), seed=SEED))
    exact = new_replica(device, dropout=0.0)
    data = batches(2, 1)
    for round in range(1, 4):
        step_once(half, data, round)
        step_once(exact, data, round)
    assert half.loss_sum == pytest.approx(exact.loss_sum, rel=0.02)
    assert half.state_arenas()["master"].dtype == torch.float32


def test_a_program_of_another_precision_or_model_is_refused(device: CpuDevice) -> None:
    with pytest.raises(ValueError, match="traced in"):
        Replica(program(0.0, "whole"), None, settings(precision=torch.bfloat16), device)
    other = compile_program(
        GPT3(GPT3Config(1, 1, 8, sequence_tokens=8, vocabulary_size=29)), batches(1, 0)[0]
    )
    with pytest.raises(ValueError, match="different models"):
        Replica(program(0.0, "whole"), other, settings(), device)
