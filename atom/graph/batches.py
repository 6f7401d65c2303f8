"""Batches and outputs of any structure on one side, named tensors and one result on the other.

A graph takes named tensors and returns one tensor. A user's module takes a batch, which is any
nesting of tensors, and returns another nesting. The modules in this file translate between them.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Batch = Any
"""Tensors of one batch: a tensor, a tuple (inputs, …, targets), or a dictionary."""
Loss = Callable[[Any, Any], Any]
"""Loss function: (the module's output, targets) → mean loss of the batch, a scalar.

The targets are the last entry of a tuple, or the whole dictionary or tensor.
"""
Form = tuple[pytree.TreeSpec, tuple[tuple[torch.Size, torch.dtype], ...]]
"""Structure of a batch, and shape and dtype of each tensor in it."""


@dataclass(frozen=True)
class Entries:
    """Tensors of one batch by name, and the structure that contained them."""

    structure: pytree.TreeSpec
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, batch: Batch) -> "Entries":
        """Return the entries of a batch. Raises: TypeError if it contains anything but tensors."""
        found, structure = pytree.tree_flatten_with_path(_plain(batch))
        for path, value in found:
            if not isinstance(value, Tensor):
                what = f"the batch{pytree.keystr(path)} is {type(value).__name__}, not a tensor"
                raise TypeError(f"{what}: convert it, or drop it in collate_fn")
        return cls(structure, {f"batch_{n}": value for n, (_, value) in enumerate(found)})

    @property
    def shapes(self) -> Any:
        """The batch with the shape in place of each tensor, as a list."""
        return pytree.tree_unflatten([list(t.shape) for t in self.tensors.values()], self.structure)

    @property
    def form(self) -> Form:
        """Structure of the batch, and shape and dtype of each tensor."""
        return self.structure, tuple((each.shape, each.dtype) for each in self.tensors.values())


def batches_of(given: Batch, example: Entries) -> tuple[list[Entries], bool]:
    """Return the batches that a call got, and True if they came as a list.

    The batches of a list have the structure of the example. A single batch may have another one.

    Raises:
        TypeError: a batch contains anything but tensors.
        ValueError: the list is empty.
    """
    if isinstance(given, list | tuple):
        if not given:
            raise ValueError("no batch: give at least one")
        structures = [pytree.tree_structure(_plain(each)) for each in (given, *given)]
        if structures[0] != example.structure == structures[1]:
            return [Entries.of(batch) for batch in given], True
    return [Entries.of(given)], False


def runs_of(batches: list[Entries], most: int) -> Iterator[list[Entries]]:
    """Yield consecutive batches of one form, at most `most` at once."""
    for _, run in groupby(batches, key=lambda each: each.form):
        alike = list(run)
        yield from (alike[start : start + most] for start in range(0, len(alike), most))


def _plain(value: Any) -> Any:
    """Return a batch in dictionaries and tuples, without entries that are None."""
    if isinstance(value, Mapping):
        names = sorted(value, key=str)
        return {name: _plain(value[name]) for name in names if value[name] is not None}
    return tuple(map(_plain, value)) if type(value) in (list, tuple) else value


class Packing:
    """Structure of a module's output, whose tensors are packed into one, byte by byte."""

    def packed(self, output: Any) -> Tensor:
        """Return the output as one tensor of bytes, and remember its structure.

        Raises:
            TypeError: the output contains something else than tensors and plain values.
        """
        self._leaves, self._structure = pytree.tree_flatten(output)
        for each in self._leaves:
            if not isinstance(each, Tensor | int | float | str | None):
                raise TypeError(f"the module's output contains {type(each).__name__}, not a tensor")
        flat = [each.detach().reshape(-1) for each in self._leaves if isinstance(each, Tensor)]
        return torch.cat([each.view(torch.uint8) for each in flat])

    def unpacked(self, packed: Tensor) -> Any:
        """Return the output that `packed` holds."""
        sizes = [each.nbytes if isinstance(each, Tensor) else 0 for each in self._leaves]
        pieces = zip(self._leaves, torch.split(packed, sizes), strict=True)
        leaves = [
            piece.clone().view(leaf.dtype).view(leaf.shape) if isinstance(leaf, Tensor) else leaf
            for leaf, piece in pieces
        ]
        return pytree.tree_unflatten(leaves, self._structure)


class Whole(nn.Module):
    """Module that runs another one on a batch, given as named tensors, up to the loss."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        entries: Entries,
        packing: Packing | None = None,
    ) -> None:
        """Wrap a module.

        Args:
            model: the module.
            loss: loss function, which takes the last entry of a tuple as targets; None: all of the
                batch is input, and the module returns its loss.
            entries: batch with the structure of all batches.
            packing: return the module's output, packed by it; None: return the loss.

        Raises:
            TypeError: a dictionary has an entry that nothing takes.
        """
        super().__init__()
        if loss is None and packing is None and isinstance(entries.shapes, dict):
            inspect.signature(model.forward).bind_partial(**entries.shapes)
        self.name_in_errors = type(model).__name__ + (" with its loss" if loss else "")
        self.model, self.loss, self._packing = model, loss, packing
        self._structure, self._names = entries.structure, tuple(entries.tensors)

    def forward(self, **tensors: Tensor) -> Any:
        batch = pytree.tree_unflatten([tensors[name] for name in self._names], self._structure)
        inputs, targets = batch, batch
        if isinstance(batch, tuple) and self.loss is not None:
            *inputs, targets = batch
            inputs = inputs[0] if len(inputs) == 1 else tuple(inputs)
        output = self._output(inputs)
        if self._packing is not None:
            return self._packing.packed(output)
        if self.loss is not None:
            return self.loss(output, targets)
        if isinstance(output, Mapping):
            return output["loss"]
        return output[0] if isinstance(output, tuple) else output

    def _output(self, inputs: Any) -> Any:
        if not isinstance(inputs, dict):
            return self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        takes = inspect.signature(self.model.forward).parameters
        every = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        # Entries that forward does not name are for the loss.
        return self.model(**{n: inputs[n] for n in inputs if every or n in takes})
