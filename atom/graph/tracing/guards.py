"""What surrounds a model while it is traced: stand-ins for what it holds, and guards that turn
what would be silently wrong into a named refusal. Afterwards the model is as it was."""

import io
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator
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

_HELD_APART = {"_parameters", "_buffers", "_modules"}


@contextmanager
def replaced(owner: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Exchanges attributes of a module or class for a while, inherited ones by own ones."""
    own = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name in attributes:
            setattr(owner, name, own[name]) if name in own else delattr(owner, name)


@contextmanager
def mode_of_use(model: nn.Module, training: bool) -> Iterator[None]:
    """Traces as it is used: a model given in the other mode is switched, and switched back. Within
    a model that trains, modules that the user put in evaluation mode stay there.
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
    """Gradients on, autocast off: a caller's own regions are no part of the model."""
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield


@contextmanager
def stand_ins(model: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Fake CPU tensors for all parameters, so that a model on any device, `meta` included, gives
    the same graph and no weight is ever read; tied parameters stay tied. CPU copies of buffers.

    Raises: ModelError for a buffer without values.
    """
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise Refusal.NO_VALUES.error(name=name)
    held: list[Any] = [kept for m in model.modules() for kept in (m._parameters, m._buffers)]
    saved = [(kept, dict(kept)) for kept in held]
    fakes = {id(parameter): _fake(parameter, mode) for parameter in model.parameters()}
    try:
        for kept, content in saved:  # modules may share one of these
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
    """What a model is made of, looked at before it is run.

    Raises: ModelError naming the parameter.
    """
    for name, parameter in model.named_parameters():
        if not is_lazy(parameter) and not parameter.is_contiguous():
            raise Refusal.ACROSS_MEMORY.error(name=name)
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise Refusal.GRADIENT_HOOK.error(what=f"the parameter {name}")


@contextmanager
def refuse_gradient_hooks() -> Iterator[None]:
    """Tracing loses a hook that forward puts on a tensor's gradient. Raises: ModelError."""

    def hook(*_: Any, **__: Any) -> Any:
        raise Refusal.GRADIENT_HOOK.error(what="a tensor (Tensor.register_hook in forward)")

    with replaced(torch.Tensor, {"register_hook": hook}):
        yield


@contextmanager
def refuse_python_randomness() -> Iterator[None]:
    """A number drawn by Python while tracing becomes a constant of the program: refuse it. The
    generators are left as they were.

    Raises: ModelError naming the generator.
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


@contextmanager
def marked_checkpoints() -> Iterator[None]:
    """While tracing: calls within a checkpointed region (the outermost, where regions are nested)
    carry its number. What the region does besides, keeping random states and hooks, is left out.
    """
    # Not `checkpoint` itself: users have it under names of their own. What it ends in is looked
    # up here, at every call.
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

    with replaced(torch.utils.checkpoint, {"_checkpoint_without_reentrant_generator": mark}):
        yield


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
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logger.setLevel(level)


# `transformers` computes some things in another way while it is exported than while it runs: it
# gives attention an explicit mask, so as not to freeze a decision, or does without an operator that
# other formats lack. Other kernels compute other last bits. Our shapes are static and our operators
# are PyTorch's: these guards let it decide as in eager. Without `transformers` there is nothing to
# guard.
_MASKS = "transformers.masking_utils"
_EXPORTING, _COMPILING = "is_torchdynamo_exporting", "is_torchdynamo_compiling"


@contextmanager
def decided_as_in_eager() -> Iterator[None]:
    """While tracing: the library is not told that it is exported. So a causal mask is left to the
    kernel. Position ids that the model made itself count up, so they pack no sequences; those that
    come with the batch might.

    Where it asks whether it is compiled as well, it does in an export what it does in eager.
    """

    def find_packed(find: Any, position_ids: torch.Tensor) -> Any:
        return find(position_ids) if _is_given(position_ids) else None

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
def masks_whatever_the_values() -> Iterator[None]:
    """While running eagerly, to compare with a traced program: a padding mask that masks nothing
    is applied like any other, because a program does not look at values.
    """
    as_it_is: Any = getattr(sys.modules.get(_MASKS), "is_tracing", None)

    def find_packed(find: Any, position_ids: torch.Tensor) -> Any:
        with _masks("is_tracing", lambda _, *given, **named: as_it_is(*given, **named)):
            return find(position_ids)

    with (
        _masks("is_tracing", lambda *_, **__: True),
        _masks("find_packed_sequence_indices", find_packed),
    ):
        yield


def _masks(name: str, instead: Callable[..., Any]) -> AbstractContextManager[None]:
    """Replaces a function, which is given first; versions of the library may lack it."""
    masks: Any = sys.modules.get(_MASKS)
    if not hasattr(masks, name):
        return nullcontext()
    return replaced(masks, {name: partial(instead, getattr(masks, name))})


def _is_given(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values depend on an input of the graph being traced."""
    mode = get_proxy_mode()
    slot = get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    if slot is None:
        return False
    nodes = [slot.proxy.node]
    seen = set(nodes)
    for node in nodes:
        fresh = [one for one in node.all_input_nodes if one not in seen]
        nodes += fresh
        seen.update(fresh)
    return any(node.op == "placeholder" for node in nodes)


@contextmanager
def python_state_restored(model: nn.Module) -> Iterator[None]:
    """Puts attributes of the model's modules back, and what lists, dictionaries and sets among them
    hold; attributes that were added go."""
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


def settled(model: nn.Module, run: Callable[[], ExportedProgram]) -> ExportedProgram:
    """`run` runs forward once and freezes what it read. What forward itself changes would have been
    different at the next call, unless it was a cache that settles: then it is run once more.
    (Dictionaries are caches more often than not: they are not watched.)

    Raises: ModelError naming a number, or the length of a list, that goes on changing.
    """
    after: dict[tuple[str, str], float] = {}
    what = ""
    for _ in range(2):
        before = _numbers(model)
        # As forward ends: export itself puts attributes back later.
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
        if key not in _HELD_APART and not key.endswith("_hooks") and "_hooks_" not in key
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
