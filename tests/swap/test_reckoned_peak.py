"""A plan's estimate of device memory is never below the real peak, nor far above it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from crossing_models import MODELS, batch
from live_bytes import allocations, peak_bytes
from test_offloaded_values import Rig, ends_of, everything, graph_of, program_of
from torch import Tensor, nn

from atom.graph.chain import Machine
from atom.graph.costs.seconds import typical_graph
from atom.graph.ir import Program
from atom.graph.layers import layer_ends, layers_of
from atom.graph.matrix_parts import in_parts
from atom.graph.program import build_program, load
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3, GPT3Config
from atom.plan.memory import Cut, Limits
from atom.swap.crossing import ALIGNMENT_BYTES, ring_slots
from atom.swap.device import Arrival, CpuDevice
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.running_pass import Handoff, Neighbours
from atom.swap.schedule import Arrangement


def reckoned(graph: Graph, ends: Sequence[int], count: int, remembered: bool = False) -> Cut:
    """Return the estimated cut with `count` micro-batches in a pass."""
    profile = typical_graph(graph, torch.device("cpu"), Machine(1e10, 1e10))
    chain = profile.chain
    if remembered:
        assert chain.remembering is not None
        chain = chain.remembering
    return Cut.of(chain, profile.link, Limits(0, 4, count), ends)


def reckoned_bytes(model: str, cut: str, arrangement: Arrangement, count: int) -> int:
    """All but slots and the ring, which are allocated once."""
    found = reckoned(graph_of(model), ends_of(model, cut), count)
    memory, shape = found.memory(arrangement), found.shape(arrangement)
    ring = ring_slots(count) * (shape.ring_slot_bytes if shape.moving else 0)
    return memory.activation_bytes + memory.kept_bytes + memory.boundary_bytes - ring


def real_bytes(model: str, cut: str, arrangement: Arrangement, count: int) -> int:
    rig = Rig(program_of(model, cut), arrangement)
    rig.run_pass(0, count)
    batches = [batch(c) for c in range(count)]
    with allocations() as sizes:
        rig.engine.run_pass(batches, range(count))
    return peak_bytes(sizes())


@pytest.mark.parametrize(
    ("cut", "moved", "kept"),
    [("layers", 0.0, 0.0), ("layers", 0.5, 0.0), ("1", 1.0, 0.0), ("layers", 0.0, 0.5)],
)
@pytest.mark.parametrize("model", MODELS)
def test_a_pass_stays_below_its_reckoning(model: str, cut: str, moved: float, kept: float) -> None:
    """Shares of the sub-models have offloaded values or keep their graphs."""
    count = len(program_of(model, cut).sub_models)
    stay = frozenset(range(int(kept * count)))
    arrangement = Arrangement(2, stay, stay, frozenset(range(int(moved * count))), 0)
    real = real_bytes(model, cut, arrangement, 3)
    assert real <= reckoned_bytes(model, cut, arrangement, 3) < 2.3 * real


class Apart(CpuDevice):
    """Device whose memory includes the tensors that it has taken from other devices."""

    def hand_over(
        self, size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]], to: torch.device
    ) -> Arrival:
        memory = torch.from_numpy(np.empty(size_bytes, np.uint8))
        for start, piece in pieces:
            memory[start : start + piece.numel()].copy_(piece)
        return memory.clone


def real_bytes_of_each(program: Program, arrangement: Arrangement, count: int) -> list[int]:
    """Return the real peak of each device of a group.

    Only allocations of this thread are seen, so the devices are measured one after the other.
    """
    devices = [Apart() for _ in range(arrangement.devices)]
    store = HostStore.allocate(program.layout)
    batches = [batch(c) for c in range(count)]
    engines = [
        Engine(
            program,
            load(program, "cpu"),
            store,
            DeviceSlots.allocate([program], device, torch.float32, arrangement, place=place),
            device,
            neighbours=Neighbours(program, place, devices),
        )
        for place, device in enumerate(devices)
    ]

    def peak_of(place: int) -> int:
        handoff = Handoff()

        def run(engine: Engine) -> None:
            try:
                engine.run_pass(batches, range(count), handoff=handoff)
            except BaseException:
                handoff.stop()
                raise

        with ThreadPoolExecutor(len(engines)) as others:
            running = [others.submit(run, e) for n, e in enumerate(engines) if n != place]
            with allocations() as sizes:
                run(engines[place])
            for each in running:
                each.result()
        return peak_bytes(sizes())

    found = [peak_of(place) for place in (*range(len(devices)), *range(len(devices)))]
    for device in devices:
        device.close()
    return found[len(devices) :]


@pytest.mark.parametrize(("model", "devices"), [*zip(MODELS, (2, 3, 2, 3), strict=True)])
def test_no_device_of_a_group_holds_more_than_is_reckoned(model: str, devices: int) -> None:
    """Alignment of tensors from other devices is not counted."""
    arrangement, program = Arrangement(devices=devices), program_of(model, "layers")
    taken = max(len(sub_model.inputs) for sub_model in program.sub_models)
    count = 4
    real = max(real_bytes_of_each(program, arrangement, count))
    least = real - count * taken * ALIGNMENT_BYTES
    assert least <= reckoned_bytes(model, "layers", arrangement, count) < 2.3 * real


@pytest.mark.parametrize(
    ("width", "vocabulary", "length", "remembered"),
    [(16, 500, 512, False), (16, 500, 512, True), (512, 8000, 384, False)],
    ids=["logits", "logits, remembered", "gradients of the head"],
)
def test_a_loss_in_chunks_stays_below_its_reckoning(
    width: int, vocabulary: int, length: int, remembered: bool
) -> None:
    """Chunks that are computed again in the backward, and chunks that are not. At the peak are a
    chunk's logits, or two chunks' gradients of the head and their sum."""
    config = GPT3Config(1, 2, width, sequence_tokens=length, vocabulary_size=vocabulary)
    generator, shape = torch.Generator().manual_seed(1), (2, length)
    names = "tokens", "targets"
    data = {n: torch.randint(vocabulary, shape, generator=generator) for n in names}
    traced = trace(GPT3(config), data)
    assert len(traced.recomputed) > 2
    program = build_program(traced.remembering() if remembered else traced)
    ends = layer_ends(layers_of(traced))
    memory = reckoned(traced, ends, 1, remembered).memory(Arrangement())
    rig = Rig(program, Arrangement())
    rig.engine.run_pass([data], [0])
    with allocations() as sizes:
        rig.engine.run_pass([data], [0])
    real = peak_bytes(sizes())
    assert real <= memory.activation_bytes + memory.boundary_bytes < 1.2 * real


class Summing(nn.Module):
    """Gradients from two products, of a matrix or of a view of it."""

    def __init__(self, of: str, width: int) -> None:
        super().__init__()
        self.of = of
        self.one, self.other = (nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        if self.of == "matrix":
            return torch.tanh(self.one(torch.tanh(self.one(hidden)))) + self.other(hidden)
        turned = self.one.weight.t()
        return hidden @ turned @ turned + self.other(hidden)


class Summed(nn.Module):
    def __init__(self, of: str) -> None:
        super().__init__()
        width = 512
        self.embed, self.head = nn.Embedding(50, width), nn.Linear(width, 50)
        self.layers = nn.ModuleList(Summing(of, width) for _ in range(2))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("of", ["matrix", "view"])
def test_a_sum_of_gradients_stays_below_its_reckoning(of: str) -> None:
    """The sum's memory is counted along with its addends and other results of the backward."""
    data = {name: torch.ones(4, 8, dtype=torch.int64) for name in ("tokens", "targets")}
    traced = trace(Summed(of), data)
    ends = layer_ends(layers_of(traced))
    memory = reckoned(traced, ends, 1).memory(Arrangement())
    rig = Rig(build_program(traced, ends), Arrangement())
    rig.engine.run_pass([data], [0])
    with allocations() as sizes:
        rig.engine.run_pass([data], [0])
    real = peak_bytes(sizes())
    assert real <= memory.activation_bytes + memory.boundary_bytes < 1.3 * real


