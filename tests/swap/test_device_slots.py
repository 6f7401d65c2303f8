import pytest
import torch
from hand_written_program import FINEST, WHOLE, compile_by_hand

from atom.graph.ir import ALIGNMENT_ELEMENTS as ALIGNED
from atom.graph.ir import ParameterLayout
from atom.graph.program import compile_program, load
from atom.models.gpt3 import GPT3, GPT3Config
from atom.swap.device import CpuDevice
from atom.swap.device_slots import DeviceSlots, Run, SlotLayout, bind
from atom.swap.host_store import HostStore
from atom.swap.schedule import Arrangement

LAYOUT = ParameterLayout.of({"a": (5,), "b": (4, ALIGNED), "c": (3,), "d": (ALIGNED,)})


def test_neighbours_travel_in_one_copy() -> None:
    layout = SlotLayout.of(("c", "b"), LAYOUT)
    assert layout.runs == (Run(arena_offset=ALIGNED, slot_offset=0, elements=5 * ALIGNED),)
    assert layout.offsets == {"b": 0, "c": 4 * ALIGNED}


def test_a_parameter_from_elsewhere_is_a_run_of_its_own() -> None:
    layout = SlotLayout.of(("c", "d", "a", "a"), LAYOUT)
    assert layout.runs == (Run(0, 0, ALIGNED), Run(5 * ALIGNED, ALIGNED, 2 * ALIGNED))
    assert layout.elements == 3 * ALIGNED, "used twice, loaded once"


def test_a_matrix_lies_as_a_tensor_of_its_own_would() -> None:
    """Offsets are multiples of 256 bytes, also in 16 bits, after parameters of any size."""
    layout = SlotLayout.of(("a", "b", "c", "d"), LAYOUT)
    assert {offset * torch.bfloat16.itemsize % 256 for offset in layout.offsets.values()} == {0}


def test_identical_blocks_in_one_slot_share_a_module() -> None:
    model = GPT3(GPT3Config(6, 1, 8, sequence_tokens=4, vocabulary_size=11))
    tokens = torch.zeros(1, 4, dtype=torch.long)
    program = compile_program(model, {"tokens": tokens, "targets": tokens})
    store = HostStore.allocate(program.layout)
    slots = DeviceSlots.allocate([program], CpuDevice(), torch.float32)
    bound = bind(program, load(program, "cpu"), slots, store.working_pieces)
    modules = {id(part.module) for part in bound}
    distinct = {(part.sub_model.layers, part.slot) for part in bound}
    assert len(modules) == len(distinct) < len(bound)


def test_slots_fit_the_largest_sub_model_of_any_program() -> None:
    fine, _ = compile_by_hand(FINEST, 0.0)
    whole, _ = compile_by_hand(WHOLE, 0.0)
    slots = DeviceSlots.allocate([fine, whole], CpuDevice(), torch.bfloat16, Arrangement(3))
    assert [slot.numel() for slot in slots.weights] == [whole.layout.total_elements] * 3
    assert [slot.numel() for slot in slots.gradients] == [whole.layout.total_elements] * 2


def test_other_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        HostStore.allocate(LAYOUT, torch.float64)
