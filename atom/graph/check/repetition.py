"""Does a computation repeat itself, and if not, which operator was the first to differ?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PERIOD = 8191
"""Weights of a fingerprint's elements: a prime, so that no usual extent repeats with it."""


def first_unrepeated(run: Callable[[], object]) -> tuple[str, bool]:
    """Runs twice. The first operator whose results differ, and whether its arguments were the
    same; ("", False) if all is alike.
    """
    first, second = _Recorder(), _Recorder()
    for recorder in (first, second):
        with recorder:
            run()
    for call, again in zip(first.calls, second.calls, strict=False):
        if call != again:
            return call[0], call[:2] == again[:2]
    return "", False


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operator that runs: its name, and fingerprints of its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, tuple[object, ...], tuple[object, ...]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments = _fingerprints((args, kwargs))
        result = func(*args, **(kwargs or {}))
        # Freshly made memory holds anything.
        if "empty" not in func._opname:
            self.calls.append((str(func), arguments, _fingerprints(result)))
        return result


def _fingerprints(values: object) -> tuple[object, ...]:
    return tuple(
        _fingerprint(leaf) if isinstance(leaf, torch.Tensor) else str(leaf)
        for leaf in tree_leaves(values)
    )


def _fingerprint(tensor: torch.Tensor) -> int:
    elements = tensor.detach().contiguous().reshape(-1).view(torch.uint8).long()
    places = torch.arange(elements.numel(), device=elements.device) % _PERIOD + 1
    return int((elements * places).sum())
