"""Why a model is refused: every reason in one table; and where in the user's code it lies."""

import enum
import os
import sysconfig
import traceback

import torch
from torch import nn

from atom.base.errors import ModelError


class Refusal(enum.Enum):
    """What is in the way, and what to do about it."""

    BATCH = (
        "the batch does not fit {model}.forward: {error}",
        "give a tensor for every argument; leave out what is none, or supply it from a wrapper",
    )
    RETURNS = (
        "{model}.forward returns {what}, not the loss alone",
        "return the mean loss of the micro-batch as one floating-point scalar with a gradient",
    )
    DTYPES = (
        "of the parameters {kinds}; weights have one dtype of real floating-point numbers",
        "convert the model to one; hold complex numbers as real ones (torch.view_as_real)",
    )
    ACROSS_MEMORY = (
        "the parameter {name} is not contiguous; sub-models hold it contiguously, and other "
        "kernels would compute other last bits",
        "build it with .contiguous(), and without memory_format",
    )
    GRADIENT_HOOK = (
        "{what} has a gradient hook, which would never be called",
        "remove the hook, or change the gradient with a custom operator (torch.library.custom_op "
        "with register_autograd)",
    )
    CUSTOM_BACKWARD = (
        "the model uses {function}, an autograd.Function of PyTorch's own, or one that takes other "
        "things than tensors and numbers, or has the name of another one",
        "hand tensors and numbers to its apply; remove backward hooks of modules; checkpoint with "
        "use_reentrant=False",
    )
    RANDOMNESS = (
        "the model's forward draws random numbers with {generator}; tracing would freeze them to "
        "what was drawn once",
        "draw them with torch, from its default generator",
    )
    STATE = (
        "the model's forward changes {what} at every call; tracing would freeze it to what it was "
        "once",
        "keep it out of forward, or hand it in with the batch",
    )
    CHANGED_IN_PLACE = (
        "the model changes {what} in place, at {place}",
        "state that changes in forward would differ between peers: use a layer without running "
        "statistics (LayerNorm, GroupNorm), or freeze it",
    )
    NO_VALUES = (
        "the buffer {name} is on the meta device and has no values",
        "build it on the CPU, or compute it in forward",
    )
    HELD_ASIDE = (
        "the model's forward reads {name} from outside its modules, or as a parameter's data; "
        "tracing would freeze its values",
        "use it as an attribute of its module, not from a list or dictionary; "
        "parameter.detach() in place of its data",
    )
    LARGE = (
        "the buffer {name} has {size} bytes, all of them {total}; at most {most} are held beside "
        "the sub-models",
        "compute it in forward from sizes (torch.arange, torch.tril), or make it a parameter with "
        "requires_grad=False",
    )
    SPARSE = (
        "{what} is sparse; values and gradients lie in dense memory here",
        "write it with dense tensors, or with torch.gather and torch.scatter_add; leave "
        "sparse=True out",
    )
    GRADIENT_LOST = (
        "the value made at {place} has {found}: tracing lost a region, or where it comes from",
        "use torch.no_grad() around torch.autocast() and not inside it, make parameters in "
        "__init__, and leave torch.autograd.grad out of forward",
    )
    UNFAITHFUL = (
        "the model uses {what} at {place}, which cannot be traced faithfully",
        "write it with operations on whole batches that give tensors, without torch.vmap and "
        "torch.func; of nested regions only no_grad and autocast can be traced",
    )

    def error(self, **facts: object) -> ModelError:
        message, hint = self.value
        return ModelError(message.format(**facts), hint)


_DATA_DEPENDENT = (
    "the model's forward must not depend on values in tensors, only on their shapes "
    "(torch.where and masks keep shapes)"
)

_NAMES_ONLY_AN_OPERATOR = {"DataDependentOutputException", "DynamicOutputShapeException"}
"""Errors of torch whose whole text is the name of an inner operator."""

_TORCH, _PYTHON, _OURS = (
    os.path.join(folder, "")
    for folder in (
        os.path.dirname(torch.__file__),
        sysconfig.get_paths()["stdlib"],
        os.path.dirname(os.path.dirname(__file__)),
    )
)


def untraceable(what: object, error: BaseException, place: str = "") -> ModelError:
    """For what was raised while it was traced, at `place` or where the error says."""
    text = f"{what} cannot be traced{place or _place(error)}: {_reason(error)}"
    return ModelError(text, _hint(error))


def unrunnable(model: nn.Module, error: BaseException) -> ModelError:
    """For what was raised while the model itself was run."""
    return ModelError(
        f"{type(model).__name__} fails on this batch{_place(error)}: {_reason(error)}",
        "check that the model trains on this batch without Atom",
    )


def _place(error: BaseException) -> str:
    own = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    return f" at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""


def _reason(error: BaseException) -> str:
    if type(error).__name__ in _NAMES_ONLY_AN_OPERATOR:
        return "it depends on values in tensors"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _hint(error: BaseException) -> str:
    if "data-dependent" in str(error) or type(error).__name__ in _NAMES_ONLY_AN_OPERATOR:
        return _DATA_DEPENDENT
    if "in output" in str(error):
        return "return the loss alone, from a wrapper where needed (and use no cache)"
    return "check that the model runs on this batch and returns its scalar loss"


def _is_users(filename: str) -> bool:
    """Site packages lie within Python's folder: a model from one is the user's, torch is not."""
    in_python = filename.startswith(_PYTHON) and "-packages" not in filename
    return not in_python and not filename.startswith((_TORCH, _OURS, "<"))  # "<": no file
