"""Tracing of a module to a graph, by `torch.export` with guards against silently wrong results.

No weight is read and no memory is allocated, because fake tensors replace the parameters. So a
model of any size on the `meta` device gives the same graph as a model with weights. The shapes of
the example batch and the dtype of the parameters are part of the graph.
"""

import inspect
from collections.abc import Mapping

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from atom.base.errors import ModelError
from atom.graph.traced import Graph
from atom.graph.tracing import guards
from atom.graph.tracing.functions import functions_as_calls
from atom.graph.tracing.reading import read_exported
from atom.graph.tracing.refusals import Refusal, name_of, untraceable


def trace(
    model: nn.Module,
    example_batch: Mapping[str, torch.Tensor],
    training: bool = True,
    gives_loss: bool = True,
) -> Graph:
    """Return the graph of `model(**example_batch)`.

    Args:
        model: its forward returns the scalar mean loss. It may be on the `meta` device; it is not
            changed.
        example_batch: tensors by the names of forward's arguments; it is not changed. Optional
            arguments that are left out are `None` in the graph.
        training: trace in training mode; otherwise in evaluation mode (a loss without dropout).
        gives_loss: require a scalar loss with a gradient; otherwise forward may return any single
            tensor, for passes without backward.

    Raises:
        ModelError: the model cannot be traced faithfully; the message names the obstacle.
        MemoryError: this machine has too little memory.
    """
    batch = _in_forward_order(model, example_batch)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with guards.plain_context():
        guards.refuse_untraceable_parts(model)
        with guards.python_state_restored(model):
            exported = guards.settled_export(model, lambda: _export(model, batch, mode, training))
        return read_exported(model, batch, exported, mode, gives_loss)


def _in_forward_order(
    model: nn.Module, batch: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    try:
        for name, value in batch.items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{name} is {type(value).__name__}, not a tensor")
        bound = inspect.signature(model.forward).bind(**batch)
    except TypeError as error:
        raise Refusal.BATCH.error(model=name_of(model), error=error) from error
    ordered = [name for name in bound.arguments if name in batch]
    # Entries that forward takes as **kwargs come last, in the given order.
    return {name: batch[name] for name in [*ordered, *(n for n in batch if n not in ordered)]}


def _export(
    model: nn.Module, batch: Mapping[str, torch.Tensor], mode: FakeTensorMode, training: bool
) -> ExportedProgram:
    try:
        with (
            guards.temporary_mode(model, training),
            guards.fake_parameters(model, mode),
            guards.refuse_assigned_buffers(model),
            guards.refuse_python_randomness(),
            guards.refuse_gradient_hooks(),
            functions_as_calls(),
            guards.transformers_as_in_eager(),
            guards.marked_checkpoints(),
            guards.quiet(),
        ):
            # A new tensor per entry: export would merge a tensor with two names into one input.
            with mode:
                fakes = {
                    n: torch.empty(v.shape, dtype=v.dtype, device="cpu") for n, v in batch.items()
                }
            return torch.export.export(model, (), fakes, strict=False)
    except (ModelError, MemoryError):  # a machine without memory says nothing about the model
        raise
    # Tracing runs the user's forward: any exception of it or of torch is about the model.
    except (Exception, SystemExit) as error:
        raise untraceable(name_of(model), error) from error
