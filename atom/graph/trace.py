"""From a module to a graph: `torch.export` in training mode, with its silent traps closed.

No weight is read and nothing is allocated: parameters are stood in for by fake tensors, so a
model on the `meta` device, of any size, gives the same graph as the real one. The shapes of the
example batch and the dtype of the parameters are part of the graph.
"""

import inspect
import io
import logging
import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from atom.base.errors import ModelError
from atom.graph.guards import (
    buffers_on_cpu,
    fake_parameters,
    refuse_custom_backward,
    refuse_python_randomness,
    training_mode,
)
from atom.graph.reading import read_exported
from atom.graph.traced import Graph


def trace(model: nn.Module, example_batch: Mapping[str, torch.Tensor]) -> Graph:
    """The graph of `model(**example_batch)`, which must return the scalar mean loss.

    The model and the batch are left as they were. Needs no weights: the model may be on `meta`.

    Raises: ModelError naming what cannot be traced faithfully.
    """
    batch = _in_forward_order(model, example_batch)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    exported = _export(model, batch, mode)
    return read_exported(model, batch, exported, mode)


def _in_forward_order(
    model: nn.Module, batch: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor):
            raise ModelError(
                f"the batch's entry {name} is {type(value).__name__}, not a tensor",
                "leave it out, or wrap the model in a module that supplies it",
            )
    try:
        bound = inspect.signature(model.forward).bind(**batch)
    except TypeError as error:
        raise ModelError(
            f"the batch does not fit {type(model).__name__}.forward: {error}",
            f"the batch has {', '.join(batch)}",
        ) from error
    ordered = [name for name in bound.arguments if name in batch]
    # Entries that forward takes as **kwargs come last, as given.
    return {name: batch[name] for name in [*ordered, *(n for n in batch if n not in ordered)]}


def _export(
    model: nn.Module, batch: Mapping[str, torch.Tensor], mode: FakeTensorMode
) -> ExportedProgram:
    with ExitStack() as stack:
        for guard in (
            training_mode(model),
            buffers_on_cpu(model),
            fake_parameters(model, mode),
            refuse_python_randomness(),
            refuse_custom_backward(),
            _quiet(),
        ):
            stack.enter_context(guard)
        try:
            return torch.export.export(model, (), _fake_batch(batch, mode), strict=False)
        except ModelError:
            raise
        # Tracing runs the user's forward: whatever that or torch raises is about the model.
        except Exception as error:
            raise _untraceable(model, error) from error


def _fake_batch(batch: Mapping[str, torch.Tensor], mode: FakeTensorMode) -> dict[str, torch.Tensor]:
    # A fresh tensor per entry: one tensor given under two names would be merged into one input.
    with mode:
        return {
            name: torch.empty(value.shape, dtype=value.dtype, device="cpu")
            for name, value in batch.items()
        }


def _untraceable(model: nn.Module, error: Exception) -> ModelError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    place = f" at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    hint = "the model's forward must not depend on values in tensors, only on their shapes"
    if "data-dependent" not in reason and "DataDependent" not in type(error).__name__:
        hint = "check that the model runs on this batch and returns its scalar loss"
    return ModelError(f"{type(model).__name__} cannot be traced{place}: {reason}", hint)


def _is_users(filename: str) -> bool:
    in_python = filename.startswith(os.path.dirname(os.__file__)) and "-packages" not in filename
    return not in_python and "/torch/" not in filename and filename != __file__


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch prints and logs the whole graph when tracing fails; the error says it in one line."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
