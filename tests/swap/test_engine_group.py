"""A group of devices gives the bits of a single device, with values that cross its cuts."""

import threading

import pytest
import torch
from crossing_models import batch
from hand_written_program import initial_value
from ordered_story import RATE, TRACED, traced
from torch import Tensor

from atom.swap.device import CpuDevice
from atom.swap.pass_shares import HOST, VALUES, waits_s
from atom.swap.schedule import Arrangement, shape_of
from atom.swap.timeline import Recording
from atom.training.replica.replica import Replica, ReplicaSettings

MICRO_BATCHES = 3


def trained(
    model: str,
    precision: torch.dtype,
    devices: int,
    keeps: bool,
    observer: Recording | None = None,
) -> list[object]:
    """Losses of two steps, of an evaluation after each, and the state."""
    program = traced(model, precision, None)
    stay = frozenset(range(len(program.sub_models))) if keeps else frozenset[int]()
    settings = ReplicaSettings(
        rate=RATE, precision=precision, micro_batches=MICRO_BATCHES,
        arrangement=Arrangement(2, stay, stay, devices=devices),
    )  # fmt: skip
    device, *beside = opened = [CpuDevice() for _ in range(devices)]
    replica, told = (
        Replica(program, None, settings, device, observer=observer, extra_devices=beside),
        list[object](),
    )
    replica.initialise(initial_value)
    for number in range(4):
        replica.run_pass([batch(number + n) for n in range(MICRO_BATCHES)])
        told.append(replica.loss_sum)
        if number % 2:
            replica.begin_own_step()
            replica.reset_gradients()
            told.append(replica.evaluate([batch(9), batch(8)]))
    replica.finish_step()
    threads = {thread.name.rpartition("_")[0] for thread in threading.enumerate()}
    assert "atom-group" not in threads, "a pass leaves no thread behind"
    told.append(torch.cat([_flat(arena) for arena in replica.state_arenas().values()]).tolist())
    for each in opened:
        each.close()
    return told


def _flat(arena: Tensor) -> Tensor:
    return arena.float().flatten()


@pytest.mark.parametrize(
    ("model", "precision", "devices", "keeps"),
    [
        *((model, torch.float32, 3, False) for model in TRACED),
        ("scaling", torch.bfloat16, 2, False),
        ("skipping", torch.bfloat16, 2, True),
        ("viewing", torch.float32, 3, True),
    ],
)
def test_a_group_gives_the_bits_of_one_device(
    model: str, precision: torch.dtype, devices: int, keeps: bool
) -> None:
    one = trained(model, precision, 1, keeps)
    assert trained(model, precision, devices, keeps) == one


def test_a_pass_is_observed_on_all_devices() -> None:
    recording, precision = Recording(), torch.float32
    plain = trained("skipping", precision, 2, False)
    assert trained("skipping", precision, 2, False, recording) == plain
    timeline, program = recording.take(), traced("skipping", precision, None)
    for place in range(2):
        local = shape_of(program, Arrangement(devices=2), place=place).local
        computed = timeline.of_device(place).lane("compute")
        assert {span.sub_model for span in computed} == set(local)
        assert len({span.event for span in computed}) == 2 * MICRO_BATCHES * len(local)
    waits = waits_s(timeline)
    assert waits[VALUES] > 0
    assert waits[HOST] == 0
