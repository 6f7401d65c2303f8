"""Context managers around tracing: fake tensors for weights, and guards against wrong traces.

A guard turns a construct that tracing would get silently wrong into a named refusal. Afterwards the
model is unchanged.
"""

import dis
import inspect
import io
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from functools import partial
from itertools import count
from numbers import Number
from types import CodeType, FunctionType, NoneType
from typing import Any

import numpy
import torch
import torch.utils.checkpoint
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.fx.traceback import annotate, preserve_node_meta
from torch.nn.parameter import is_lazy

from atom.graph.traced import CHECKPOINT_MARK
from atom.graph.tracing.refusals import Refusal

_TENSOR_DICTIONARIES = {"_parameters", "_buffers", "_modules"}
"""Attributes of modules that are not restored as Python state."""


@contextmanager
def replaced(owner: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Replace attributes of a module or class temporarily; inherited ones are only hidden."""
    own = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name in attributes:
            setattr(owner, name, own[name]) if name in own else delattr(owner, name)


@contextmanager
def temporary_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put the model in training or evaluation mode temporarily.

    If the model is already in training mode, submodules that the user put in evaluation mode stay
    there.
    """
    modes = [(module, module.training) for module in model.modules()]
    if model.training != training or not training:
        model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def plain_context() -> Iterator[None]:
    """Enable gradients and disable autocast: the caller's regions do not belong to the model."""
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield


@contextmanager
def fake_parameters(model: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Replace parameters by fake CPU tensors and buffers by CPU copies, temporarily.

    So a model on any device, including `meta`, gives the same graph, and no weight is read. Tied
    parameters stay tied.

    Raises:
        ModelError: a buffer has no values.
    """
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise Refusal.NO_VALUES.error(name=name)
    held: list[Any] = [kept for m in model.modules() for kept in (m._parameters, m._buffers)]
    saved = [(kept, dict(kept)) for kept in held]
    fakes = {id(parameter): _fake(parameter, mode) for parameter in model.parameters()}
    try:
        for kept, content in saved:  # modules may share a dictionary
            for key, value in content.items():
                if value is not None:
                    fake = fakes.get(id(value))
                    kept[key] = value.detach().cpu() if fake is None else fake
        yield
    finally:
        for kept, content in saved:
            kept.update(content)


def _fake(parameter: nn.Parameter, mode: FakeTensorMode) -> nn.Parameter:
    with mode:
        shape, stride = parameter.shape, parameter.stride()
        stand_in = torch.empty_strided(shape, stride, dtype=parameter.dtype, device="cpu")
        return nn.Parameter(stand_in, requires_grad=parameter.requires_grad)


def refuse_untraceable_parts(model: nn.Module) -> None:
    """Raise an error if a parameter is not contiguous or has a gradient hook.

    Raises:
        ModelError: names the parameter.
    """
    for name, parameter in model.named_parameters():
        if not is_lazy(parameter) and not parameter.is_contiguous():
            raise Refusal.NOT_CONTIGUOUS.error(name=name)
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise Refusal.GRADIENT_HOOK.error(what=f"the parameter {name}")


def refuse_gradient_hooks() -> AbstractContextManager[None]:
    """Return a context that refuses `Tensor.register_hook`, because tracing loses such hooks.

    Raises:
        ModelError: forward registers a hook on a tensor's gradient.
    """

    def hook(*_: Any, **__: Any) -> Any:
        raise Refusal.GRADIENT_HOOK.error(what="a tensor (Tensor.register_hook in forward)")

    return replaced(torch.Tensor, {"register_hook": hook})


@contextmanager
def refuse_assigned_buffers(model: nn.Module) -> Iterator[None]:
    """Refuse a forward that assigns another tensor to a buffer, because tracing would lose it.

    A tensor that depends on sizes only, such as a cached table, may be assigned.

    Raises:
        ModelError: names the buffer.
    """
    before = dict[str, torch.Tensor]()

    def check(*_: Any) -> None:
        for name, buffer in model.named_buffers():
            if buffer is not before.get(name, buffer) and _depends_on_input(buffer):
                what, place = f"the buffer {name}", "its assignment in forward"
                raise Refusal.CHANGED_IN_PLACE.error(what=what, place=place)

    hooks = [
        model.register_forward_pre_hook(lambda *_: before.update(model.named_buffers())),
        model.register_forward_hook(check),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def refuse_python_randomness() -> Iterator[None]:
    """Refuse random numbers of Python and NumPy, which would become constants of the program.

    The states of the generators are restored.

    Raises:
        ModelError: forward drew a number; the message names the generator.
    """
    python: Any = random.getstate()
    arrays: Any = numpy.random.get_state()
    try:
        yield
        now: Any = numpy.random.get_state()
        drawn = {
            "the module random": random.getstate() != python,
            "numpy.random": now[2:] != arrays[2:] or bool((now[1] != arrays[1]).any()),
        }
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
    for generator in filter(drawn.__getitem__, drawn):
        raise Refusal.RANDOMNESS.error(generator=generator)


def marked_checkpoints() -> AbstractContextManager[None]:
    """Return a context that marks each traced call in a checkpointed region with its number.

    The outermost of nested regions counts. The other work of a region (saving random states,
    setting hooks) is skipped.
    """
    # Replacing `checkpoint` itself would miss users that imported it under another name. Each call
    # ends in this generator, which torch looks up every time.
    numbers = count()
    inside = False

    def mark(*_: Any, **__: Any) -> Iterator[None]:
        nonlocal inside
        if inside:
            yield
            return
        inside = True
        try:
            with preserve_node_meta(), annotate({CHECKPOINT_MARK: next(numbers)}):
                yield
        finally:
            inside = False

    return replaced(torch.utils.checkpoint, {"_checkpoint_without_reentrant_generator": mark})


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress output, warnings and logs of torch: it prints the whole graph when tracing fails.

    The error that Atom raises then contains the reason in one line.
    """
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logger.setLevel(level)


# `transformers` computes some results differently while it is exported: it passes an explicit mask
# to attention, in order not to freeze a decision, or avoids an operator that other formats lack.
# Then other kernels run and the last bits differ. Here shapes are static and operators are
# PyTorch's, so these guards make the library decide as in eager mode. They do nothing without
# `transformers`.
_MASKS = "transformers.masking_utils"
_EXPORTING, _COMPILING = "is_torchdynamo_exporting", "is_torchdynamo_compiling"


@contextmanager
def transformers_as_in_eager() -> Iterator[None]:
    """Hide from `transformers` that it is being exported.

    Then attention kernels apply causal masks themselves. Position ids that the model itself makes
    count up, so they never denote packed sequences; position ids from the batch may.

    Modules that also check for compilation are not changed: they already act as in eager mode while
    they are exported.
    """

    def find_packed(find: Any, position_ids: torch.Tensor) -> Any:
        return find(position_ids) if _depends_on_input(position_ids) else None

    asking = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.")
        and vars(module).keys() & {_EXPORTING, _COMPILING} == {_EXPORTING}
    ]
    with ExitStack() as stack:
        for module in asking:
            stack.enter_context(replaced(module, {_EXPORTING: lambda: False}))
        stack.enter_context(_masks("find_packed_sequence_indices", find_packed))
        yield


@contextmanager
def masks_always_applied() -> Iterator[None]:
    """Apply padding masks in eager mode even if they mask nothing.

    A traced program does not depend on values, so it always applies them. This makes a comparison
    with it possible.
    """
    original: Any = getattr(sys.modules.get(_MASKS), "is_tracing", None)

    def find_packed(find: Any, position_ids: torch.Tensor) -> Any:
        with _masks("is_tracing", lambda _, *given, **named: original(*given, **named)):
            return find(position_ids)

    with (
        _masks("is_tracing", lambda *_, **__: True),
        _masks("find_packed_sequence_indices", find_packed),
    ):
        yield


def _masks(name: str, instead: Callable[..., Any]) -> AbstractContextManager[None]:
    """Replace a masking function of `transformers` temporarily, if the library has it.

    Args:
        name: name of the function.
        instead: replacement; its first argument is the original function.
    """
    masks: Any = sys.modules.get(_MASKS)
    if not hasattr(masks, name):
        return nullcontext()
    return replaced(masks, {name: partial(instead, getattr(masks, name))})


def _depends_on_input(tensor: torch.Tensor) -> bool:
    """Return True if the values of a tensor depend on an input of the graph being traced."""
    mode = get_proxy_mode()
    slot = get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    if slot is None:
        return False
    nodes = [slot.proxy.node]
    seen = set(nodes)
    for node in nodes:
        unseen = [each for each in node.all_input_nodes if each not in seen]
        nodes += unseen
        seen.update(unseen)
    return any(node.op == "placeholder" for node in nodes)


@contextmanager
def python_state_restored(model: nn.Module) -> Iterator[None]:
    """Restore the Python attributes of all modules afterwards.

    The contents of lists, dictionaries and sets among them are restored too; added attributes are
    deleted.
    """
    saved = [(module, _attributes(module)) for module in model.modules()]
    contents: list[tuple[Any, Any]] = [
        (value, value.copy())
        for _, attributes in saved
        for value in attributes.values()
        if type(value) in (list, dict, set)
    ]
    try:
        yield
    finally:
        for module, attributes in saved:
            for key in _attributes(module).keys() - attributes.keys():
                del vars(module)[key]
            vars(module).update(attributes)
        for container, content in contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)


