"""Values between sub-models that wait on the host: the same bits, the bytes foreseen."""

import dataclasses
import functools
import gc
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from crossing_models import MODELS, TOKENS, WIDTH, Masked, batch
from engine_rig import LateDevice, assert_same, cancelled, opened
from live_bytes import allocations
from torch import Tensor, nn

from atom.graph.ir import Program, SubModel
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program, compile_program, load
from atom.graph.segment import Computed
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.swap import computation
from atom.swap.device import Copy, CpuDevice
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.schedule import (
    Arrangement,
    Shape,
    ValuesIn,
    ValuesOut,
    crossings_of,
    evaluation_pass,
    shape_of,
    training_pass,
)
from atom.swap.timeline import Recording
from tests.swap.schedule_check import check

MOST = 3


@functools.cache
def graph_of(model: str) -> Graph:
    return trace(MODELS[model](), batch(0))


@functools.cache
def ends_of(model: str, cut: str) -> Sequence[int]:
    """`cut`: "layers", or the seed of a random one between operations."""
    graph = graph_of(model)
    if cut == "layers":
        return layer_ends(layers_of(graph))
    pick = random.Random(int(cut))
    legal = [p for p in range(1, len(graph.calls)) if p not in graph.forbidden_cuts]
    ends = sorted(pick.sample(legal, pick.randint(4, min(14, len(legal)))))
    return [*ends, len(graph.calls)]


def program_of(model: str, cut: str) -> Program:
    return build_program(graph_of(model), ends=ends_of(model, cut))


def everything(program: Program, stay: Sequence[int] = ()) -> Arrangement:
    """All values offloaded; `stay`: kept sub-models."""
    every = frozenset(range(len(program.sub_models)))
    return Arrangement(2, frozenset(stay), frozenset(stay), every, least_offloaded_bytes=0)


class Rig:
    def __init__(
        self, program: Program, arrangement: Arrangement, device: CpuDevice | None = None
    ) -> None:
        self.program, self.device = program, device or opened()
        self.store = HostStore.allocate(program.layout)
        generator = torch.Generator().manual_seed(0)
        self.store.master.copy_(torch.randn(len(self.store.master), generator=generator) * 0.3)
        self.store.round_master()
        self.slots = DeviceSlots.allocate([program], self.device, torch.float32, arrangement, MOST)
        self.recording = Recording()
        parts = (self.store, self.slots, self.device)
        self.engine = Engine(program, load(program, "cpu"), *parts)
        self.engine.observer = self.recording

    def story(self, count: int) -> list[object]:
        """A pass, a cancelled one, a pass and an evaluation."""
        told: list[object] = [self.run_pass(1, count)]
        cancelled(self.engine, [batch(2)] * count, events=9 * count)
        told += [self.run_pass(3, count)]
        told += [self.engine.evaluate([batch(seed) for seed in range(count)])]
        return told

    def run_pass(self, seed: int, count: int) -> tuple[list[float], Tensor]:
        self.store.gradients.zero_()
        batches = [batch(seed + c) for c in range(count)]
        losses = self.engine.run_pass(batches, range(count))
        return losses, self.store.gradients.clone()


@functools.cache
def told_without(model: str, cut: str, count: int) -> list[object]:
    """Return the story of an engine that offloads nothing, which `test_engine` proves right."""
    return Rig(program_of(model, cut), Arrangement()).story(count)


@pytest.mark.parametrize(("cut", "count"), [("layers", 3), ("1", 1), ("2", 3)])
@pytest.mark.parametrize("model", MODELS)
def test_the_bits_are_the_same_however_late_copies_are(model: str, cut: str, count: int) -> None:
    program = program_of(model, cut)
    rig = Rig(program, everything(program), LateDevice())
    assert_same(rig.story(count), told_without(model, cut, count))
    moved = [s for s in rig.recording.spans if isinstance(s.event, ValuesIn | ValuesOut)]
    assert bool(moved) == any(shape_of(program, everything(program), count).offloads)
    assert moved or len(program.sub_models) < 5 or cut != "layers"


@pytest.mark.parametrize("model", MODELS)
def test_what_kept_graphs_hold_stays(model: str) -> None:
    program = program_of(model, "layers")
    middle = range(2, len(program.sub_models) - 2, 2)
    rig = Rig(program, everything(program, stay=middle))
    assert_same(rig.story(2), told_without(model, "layers", 2))


def moved_bytes(shape: Shape) -> int:
    """Per pass, each way."""
    return shape.micro_batches * sum(map(shape.offloaded_bytes, range(shape.sub_models)))


def test_small_values_stay_and_take_no_place() -> None:
    program = program_of("skipping", "layers")
    large = max(each.value_bytes for each in crossings_of(program))
    every = everything(program).offloaded
    rig = Rig(program, Arrangement(2, offloaded=every, least_offloaded_bytes=large + 1))
    assert_same(rig.run_pass(1, 2), told_without("skipping", "layers", 2)[0])
    assert not any(isinstance(each.event, ValuesOut) for each in rig.recording.spans)
    assert rig.slots.boundary.host.numel() == 0


