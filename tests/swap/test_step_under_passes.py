"""A step on background threads while the next pass runs: no stale weights, and no endless wait.

The optimizer under test updates a part only when the test lets it.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from engine_rig import EngineRig
from hand_written_program import FINEST, HALVES, WHOLE, batches
from torch import Tensor

from atom.optim.adamw import AdamW
from atom.optim.stepper import Stepper
from atom.swap.device import CpuDevice
from atom.swap.host_store import StateForm, StepFailed
from atom.swap.schedule import Arrangement, Forward, GradientOut, Load, Observed, OptimizerStep
from tests.manual_clock import ManualClock
from tests.one_step import SteeredAdamW

SETTINGS = AdamW(betas=(0.9, 0.99), weight_decay=0.1)
RATE, WAIT_S = 0.05, 20.0
SWAPPED = Arrangement()
RESIDENT = Arrangement(2, frozenset({0, 2}))
KEPT = Arrangement(2, frozenset({1, 3}), frozenset({1}))
ARRANGEMENTS = pytest.mark.parametrize(
    "arrangement", [SWAPPED, RESIDENT, KEPT], ids=["swapped", "resident", "kept"]
)


class Rig(EngineRig):
    """An engine and an optimizer over one store; events go into a queue as they are observed."""

    def __init__(
        self,
        cut: Sequence[Sequence[str]] = FINEST,
        arrangement: Arrangement = SWAPPED,
        precision: torch.dtype = torch.float32,
        device: CpuDevice | None = None,
        form: StateForm = StateForm.EXACT,
    ) -> None:
        super().__init__(
            cut, precision, device, self._observe, arrangement=arrangement, form=form,
            evaluation_cut=WHOLE,
        )  # fmt: skip
        self.adamw = SteeredAdamW()
        self.seen: queue.SimpleQueue[Observed] = queue.SimpleQueue()
        self.stepper = Stepper(
            self.store,
            self.adamw,
            ManualClock(),
            self.program.sub_models,
            observer=self._observe,
        )

    def _observe(self, event: Observed, device: int, start_s: float, end_s: float) -> None:
        self.seen.put(event)

    def permit(self, pieces: int = 1000) -> None:
        self.adamw.permits.release(pieces)

    def train(self, step: int, first: bool = True) -> list[float]:
        return self.engine.run_pass(batches([3, 2], seed=step), [step, step + 50], first=first)

    def begin(self, step: int) -> None:
        """Begin a step on the same arena that the next pass writes, as a lone peer does."""
        self.stepper.begin(self.store.gradients.div_(5), RATE, step, 0.7)

    def pieces_of(self, sub_model: int) -> int:
        """How many pieces no earlier sub-model has used."""
        names = [{name for _, name in part.parameters} for part in self.program.sub_models]
        return len(names[sub_model].difference(*names[:sub_model]))

    def arenas(self) -> list[Tensor]:
        store = self.store
        return [*store.state.values(), store.working, store.gradients]

    def close(self) -> None:
        self.permit()
        self.stepper.wait_idle()


@pytest.fixture
def new_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(*arguments: Any, **named: Any) -> Rig:
        rigs.append(Rig(*arguments, **named))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def until(rig: Rig, event: Observed) -> list[Observed]:
    """Return the events observed up to `event`, and fail if it does not come."""
    seen = [rig.seen.get(timeout=WAIT_S)]
    while seen[-1] != event:
        seen.append(rig.seen.get(timeout=WAIT_S))
    return seen


@ARRANGEMENTS
@pytest.mark.parametrize("cut", [FINEST, HALVES], ids=["finest", "halves"])
def test_each_sub_model_waits_for_its_own_parameters_only(
    new_rig: Callable[..., Rig], cut: Sequence[Sequence[str]], arrangement: Arrangement
) -> None:
    if cut is HALVES:
        arrangement = Arrangement(2, arrangement.resident & {0, 1}, arrangement.kept & {0, 1})
    rig = new_rig(cut, arrangement)
    rig.train(1)
    rig.begin(1)
    until(rig, GradientOut(0))
    with ThreadPoolExecutor(1) as worker:
        losses = worker.submit(rig.train, 2)
        for sub_model in range(len(cut)):
            rig.permit(rig.pieces_of(sub_model))
            seen = until(rig, Forward(sub_model, 1))
            assert seen.index(OptimizerStep(sub_model)) < seen.index(
                next(event for event in seen if isinstance(event, Load))
            )
            assert all(event.sub_model <= sub_model for event in seen), "it ran ahead of the step"
        assert len(losses.result(WAIT_S)) == 2
    rig.stepper.wait()


@pytest.mark.parametrize(
    ("precision", "form", "arrangement"),
    [
        (torch.float32, StateForm.EXACT, KEPT),
        (torch.bfloat16, StateForm.EXACT, SWAPPED),
        (torch.bfloat16, StateForm.SPLIT, RESIDENT),
        (torch.bfloat16, StateForm.HALF, KEPT),
    ],
)
def test_the_same_bits_as_one_after_the_other(
    new_rig: Callable[..., Rig], precision: torch.dtype, form: StateForm, arrangement: Arrangement
) -> None:
    under, after = (new_rig(FINEST, arrangement, precision, form=form) for _ in range(2))
    under.permit()
    after.permit()
    micro_batches = batches([4], seed=9)
    for step in range(1, 6):
        assert under.train(step) == after.train(step)
        assert under.train(step + 10, first=False) == after.train(step + 10, first=False)
        under.begin(step)
        after.begin(step)
        after.stepper.wait()
        after.store.gradients.fill_(float("nan"))  # the first pass has to replace all of it
        if step == 3:
            assert under.evaluation.evaluate(micro_batches) == after.evaluation.evaluate(
                micro_batches
            )
    assert under.train(6) == after.train(6)
    under.stepper.wait()
    for ours, theirs in zip(under.arenas(), after.arenas(), strict=True):
        assert torch.equal(ours, theirs)


class Loads(CpuDevice):
    """Tells when a load has begun to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()

    def load(self, slot: int, copies: Any, report: Any, ready: Callable[[], None]) -> None:
        def told() -> None:
            self.waiting.set()
            ready()

        super().load(slot, copies, report, told)


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_step_that_breaks_off_ends_the_pass_and_what_comes_after(
    new_rig: Callable[..., Rig], done: int
) -> None:
    rig = new_rig(device=Loads())
    rig.train(1)
    rig.adamw.failing_at = done
    rig.begin(1)
    gradients = rig.store.gradients.clone()
    with ThreadPoolExecutor(1) as worker:
        rig.device.waiting.clear()
        losses = worker.submit(rig.train, 2)
        assert rig.device.waiting.wait(WAIT_S)
        rig.permit()
        with pytest.raises(StepFailed, match="MemoryError: no room"):
            losses.result(WAIT_S)
    assert rig.engine.loaded() == []
    assert torch.equal(rig.store.gradients, gradients), "nothing was written under the step"
    for number in (1, 2):
        with pytest.raises(StepFailed, match="step failed"):
            rig.stepper.begin(gradients, RATE, number)
    rig.stepper.discard()
    rig.stepper.wait()