def settled_export(model: nn.Module, run: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Export a model, and refuse it if forward changes its own numbers at every call.

    An export runs forward once and freezes the attributes that it reads. If forward changes one of
    them, the next call would compute something else, unless the attribute is a cache that has
    settled. So after a change the export runs a second time, with the changed values. Dictionaries
    are not watched, because most of them are caches.

    Args:
        model: the model.
        run: the export.

    Raises:
        ModelError: a number or the length of a list changed again; the message names it.
    """
    after: dict[tuple[str, str], float] = {}
    what = ""
    for _ in range(2):
        before = _numbers(model)
        # Read when forward ends, because export itself restores attributes later.
        hook = model.register_forward_hook(lambda *_: after.update(_numbers(model)))
        try:
            result = run()
        finally:
            hook.remove()
        changed = {key: new for key, new in after.items() if before.get(key, new) != new}
        if not changed:
            return result
        (path, attribute), new = next(iter(changed.items()))
        what = f"{path}.{attribute}".lstrip(".") + f" ({before[path, attribute]!r} → {new!r})"
        for (path, attribute), new in changed.items():
            module = model.get_submodule(path)
            if attribute in vars(module):
                setattr(module, attribute, new)
    raise Refusal.STATE.error(what=what)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(module).items()
        if key not in _TENSOR_DICTIONARIES and not key.endswith("_hooks") and "_hooks_" not in key
    }


def _numbers(model: nn.Module) -> dict[tuple[str, str], float]:
    numbers: dict[tuple[str, str], float] = {}
    for path, module in model.named_modules():
        for key, value in _attributes(module).items():
            if isinstance(value, int | float) and key != "training":
                numbers[path, key] = value
            elif type(value) is list:
                numbers[path, f"len({key})"] = len(value)
    return numbers


def constants_of(modules: Iterable[nn.Module], loss: Any) -> dict[str, str]:
    """Return the Python values that a trace makes constants, as text, by words for their place.

    These are the numbers among the attributes of modules, and the numbers, texts and tensors that a
    loss function reads from globals, from its closure and from attributes and entries of those. No
    tensor is read: PyTorch counts its changes in place.

    Args:
        modules: modules that are traced.
        loss: the loss function; None: it is not traced.
    """
    found = {
        "the module has " + f"{path}.{attribute}".lstrip("."): repr(number)
        for module in modules
        for (path, attribute), number in _numbers(module).items()
    }
    for name, value in _read_by(loss).items():
        if isinstance(value, torch.Tensor) and not value.is_inference():
            value = f"tensor {id(value):x} after {value._version} changes"
        if isinstance(value, Number | str | NoneType):
            found[f"the loss reads {name}"] = repr(value)
    return found


def _read_by(loss: Any) -> dict[str, Any]:
    """Return what a function reads from globals, its closure and its object, and their entries.

    What it reads through a function that it calls is not found.
    """
    function = getattr(loss, "__func__", loss)
    if not isinstance(function, FunctionType):
        return {}
    codes, read = [function.__code__], set[tuple[str, Any]]()
    for code in codes:
        read |= {(each.opname, each.argval) for each in dis.get_instructions(code)}
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    found = {n: v for n, v in function.__globals__.items() if ("LOAD_GLOBAL", n) in read}
    found |= {"self": getattr(loss, "__self__", None), **inspect.getclosurevars(function).nonlocals}
    for name, value in list(found.items()):
        entries = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for key, entry in entries.items():
            if {("LOAD_ATTR", key), ("LOAD_CONST", key)} & read:
                found[f"{name}.{key}"] = entry
    return found
