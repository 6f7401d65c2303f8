"""However a device is used, the bits are the same: only loads and recomputes are saved."""

import functools
import itertools
from collections.abc import Sequence

import pytest
import torch
from engine_rig import EngineRig, LateDevice, assert_same, cancelled
from hand_written_program import FINEST, HALVES, batches, compile_by_hand
from torch import Tensor

from atom.optim.adamw import AdamW
from atom.swap.device import CpuDevice
from atom.swap.engine import Engine
from atom.swap.pass_shares import waits_s
from atom.swap.schedule import Arrangement, Load, Shape, training_pass
from atom.swap.timeline import Recording
from tests.one_step import take_step

SUB_MODELS = len(FINEST)
EVERY = frozenset(range(SUB_MODELS))
RESIDENT = {"none": frozenset(), "first": {0}, "last": {3}, "middle": {1, 2}, "all": EVERY}
STAYING = [
    ("none", "none"),
    *itertools.product(["first", "last", "middle", "all"], ["none", "some", "all"]),
]


def arrangement(slots: int, resident: str, kept: str) -> Arrangement:
    stay = frozenset(RESIDENT[resident])
    keep = {"none": frozenset(), "some": frozenset(sorted(stay)[:1]), "all": stay}[kept]
    return Arrangement(slots, stay, keep)


class Trainer(EngineRig):
    """Engines for training and evaluation over one store, with an optimizer and an observer."""

    def __init__(
        self,
        arranged: Arrangement | None = None,
        precision: torch.dtype = torch.float32,
        device: CpuDevice | None = None,
        evaluation_cut: Sequence[Sequence[str]] = FINEST,
    ) -> None:
        self.recording, self.steps = Recording(), 0
        super().__init__(
            FINEST, precision, device, self.recording, dropout=0.2, gain=True,
            arrangement=arranged, evaluation_cut=evaluation_cut,
        )  # fmt: skip

    def run_pass(self, seed: int, count: int) -> tuple[list[float], Tensor]:
        losses = self.engine.run_pass(batches([3, 2, 4][:count], seed), range(seed, seed + count))
        return losses, self.store.gradients.clone()

    def cancelled_pass(self, seed: int, count: int, events: int) -> None:
        cancelled(self.engine, batches([3, 2, 4][:count], seed), events)
        self.store.gradients.zero_()

    def step(self) -> Tensor:
        self.steps += 1
        take_step(AdamW(), self.store, self.store.gradients / 7, 0.05, self.steps)
        self.store.gradients.zero_()
        return self.store.master.clone()

    def loads(self) -> list[int]:
        """Since the last call."""
        return [span.sub_model for span in self.recording.take().lane("load")]


def story(trainer: Trainer, count: int) -> list[object]:
    """Passes with and without a step, an evaluation or a cancelled pass in between."""
    told: list[object] = [trainer.run_pass(1, count), trainer.run_pass(2, count), trainer.step()]
    told += [trainer.run_pass(3, count), trainer.evaluation.evaluate(batches([2, 2]))]
    trainer.cancelled_pass(4, count, events=7 + count)
    told += [trainer.run_pass(5, count), trainer.step()]
    told += [trainer.evaluation.evaluate(batches([2, 2])), trainer.run_pass(6, count)]
    return told


@functools.cache
def swapped_story(count: int, precision: torch.dtype) -> list[object]:
    """Return the story of the arrangement that `test_engine` proves equal to plain PyTorch."""
    return story(Trainer(None, precision), count)


@pytest.mark.parametrize(
    ("slots", "count", "precision"), [(2, 3, torch.float32), (3, 1, torch.bfloat16)]
)
@pytest.mark.parametrize(("resident", "kept"), STAYING)
def test_every_arrangement_gives_the_same_bits_however_late_copies_are(
    resident: str, kept: str, slots: int, count: int, precision: torch.dtype
) -> None:
    trainer = Trainer(arrangement(slots, resident, kept), precision, LateDevice())
    assert_same(story(trainer, count), swapped_story(count, precision))


def test_a_resident_is_loaded_once_per_version() -> None:
    trainer = Trainer(Arrangement(2, frozenset({0, 2})))
    trainer.run_pass(1, 2)
    assert trainer.loads() == [0, 1, 2, 3], "two are swapped, and two slots hold both"
    trainer.run_pass(2, 2)
    assert trainer.loads() == []
    trainer.step()
    trainer.run_pass(3, 2)
    assert trainer.loads() == [0, 1, 2, 3]
    trainer.cancelled_pass(4, 2, events=5)
    trainer.loads()
    trainer.run_pass(5, 2)
    assert trainer.loads() == [0, 1, 2, 3], "after a failure no slot is trusted"


def test_what_is_kept_is_computed_once() -> None:
    trainer = Trainer(Arrangement(2, frozenset({0, 1, 2}), frozenset({1})))
    trainer.run_pass(1, 3)
    assert [len(each.calls) for each in trainer.classes] == [6, 3, 6, 3]


def test_an_evaluation_cut_alike_finds_the_residents() -> None:
    trainer = Trainer(Arrangement(2, EVERY))
    trainer.run_pass(1, 1)
    trainer.evaluation.evaluate(batches([2]))
    assert trainer.evaluated.take().lane("load") == []
    trainer.step()
    trainer.evaluation.evaluate(batches([2]))
    trainer.loads()
    trainer.run_pass(2, 1)
    assert trainer.loads() == []


@pytest.mark.parametrize("resident", RESIDENT)
def test_an_evaluation_cut_otherwise_leaves_the_residents_alone(resident: str) -> None:
    arranged = arrangement(2, resident, "all")
    trainer = Trainer(arranged, evaluation_cut=HALVES)
    before = trainer.run_pass(1, 2)
    trainer.loads()
    losses = trainer.evaluation.evaluate(batches([2, 3]))
    assert losses == Trainer().evaluation.evaluate(batches([2, 3]))
    trainer.store.gradients.zero_()
    assert_same(trainer.run_pass(1, 2), before)
    assert not arranged.resident.intersection(trainer.loads())


def test_slots_of_other_programs_are_refused() -> None:
    trainer = Trainer()
    stranger, factories = compile_by_hand(HALVES, 0.5)
    with pytest.raises(ValueError, match="not made for"):
        Engine(stranger, factories, trainer.store, trainer.slots, trainer.device)


# --- background work --------------------------------------------------------------------------


def test_every_event_is_observed_once_and_in_the_order_of_its_lane() -> None:
    arranged = arrangement(2, "middle", "some")
    trainer = Trainer(arranged)
    trainer.run_pass(1, 2)
    schedule = training_pass(Shape(SUB_MODELS, 2, arranged))
    timeline = trainer.recording.take()
    for lane in ("load", "compute", "gradients"):
        spans = timeline.lane(lane)
        observed = [span.event for span in spans]
        assert observed == [event for event in schedule if event in observed]
        for before, after in itertools.pairwise(spans):
            assert before.start_s <= before.end_s <= after.start_s
    assert 0 < timeline.computing <= 1
    waited_s = sum(waits_s(timeline).values())
    assert timeline.busy_s("compute") + waited_s == pytest.approx(timeline.seconds)
    assert len(timeline.spans) == len(schedule)
    assert {span.event for span in timeline.spans} == set(schedule)
    assert isinstance(timeline.spans[0].event, Load)
    assert timeline.spans[0].start_s == 0
