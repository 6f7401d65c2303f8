"""What went wrong in the user's model, said in one line with the place in the user's code."""

import os
import re
import sysconfig
import traceback

import torch
from torch import fx, nn

from atom.base.errors import ModelError
from atom.graph.traced import source_line, with_nested

DATA_DEPENDENT = (
    "the model's forward must not depend on values in tensors, only on their shapes "
    "(torch.where and masks keep shapes)"
)

_NAMES_ONLY_AN_OPERATOR = {"DataDependentOutputException", "DynamicOutputShapeException"}
"""Errors of torch whose whole text is the name of an inner operator."""

_MEANT = re.compile(r"with fake tensors: .*: got \w+\((['\"])(.*)\1\)$", re.MULTILINE)
"""Within what torch says of a region (torch.cond) that failed: the error that is meant."""

_GENERATED = "<"
"""What names of code without a file begin with."""

_TORCH, _PYTHON, _OURS = (
    os.path.join(folder, "")
    for folder in (
        os.path.dirname(torch.__file__),
        sysconfig.get_paths()["stdlib"],
        os.path.dirname(os.path.dirname(__file__)),
    )
)


def untraceable(model: nn.Module, error: BaseException) -> ModelError:
    """For what was raised while the model was traced."""
    text = f"{type(model).__name__} cannot be traced{_place(error)}: {_reason(error)}"
    return ModelError(text, _hint(error))


def unrunnable(model: nn.Module, error: BaseException) -> ModelError:
    """For what was raised while the model itself was run."""
    return ModelError(
        f"{type(model).__name__} fails on this batch{_place(error)}: {_reason(error)}",
        "check that the model trains on this batch without Atom",
    )


def unknowable(node: fx.Node, error: Exception) -> ModelError:
    """For a call whose result cannot be foreseen from shapes."""
    return ModelError(
        f"{node.target} at {place_of(node)} cannot be traced: {_reason(error)}", _hint(error)
    )


def place_of(node: fx.Node) -> str:
    """ "file:line" of the user's code that made a call or, for a region, its first call."""
    return next(filter(None, map(source_line, with_nested(node))), node.name)


def _place(error: BaseException) -> str:
    own = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    return f" at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""


def _reason(error: BaseException) -> str:
    if type(error).__name__ in _NAMES_ONLY_AN_OPERATOR:
        return "it depends on values in tensors"
    if meant := _MEANT.search(str(error)):
        return meant[2]
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _hint(error: BaseException) -> str:
    if "data-dependent" in str(error) or type(error).__name__ in _NAMES_ONLY_AN_OPERATOR:
        return DATA_DEPENDENT
    if "in output" in str(error):
        return "return the loss alone, from a wrapper where needed (and use no cache)"
    return "check that the model runs on this batch and returns its scalar loss"


def _is_users(filename: str) -> bool:
    """Site packages lie within Python's folder: a model from one is the user's, torch is not."""
    in_python = filename.startswith(_PYTHON) and "-packages" not in filename
    return not in_python and not filename.startswith((_TORCH, _OURS, _GENERATED))