class CountingDevice(CpuDevice):
    """Counts bytes of values that move."""

    def __init__(self) -> None:
        super().__init__()
        self.come = self.gone = 0

    def load(self, slot: int, copies: Sequence[Copy], *rest: Any) -> None:
        self.come += sum(s.nbytes for _, s in copies if s.dtype == torch.uint8)
        super().load(slot, copies, *rest)

    def values_out(self, key: int, copies: Sequence[Copy], *rest: Any) -> None:
        self.gone += sum(source.nbytes for _, source in copies)
        super().values_out(key, copies, *rest)


@pytest.mark.parametrize("which", ["every", "first", "random"])
@pytest.mark.parametrize("model", MODELS)
def test_any_boundaries_may_move_and_a_pass_moves_as_many_bytes_as_foreseen(
    model: str, which: str
) -> None:
    """The fewest that a plan can choose are the first ones."""
    program, micro_batches = program_of(model, "layers"), 2
    every = range(len(program.sub_models))
    some = {"every": every, "first": every[:2], "random": random.Random(1).sample(every, 5)}[which]
    arrangement = Arrangement(2, offloaded=frozenset(some), least_offloaded_bytes=0)
    device = CountingDevice()
    rig = Rig(program, arrangement, device)
    assert_same(rig.story(micro_batches), told_without(model, "layers", micro_batches))
    shape = shape_of(program, arrangement, micro_batches)
    check(training_pass(shape), shape)
    check(evaluation_pass(shape), shape, training=False)
    device.come = device.gone = 0
    rig.run_pass(1, micro_batches)
    come = gone = moved_bytes(shape)
    assert device.come == come
    # A view of a value that leaves is copied first, without the last row's gap.
    assert device.gone == gone or (model == "viewing" and 0.98 * gone < device.gone < gone)
    device.come = device.gone = 0
    rig.engine.evaluate([batch(seed) for seed in range(micro_batches)])
    assert (device.come, device.gone) == (0, 0)


def test_memory_does_not_grow_over_20_passes() -> None:
    program = program_of("viewing", "layers")
    rig = Rig(program, everything(program))
    alive = []
    for seed in range(20):
        rig.engine.run_pass([batch(seed % 3)], [seed])
        rig.recording.take()
        if seed in (1, 19):
            with allocations() as sizes:
                rig.engine.run_pass([batch(0)], [0])
            assert sum(sizes()) == 0, "all that a pass takes it gives back"
            alive.append(sum(issubclass(type(each), Tensor) for each in gc.get_objects()))
    assert alive[0] == alive[1]


def test_more_micro_batches_than_there_is_host_memory_for_are_refused() -> None:
    program = program_of("skipping", "layers")
    rig = Rig(program, everything(program))
    with pytest.raises(ValueError, match="host memory for only 3"):
        rig.run_pass(1, MOST + 1)
    assert_same(rig.run_pass(1, 2), told_without("skipping", "layers", 2)[0])


# --- values that are the same in every micro-batch ---

MICRO_BATCHES, EVERY = 3, frozenset(range(6))
ARRANGEMENTS = pytest.mark.parametrize(
    "arrangement",
    [Arrangement(), Arrangement(2, EVERY), Arrangement(2, EVERY, EVERY)],
    ids=["swapped", "resident", "kept"],
)


@torch.library.custom_op("atom_tests::noise", mutates_args=())
def noise(extent: int) -> Tensor:
    """Draws random numbers, and does not say so."""
    return torch.rand(extent)


@noise.register_fake
def _(extent: int) -> Tensor:
    return torch.empty(extent)


class Noisy(Masked):
    """Model whose table is random and whose mask is not."""

    def table(self) -> Tensor:
        return noise(WIDTH) * torch.ones(TOKENS, WIDTH)


@ARRANGEMENTS
def test_held_once_with_the_bits_of_one_each(arrangement: Arrangement) -> None:
    program = program_of("masked", "layers")
    each = dataclasses.replace(program, shared=frozenset())
    assert program.shared
    story = Rig(program, arrangement).story(MICRO_BATCHES)
    assert_same(story, Rig(each, arrangement).story(MICRO_BATCHES))
    assert len(set(story[0][0])) == MICRO_BATCHES


@ARRANGEMENTS
def test_every_micro_batch_is_given_the_same_memory(
    arrangement: Arrangement, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: defaultdict[str, list[Tensor]] = defaultdict(list)
    compute, program = computation.compute, program_of("masked", "layers")

    def watched(
        module: nn.Module, sub_model: SubModel, values: dict[str, Tensor], record: bool = True
    ) -> Computed:
        for name in sub_model.inputs:
            given[name].append(values[name])  # alive, so that no address is used twice
        return compute(module, sub_model, values, record)

    monkeypatch.setattr(computation, "compute", watched)
    Rig(program, arrangement).run_pass(1, MICRO_BATCHES)
    for name in given.keys() - program.batch_inputs:
        addresses = {value.data_ptr() for value in given[name]}
        assert len(addresses) == (1 if name in program.shared else MICRO_BATCHES)


def test_what_an_unknown_operator_makes_is_each_micro_batch_s_own() -> None:
    model = Noisy()
    program = compile_program(model, batch(0))
    assert program.shared, "the mask"
    assert not any(name.startswith(("noise", "mul")) for name in program.shared)
    rig = Rig(program, Arrangement())
    for name, value in model.named_parameters():
        rig.store.write_weights(name, value)
    rig.store.changed()
    losses, _ = rig.run_pass(0, MICRO_BATCHES)
    for seed, found in enumerate(losses):
        torch.manual_seed(seed)
        assert found == model(**batch(seed)).item()