def test_matrices_in_parts_stay_below_their_reckoning() -> None:
    """A sub-model per operation: the gradients of parts are views of all parts' together."""
    config = GPT3Config(1, 2, 64, sequence_tokens=256, vocabulary_size=300)
    data = {name: torch.ones(2, 256, dtype=torch.int64) for name in ("tokens", "targets")}
    matrices = "embedding.tokens.weight", "blocks.0.feed_forward.expand.weight"
    cut = in_parts(trace(GPT3(config), data), dict.fromkeys(matrices, 2))
    last = len(cut.calls)
    ends = [*(end for end in range(1, last) if end not in cut.forbidden_cuts), last]
    memory = reckoned(cut, ends, 1).memory(Arrangement())
    rig = Rig(build_program(cut, ends), Arrangement())
    rig.engine.run_pass([data], [0])
    with allocations() as sizes:
        rig.engine.run_pass([data], [0])
    assert peak_bytes(sizes()) <= memory.activation_bytes + memory.boundary_bytes


@pytest.mark.parametrize(
    ("model", "share"),
    [("translating", 0.4), ("masked", 0.6)],
)
def test_offloading_takes_micro_batches_off_the_device(model: str, share: float) -> None:
    """Less where skips are long: they stay until their last user has had them."""
    arrangement = everything(program_of(model, "layers"))
    each = real_bytes(model, "layers", Arrangement(), 3) - real_bytes(
        model, "layers", Arrangement(), 1
    )
    offloaded = real_bytes(model, "layers", arrangement, 3) - real_bytes(
        model, "layers", arrangement, 1
    )
    assert offloaded < share * each


def test_what_is_the_same_in_every_micro_batch_is_counted_once() -> None:
    graph = graph_of("masked")
    program = build_program(graph)
    shared = sum(program.values[name].size_bytes for name in program.shared)
    cuts = [reckoned(graph, ends_of("masked", "layers"), count) for count in (1, 2, 3)]
    assert sum(part.shared_bytes for part in cuts[0].pieces) == shared > 0
    one, two, three = (cut.memory(Arrangement()) for cut in cuts)
    each = two.boundary_bytes - one.boundary_bytes
    assert three.boundary_bytes - two.boundary_bytes == each
    assert one.boundary_bytes == each + shared
