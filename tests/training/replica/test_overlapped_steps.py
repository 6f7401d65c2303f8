"""No reader sees half a state while a step runs during the next pass.
`tests/swap/test_step_under_passes.py` shows for every form that such a step has the bits of a
step between passes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.optim.stepper import Stepper
from atom.swap.engine import PassCancelled
from atom.swap.host_store import StepFailed
from atom.training.replica.replica import Replica
from tests.one_step import SteeredAdamW
from tests.training.conftest import NewDevice
from tests.training.small_replica import apply, batches, filled, program, same

WAIT_S, PERMITS = 20.0, 1000


@pytest.fixture
def gated() -> SteeredAdamW:
    return SteeredAdamW()


@pytest.fixture
def whole(new_device: NewDevice) -> Replica:
    """Steps at once."""
    return filled(new_device(), program(0.1), program())


@pytest.fixture
def replica(new_device: NewDevice, gated: SteeredAdamW) -> Replica:
    """One pass of it is counted."""
    replica = filled(new_device(), program(0.1), program(), optimizer=gated)
    replica.run_pass(batches(1, 1))
    return replica


def begun(replica: Replica) -> Tensor:
    """Begin a step on the replica's own arena, hold it at the gate, and return the arena."""
    own = replica.gradient_sums().div_(replica.sequences)
    mean = own.clone()
    replica.begin_step(own, 1.0, 1)
    return mean


@pytest.fixture
def open_when_waited_for(monkeypatch: pytest.MonkeyPatch, gated: SteeredAdamW) -> None:
    """Open the gate as soon as a caller waits for the end of a step."""
    wait_idle = Stepper.wait_idle

    def opening(stepper: Stepper) -> None:
        gated.permits.release(PERMITS)
        wait_idle(stepper)

    monkeypatch.setattr(Stepper, "wait_idle", opening)


@pytest.mark.usefixtures("open_when_waited_for")
@pytest.mark.parametrize("read", [Replica.state_arenas, Replica.export_parameters])
def test_who_reads_the_state_waits_for_the_step(
    replica: Replica,
    whole: Replica,
    gated: SteeredAdamW,
    read: Callable[[Replica], dict[str, Tensor]],
) -> None:
    mean = begun(replica)
    got = {name: value.clone() for name, value in read(replica).items()}
    apply(whole, mean, 1)
    assert all(torch.equal(got[name], value) for name, value in read(whole).items())


@pytest.mark.usefixtures("open_when_waited_for")
def test_a_loaded_state_is_not_stepped_on(replica: Replica, whole: Replica) -> None:
    begun(replica)
    replica.load_state({n: arena + 1 for n, arena in whole.state_arenas().items()}, 7)
    for name, arena in whole.state_arenas().items():
        assert torch.equal(replica.state_arenas()[name], arena + 1)
    assert replica.step_count == 7


@pytest.mark.usefixtures("open_when_waited_for")
def test_cleared_gradients_are_zeros_when_the_step_has_read_them(
    replica: Replica, whole: Replica
) -> None:
    mean = begun(replica)
    replica.reset_gradients()
    assert not replica.gradient_sums().any()
    apply(whole, mean, 1)
    assert same(replica, whole)


def test_a_step_that_breaks_off_surfaces_at_every_call_until_a_state_is_loaded(
    replica: Replica, whole: Replica, gated: SteeredAdamW
) -> None:
    gated.permits.release(PERMITS)
    gated.failing_at = 4
    mean = begun(replica)
    calls: list[Callable[[], Any]] = [
        lambda: replica.evaluate(batches(1, 2)),
        lambda: replica.run_pass(batches(1, 2)),
        lambda: replica.begin_step(mean, 1.0, 1),
        replica.finish_step,
        replica.state_arenas,
        replica.export_parameters,
    ]
    for call in calls:
        with pytest.raises(StepFailed, match="MemoryError: no room"):
            call()
    replica.load_state(whole.state_arenas(), 0)
    for each in (replica, whole):
        apply(each, mean, 1)
    assert same(replica, whole)


def test_a_cancelled_pass_leaves_the_step_alone(
    replica: Replica, whole: Replica, gated: SteeredAdamW
) -> None:
    mean = begun(replica)
    replica.reset_gradients()
    with ThreadPoolExecutor(1) as worker:
        cancelled = worker.submit(replica.run_pass, batches(1, 3), lambda: True)
        gated.permits.release(PERMITS)
        with pytest.raises(PassCancelled):
            cancelled.result(WAIT_S)
    apply(whole, mean, 1)
    assert same(replica, whole)
