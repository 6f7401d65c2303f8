"""Run a model for sampling on this machine's device.

The model is cut and swapped as in training, but without gradients and optimizer state.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from atom.base.errors import DeviceError, ModelError
from atom.base.units import format_bytes
from atom.daemon.model.sampled import Sampled
from atom.graph.costs.measured import measure_link
from atom.graph.costs.seconds import typical_graph
from atom.graph.ir import ParameterLayout
from atom.graph.program import load
from atom.graph.trace import trace
from atom.models.sampling import Ask, example_question, next_token_model
from atom.plan.choosing import Question, choose
from atom.plan.devices import free_host_bytes, open_devices, usable_device_bytes
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.voided import Cause, PassVoided, finite_answers

Progress = Callable[[int, int], None]
"""Callback (bytes done, bytes in total)."""


@contextmanager
def answering(
    sampled: Sampled, window: int, texts: int, kind: str, progress: Progress
) -> Iterator[tuple[Ask, int]]:
    """Load a model on a device, as a context manager that closes the device at the end.

    Args:
        sampled: Model and weights.
        window: Tokens of a question.
        texts: Most questions that are answered in one pass.
        kind: Device to use, as in the peer file: "cpu", for example.
        progress: Receives the progress of loading the weights.

    Yields:
        The function that answers questions, and the number of tokens in the model's vocabulary.

    Raises:
        SourceError: The model cannot be built, or gives no logits.
        ModelError: The model cannot be traced, or (in a pass) gives no finite numbers.
        DeviceError: The device or the host has too little memory.
        Exception: `sampled.value_of` cannot read the weights.
    """
    model = next_token_model(sampled.source, sampled.dtype)
    graph = trace(model, example_question(window), training=False, gives_loss=False)
    layout, vocabulary = graph.layout, graph.specs[graph.loss].shape[-1]
    (device,) = open_devices([kind], sampled.dtype)
    try:
        left_bytes = free_host_bytes(None) - layout.total_elements * sampled.dtype.itemsize
        if left_bytes < 0:
            takes = format_bytes(layout.total_elements * sampled.dtype.itemsize)
            raise DeviceError(f"the weights need {takes} of host memory", "end other programs")
        on = device.torch_device
        profile = typical_graph(graph, on, measure_link(on))
        device_bytes = usable_device_bytes([on], left_bytes)
        choice = choose(Question.of(graph, profile, device_bytes, texts, left_bytes))
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
    """Return a store with the weights in the precision in which the device loads them."""
    working, done = device.host_memory(layout.total_elements, sampled.dtype), 0
    for spec in layout.specs:
        progress(done * sampled.dtype.itemsize, working.nbytes)
        layout.view(working, spec.name).copy_(sampled.value_of(spec.name, spec.shape))
        done += spec.numel
    progress(working.nbytes, working.nbytes)
    return HostStore.of_weights(layout, working)


def _answered(engine: Engine, questions: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """Answer questions in one pass.

    Raises:
        ModelError: The answers are not finite.
        DeviceError: Memory ran out.
    """
    try:
        return finite_answers(engine.evaluate(questions))
    except PassVoided as void:
        if void.cause is Cause.MEMORY:
            what, hint = f"memory ran out: {void.detail}", "use fewer prompts, or --device cpu"
            raise DeviceError(what, hint) from void
        what, hint = "the model computes numbers that are not finite", "the training has diverged"
        raise ModelError(what, hint) from void
