"""Reasons for refusing a model, in one table, and the search for the line of the user's code."""

import enum
import os
import sysconfig
import traceback

import torch
from torch import nn

from atom.base.errors import ModelError


class Refusal(enum.Enum):
    """Reason for refusing a model: templates of the message and of the hint."""

    BATCH = (
        "the batch does not fit {model}.forward: {error}",
        "give a tensor for every argument; leave out other values, or pass them from a wrapper",
    )
    RETURNS = (
        "{model} returns {what}, not the loss alone",
        "return the mean loss of the micro-batch as one floating-point scalar with a gradient",
    )
    DTYPES = (
        "the parameters have unsupported dtypes ({kinds}); they need one real floating-point dtype",
        "convert the model to one dtype; store complex numbers as real ones (torch.view_as_real)",
    )
    NOT_CONTIGUOUS = (
        "the parameter {name} is not contiguous; sub-models hold it contiguously, and then other "
        "kernels would compute other last bits",
        "build the parameter with .contiguous() and without memory_format",
    )
    GRADIENT_HOOK = (
        "{what} has a gradient hook, which would never be called",
        "remove the hook, or change the gradient with a custom operator (torch.library.custom_op "
        "with register_autograd)",
    )
    CUSTOM_BACKWARD = (
        "the model uses the autograd.Function {function}, which is PyTorch's own, takes more than "
        "tensors and numbers, uses other tensors than its arguments, or has the name of another",
        "pass only tensors and numbers to its apply; remove backward hooks of modules; checkpoint "
        "with use_reentrant=False",
    )
    RANDOMNESS = (
        "the model's forward draws random numbers with {generator}; tracing would make the drawn "
        "numbers constants of the program",
        "draw them with torch, from its default generator",
    )
    STATE = (
        "the model's forward changes {what} at every call; tracing would make its present value a "
        "constant of the program",
        "do not use it in forward, or pass it with the batch",
    )
    CHANGED_IN_PLACE = (
        "the model changes {what} in place, at {place}",
        "forward must not change state: use a layer without running statistics (LayerNorm, "
        "GroupNorm), or put this layer in evaluation mode: layer.eval() after model.train()",
    )
    NO_VALUES = (
        "the buffer {name} is on the meta device and has no values",
        "build it on the CPU, or compute it in forward",
    )
    OUTSIDE_MODULES = (
        "the model's forward reads {name} from outside its modules, or as a parameter's data; "
        "tracing would make its values constants of the program",
        "make it an attribute of its module instead of an entry of a list or dictionary; use "
        "parameter.detach() instead of its data",
    )
    LARGE = (
        "the buffer {name} has {size} bytes, and all buffers together {total}; the limit for all "
        "is {most}, because they stay on the device",
        "compute it in forward from sizes (torch.arange, torch.tril), or make it a parameter with "
        "requires_grad=False",
    )
    SPARSE = (
        "{what} is sparse; only dense values and gradients are supported",
        "use dense tensors, or torch.gather and torch.scatter_add; leave out sparse=True",
    )
    GRADIENT_LOST = (
        "the value made at {place} has {found}: tracing lost a region or the value's origin",
        "use torch.no_grad() around torch.autocast() and not inside it, make parameters in "
        "__init__, and do not call torch.autograd.grad in forward",
    )
    UNFAITHFUL = (
        "the model uses {what} at {place}, which cannot be traced faithfully",
        "use operations on whole batches that return tensors, without torch.vmap and torch.func; "
        "the only nested regions that can be traced are no_grad and autocast",
    )

    def error(self, **facts: object) -> ModelError:
        """Return the error; `facts` fill the fields of the message."""
        message, hint = self.value
        return ModelError(message.format(**facts), hint)


_DATA_DEPENDENT = (
    "the model's forward must not depend on values in tensors, only on their shapes "
    "(torch.where and masks keep shapes)"
)

_NAMES_ONLY_AN_OPERATOR = {"DataDependentOutputException", "DynamicOutputShapeException"}
"""Errors of torch whose text is only the name of an inner operator."""

_TORCH, _PYTHON, _OURS = (
    os.path.join(folder, "")
    for folder in (
        os.path.dirname(torch.__file__),
        sysconfig.get_paths()["stdlib"],
        os.path.dirname(os.path.dirname(__file__)),
    )
)


def name_of(model: nn.Module) -> str:
    """Return the name of a model in messages: of its class, or of what it wraps."""
    return str(getattr(model, "name_in_errors", type(model).__name__))


def untraceable(what: object, error: BaseException, place: str = "") -> ModelError:
    """Return the error for an exception that was raised during tracing.

    Args:
        what: the model or operator that was traced.
        error: the exception.
        place: " at FILE:LINE"; by default taken from the exception's traceback.
    """
    text = f"{what} cannot be traced{place or _place(error)}: {_reason(error)}"
    return ModelError(text, _hint(error))


def unrunnable(model: nn.Module, error: BaseException) -> ModelError:
    """Return the error for an exception that was raised while the model itself ran."""
    return ModelError(
        f"{name_of(model)} fails on this batch{_place(error)}: {_reason(error)}",
        "check that the model trains on this batch without Atom",
    )


def _place(error: BaseException) -> str:
    own = [f for f in traceback.extract_tb(error.__traceback__) if _is_user_file(f.filename)]
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


def _is_user_file(filename: str) -> bool:
    """Return True for files of the user.

    Installed packages, except torch, count as the user's, although they are in Python's folder.
    """
    in_python = filename.startswith(_PYTHON) and "-packages" not in filename
    return not in_python and not filename.startswith((_TORCH, _OURS, "<"))  # "<": no file
