"""A step where the optimizer's state lies in parts: aside, by who sums a part's gradient; in place,
by everybody, once it is decided.

Both are `Optimizer.update` on stretches of the same elements, and each element's update depends on
nothing but itself. So their bits are those of a step on an undivided state.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.clipping import BLOCK_ELEMENTS
from atom.optim.gradients import FlatNumbers
from atom.optim.optimizer import PIECE_ELEMENTS, Optimizer, Part, StepTerms
from atom.swap.held_state import StateParts
from atom.swap.host_store import WORKING, HostStore
from atom.swap.state_form import WEIGHTS, StateForm


def state_parts(layout: ParameterLayout) -> StateParts:
    """Of the trained elements: whole blocks of the gradient's norm, so that who has a part's mean
    can sum its squares in the order that `atom.optim.clipping` defines."""
    return StateParts(layout.trained_elements, BLOCK_ELEMENTS)


def divides(optimizer: Optimizer, layout: ParameterLayout, form: StateForm) -> bool:
    """Can its state lie in parts? It has some, and each element a number of its own in all of
    it."""
    kept = [
        (spec, tensor) for spec in layout.trained for tensor in optimizer.state(spec, form).values()
    ]
    own = (tensor.block == 1 and tensor.shape == spec.shape for spec, tensor in kept)
    return optimizer.elementwise and bool(kept) and all(own)


def stretches_of(
    optimizer: Optimizer, store: HostStore, part: int, arenas: Mapping[str, Tensor]
) -> Iterator[Part]:
    """The part's stretches, in the order of elements. `arenas`: `HostStore.arenas_of` it, or others
    like them. If it is not held, the stretches have neither state nor master weights."""
    assert store.held is not None
    first, end = store.held.parts.range(part)
    for spec in store.layout.trained:
        begin, stop = max(spec.offset, first), min(spec.offset + spec.numel, end)
        for start in range(begin, stop, PIECE_ELEMENTS):
            upto = min(start + PIECE_ELEMENTS, stop)
            shape = spec.shape if upto - start == spec.numel else (upto - start,)
            views = {
                n: each[start - first : upto - first].view(shape) for n, each in arenas.items()
            }
            state = {
                name: views[name] for name in optimizer.state(spec, store.form) if name in views
            }
            stored = {name: views[name] for name in views if name in (*WEIGHTS, WORKING)}
            yield Part(spec, start, upto, state, stored)


@torch.no_grad()
def step_aside(
    optimizer: Optimizer,
    store: HostStore,
    part: int,
    mean: FlatNumbers,
    terms: StepTerms,
    aside: Mapping[str, Tensor],
) -> None:
    """Takes the step of a part on copies: of what is held of it, or, if it is not held, of what it
    is where it begins anew. `mean`: of all elements; read where the part is. `aside`: room for the
    copies, flat tensors like `HostStore.arenas_of` a held part."""
    assert store.held is not None
    arenas = store.arenas_of(part)
    if part not in store.held.held:
        arenas |= store.renewed(part)
    for name, arena in arenas.items():
        aside[name].copy_(arena)
    for stretch in stretches_of(optimizer, store, part, aside):
        optimizer.update(stretch, stretch.of(mean), terms)


def install(optimizer: Optimizer, stretch: Part, decided: Tensor, terms: StepTerms) -> None:
    """Takes the decided step of a stretch in place. `decided`: its mean gradient, if the part is
    held; else what is to be loaded of it."""
    if stretch.state or len(stretch.stored) > 1:
        optimizer.update(stretch, decided, terms)
        return
    [loaded] = stretch.stored.values()
    loaded.copy_(decided)


class PartsNumbers:
    """`FlatNumbers` of parts that lie apart; each slice is within one of them. A part's mean, or
    what is loaded of it."""

    dtype = torch.float32

    def __init__(self, parts: StateParts, numbers: Mapping[int, FlatNumbers]) -> None:
        self._parts, self._numbers = parts, numbers

    def numel(self) -> int:
        return self._parts.elements

    def __getitem__(self, elements: slice) -> Tensor:
        [(part, start, stop)] = self._parts.within(elements.start, elements.stop)
        first = self._parts.range(part)[0]
        return self._numbers[part][start - first : stop - first]
