"""Context managers around tracing: they turn what would be silently wrong into a named refusal."""

import io
import logging
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from atom.base.errors import ModelError

_REGISTERED = "torch._library.autograd"
"""Where torch makes the functions of custom operators with a registered backward. Those stay one
call in the graph, and with it their backward."""


@contextmanager
def refuse_custom_backward() -> Iterator[None]:
    """Tracing inlines an `autograd.Function` as its forward and loses its backward: refuse it.

    Raises: ModelError naming the function.
    """
    # Not Function itself: `apply` of a subclass may have been taken before, as a plain function,
    # and that would pass by. What it ends in is looked up here, at every call.
    base: Any = torch.autograd.function._SingleLevelFunction
    own = base.__dict__.get("apply")

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__ == _REGISTERED:
            return super(base, function).apply(*args, **kwargs)
        raise ModelError(
            f"the model uses {function.__module__}.{function.__qualname__}, a custom "
            "autograd.Function; tracing would lose its backward",
            _instead_of(f"{function.__module__}.{function.__qualname__}"),
        )

    base.apply = classmethod(apply)
    try:
        yield
    finally:
        if own is None:
            del base.apply
        else:
            base.apply = own


_INSTEAD_OF = {
    "torch.utils.checkpoint.CheckpointFunction": (
        "leave checkpointing out (sub-models recompute anyway), or give use_reentrant=False"
    ),
    "torch.nn.modules._functions.BackwardHookFunction": "remove the modules' backward hooks",
}


def _instead_of(function: str) -> str:
    return _INSTEAD_OF.get(
        function,
        "write it with ordinary operations, or wrap it as a custom operator "
        "(torch.library.custom_op with register_autograd)",
    )


@contextmanager
def refuse_gradient_hooks() -> Iterator[None]:
    """A hook that forward puts on a tensor's gradient would be lost: refuse it.

    Raises: ModelError.
    """
    original = torch.Tensor.register_hook

    def refuse(*_: Any, **__: Any) -> Any:
        raise ModelError(
            "the model's forward calls Tensor.register_hook; tracing would lose the hook",
            "change the gradient with a custom operator (torch.library.custom_op with "
            "register_autograd), or leave it as it is",
        )

    torch.Tensor.register_hook = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.register_hook = original  # type: ignore[method-assign]


def refuse_untraceable_parts(model: nn.Module) -> None:
    """What a model is made of, looked at before it is run.

    Raises: ModelError naming the module or parameter.
    """
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"the module {path or type(model).__name__} is TorchScript, which cannot be traced",
                "use the Python module it was made from",
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"the parameter {name} has no shape yet", "run the model once before it is traced"
            )
        if not parameter.is_contiguous():
            raise ModelError(
                f"the parameter {name} is not contiguous; sub-models hold it contiguously, and "
                "other kernels would compute other last bits",
                "build it with .contiguous(), and without memory_format",
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ModelError(
                f"the parameter {name} has a gradient hook, which would never be called",
                "remove the hook",
            )


@contextmanager
def refuse_python_randomness() -> Iterator[None]:
    """A number drawn by Python while tracing becomes a constant of the program: refuse it. The
    generators are left as they were.

    Raises: ModelError naming the generator.
    """
    python, numpy_random = random.getstate(), sys.modules.get("numpy.random")
    numpy_state = numpy_random.get_state() if numpy_random else None
    before = _python_random_states()
    try:
        yield
        after = _python_random_states()
    finally:
        random.setstate(python)
        if numpy_random:
            numpy_random.set_state(numpy_state)
    for name, state in after.items():
        if name in before and before[name] != state:
            raise ModelError(
                f"the model's forward draws random numbers with {name}; "
                "tracing would freeze them to what was drawn once",
                "draw them with torch, from its default generator",
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Torch prints, warns and logs the whole graph when tracing fails; the error says it in one
    line."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _python_random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"the module random": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state()
        states["numpy.random"] = (state[1].tobytes(), *state[2:])
    return states
