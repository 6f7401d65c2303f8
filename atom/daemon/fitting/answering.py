"""A model that only answers, through this box's device: placed and streamed as one that is trained,
without gradients and without an optimizer's state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from atom.base.errors import DeviceError, ModelError
from atom.base.units import format_bytes
from atom.daemon.fitting.device_choice import free_host_bytes, question, usable_device_bytes
from atom.daemon.model.devices import open_devices
from atom.daemon.model.sampled import Sampled
from atom.graph.ir import ParameterLayout
from atom.graph.profile.measured import measure_link
from atom.graph.profile.seconds import typical_graph
from atom.graph.program import load
from atom.graph.trace import trace
from atom.models.sampling import Ask, example_question, next_token_model
from atom.placement.choosing import choose
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.voided import Cause, PassVoided, finite_answers

Progress = Callable[[int, int], None]


@contextmanager
def answering(
    sampled: Sampled, window: int, texts: int, kind: str, progress: Progress
) -> Iterator[tuple[Ask, int]]:
    """What answers questions of `window` tokens about so many `texts` at a time, and how many
    tokens it knows. `kind`: of device. `progress` hears of the weights' bytes.

    Raises: SourceError, ModelError; DeviceError for a device or a host that is too small; what the
    weights raise.
    """
    model = next_token_model(sampled.source, sampled.dtype)
    graph = trace(model, example_question(window), training=False, gives_loss=False)
    layout, vocabulary = graph.layout, graph.specs[graph.loss].shape[-1]
    (device,) = open_devices([kind], sampled.dtype)
    try:
        left_bytes = free_host_bytes(None) - layout.total_elements * sampled.dtype.itemsize
        if left_bytes < 0:
            takes = format_bytes(layout.total_elements * sampled.dtype.itemsize)
            raise DeviceError(f"the weights take {takes} of host memory", "end other programs")
        on = device.torch_device
        profile = typical_graph(graph, on, measure_link(on))
        device_bytes = usable_device_bytes([on], left_bytes)
        choice = choose(question(graph, profile, device_bytes, texts, left_bytes))
        program = choice.program(graph)
        store = _weights(sampled, layout, device, progress)
        slots = DeviceSlots.allocate([program], device, sampled.dtype, choice.arrangement, texts)
        engine = Engine(program, load(program, on), store, slots, device)
        yield partial(_answered, engine), vocabulary
    finally:
        device.close()


def _weights(
    sampled: Sampled, layout: ParameterLayout, device: Device, progress: Progress
) -> HostStore:
    """As the device loads them, and nothing else."""
    working, done = device.host_memory(layout.total_elements, sampled.dtype), 0
    for spec in layout.specs:
        progress(done * sampled.dtype.itemsize, working.nbytes)
        layout.view(working, spec.name).copy_(sampled.value_of(spec.name, spec.shape))
        done += spec.numel
    progress(working.nbytes, working.nbytes)
    return HostStore.of_weights(layout, working)


def _answered(engine: Engine, questions: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """Raises: ModelError for weights that give no numbers; DeviceError."""
    try:
        return finite_answers(engine.evaluate(questions))
    except PassVoided as void:
        if void.cause is Cause.MEMORY:
            what, hint = f"memory ran out: {void.detail}", "fewer prompts, or --device cpu"
            raise DeviceError(what, hint) from void
        what, hint = "the model gives no finite numbers", "its training has diverged"
        raise ModelError(what, hint) from void
