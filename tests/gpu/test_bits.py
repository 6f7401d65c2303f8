"""Passes through sub-models have the bits of plain PyTorch on the same device."""

import functools
import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from atom.graph.ir import Program
from atom.graph.program import build_program, load
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.schedule import Arrangement
from tests.gpu.conftest import ON_A_GPU
from tests.graph.layer_major import run_layer_major
from tests.swap import crossing_models
from tests.swap.crossing_models import TOKENS, WIDTH

SEQUENCES, MICRO_BATCHES, PASSES = crossing_models.SEQUENCES, 3, 3


def gpt3(dropout: float) -> nn.Module:
    return GPT3(GPT3Config(3, 2, 64, TOKENS, WIDTH, dropout))


MODELS = {
    **crossing_models.MODELS,
    "gpt3": functools.partial(gpt3, 0.0),
    "gpt3, dropout": functools.partial(gpt3, 0.1),
}
CHOSEN = list(MODELS) if ON_A_GPU else ["gpt3, dropout"]
"""Models of these tests. On a CPU, tests/swap has the other ones in every arrangement."""
PRECISIONS = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.float32),
    "float16": (torch.float16, torch.float32),
    "bfloat16, gradients too": (torch.bfloat16, torch.bfloat16),
}
ARRANGEMENTS = {
    "swapped": lambda parts: Arrangement(),
    "resident": lambda parts: Arrangement(2, parts),
    "kept": lambda parts: Arrangement(2, parts, parts),
    "offloaded": lambda parts: Arrangement(2, offloaded=parts, least_offloaded_bytes=0),
    "kept and offloaded": lambda parts: Arrangement(
        3, frozenset(sorted(parts)[:2]), frozenset(sorted(parts)[:2]), parts, 0
    ),
}  # fmt: skip


@functools.cache
def program_of(model: str, precision: torch.dtype) -> Program:
    torch.manual_seed(3)
    made = MODELS[model]().to(precision)
    return build_program(trace(made, crossing_models.batch(0)))


def batches(number: int) -> list[dict[str, Tensor]]:
    return [crossing_models.batch(number * MICRO_BATCHES + n) for n in range(MICRO_BATCHES)]


def seeds(number: int) -> list[int]:
    return [100 * number + n for n in range(MICRO_BATCHES)]


class Swapped:
    """An engine over one store, as a replica has it."""

    def __init__(
        self,
        program: Program,
        device: Device,
        arranged: Arrangement,
        precision: torch.dtype,
        gradients: torch.dtype = torch.float32,
    ) -> None:
        self.store = HostStore.allocate(
            program.layout, precision, device.host_memory, gradients=gradients
        )
        generator = torch.Generator().manual_seed(0)
        self.store.master.copy_(torch.randn(len(self.store.master), generator=generator) * 0.3)
        self.store.round_master()
        slots = DeviceSlots.allocate(
            [program], device, precision, arranged, MICRO_BATCHES, gradients=gradients
        )
        modules = load(program, device.torch_device)
        self.engine = Engine(program, modules, self.store, slots, device)
        self.engine.loss_scale = 2.0**7 if precision == torch.float16 else 1.0

    def passes(self) -> list[tuple[list[float], Tensor]]:
        """Weights change between them, as after a step."""
        told = []
        for number in range(PASSES):
            self.store.gradients.zero_()
            losses = self.engine.run_pass(batches(number), seeds(number))
            self.engine.wait_added()
            told.append((losses, self.store.gradients.clone()))
            self.store.master.mul_(0.9)
            self.store.round_master()
            self.store.changed()
        return told


def plain(program: Program, swapped: Swapped, device: torch.device) -> list[object]:
    """Run the same sub-models one after the other, with all weights on the device."""
    modules, told = [make() for make in load(program, device)], list[object]()
    master = swapped.store.master.clone()
    for number in range(PASSES):
        on_device = [{n: v.to(device) for n, v in batch.items()} for batch in batches(number)]
        parameters = {
            name: program.layout.view(master, name).to(device) for name in program.layout.by_name
        }
        steps = run_layer_major(program, modules, parameters, on_device, seeds(number))
        gradients = torch.zeros(program.layout.total_elements)
        for name, gradient in steps.gradients.items():
            program.layout.view(gradients, name).copy_(gradient * SEQUENCES)
        told.append(([loss.item() for loss in steps.losses], gradients))
        master.mul_(0.9)
    return told


def assert_equal(found: Sequence[object], expected: Sequence[object]) -> None:
    for (losses, gradients), (wanted, sums) in zip(found, expected, strict=True):
        assert losses == wanted
        assert gradients.any()
        assert torch.equal(gradients, sums)


@pytest.mark.parametrize("arranged", ARRANGEMENTS)
@pytest.mark.parametrize("model", CHOSEN)
def test_in_float32_passes_are_plain_pytorch(model: str, arranged: str, device: Device) -> None:
    program = program_of(model, torch.float32)
    parts = frozenset(range(len(program.sub_models)))
    swapped = Swapped(program, device, ARRANGEMENTS[arranged](parts), torch.float32)
    expected = plain(program, swapped, device.torch_device)
    assert_equal(swapped.passes(), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", ["skipping", "gpt3, dropout"] if ON_A_GPU else CHOSEN)
def test_in_sixteen_bits_no_arrangement_changes_a_bit(
    model: str, precision: str, device: Device
) -> None:
    """`python -m benchmarks.swap.run --case exactness` compares bfloat16 with plain PyTorch."""
    numbers, gradients = PRECISIONS[precision]
    program = program_of(model, numbers)
    parts = frozenset(range(len(program.sub_models)))
    first = Swapped(program, device, Arrangement(), numbers, gradients).passes()
    for make in itertools.islice(ARRANGEMENTS.values(), 1, None):
        assert_equal(Swapped(program, device, make(parts), numbers, gradients).passes(), first)
