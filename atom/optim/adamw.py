"""AdamW on the host, over flat arenas: PyTorch's fused kernel on aligned pieces.

The result is bit-equal to `torch.optim.AdamW(fused=True)` on the plain module, and does not depend
on the number of threads: pieces begin at multiples of sixteen elements, where the kernel's vectors
begin too. (It does depend on the instruction set in one case: a CPU without fused multiply-add.)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.optim.adamw import adamw

from atom.graph.ir import ALIGNMENT_ELEMENTS, ParameterLayout
from atom.swap.host_store import HostStore

PIECE_ELEMENTS = 2**20
"""Elements updated per call: the scaled gradient of one piece stays in cache."""
assert PIECE_ELEMENTS % ALIGNMENT_ELEMENTS == 0


@dataclass(frozen=True)
class AdamWSettings:
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """Applied to parameters of two or more dimensions only: not to biases and norms."""


@dataclass(frozen=True)
class _Piece:
    start: int
    stop: int
    decays: bool


class AdamW:
    """Updates a store in place. One thread.

    A step that an exception interrupted is finished by calling `step` again with the same
    arguments: pieces already updated are remembered and skipped. Until then the store is torn, and
    a step with another number is refused.
    """

    def __init__(
        self, store: HostStore, settings: AdamWSettings, frozen: frozenset[str] = frozenset()
    ) -> None:
        """`frozen` parameters, by layout name, are never updated."""
        self._store = store
        self._settings = settings
        self._pieces = list(_pieces(store.layout, frozen))
        self._scaled = torch.empty(min(PIECE_ELEMENTS, max(store.layout.total_elements, 1)))
        self._unfinished: int | None = None
        self._done = 0

    @property
    def torn(self) -> bool:
        """An interrupted step has updated some parameters and not others."""
        return self._unfinished is not None

    @torch.no_grad()
    def step(
        self, gradient: torch.Tensor, learning_rate: float, step: int, coefficient: float = 1.0
    ) -> None:
        """One update with `gradient` [total elements] float32 (a mean; not changed) times
        `coefficient`; `step` counts from 1 and corrects the moments' bias. Rewrites the working
        copy and declares loaded copies stale.

        Raises: ValueError for a gradient of another shape, or another step while torn.
        """
        self._begin(gradient, step)
        for piece in self._pieces[self._done :]:
            self._update(piece, gradient, learning_rate, step, coefficient)
            self._done += 1
        self._unfinished = None

    def discard_unfinished(self) -> None:
        """Forgets an interrupted step: the store has been filled from elsewhere."""
        self._unfinished = None

    def _begin(self, gradient: torch.Tensor, step: int) -> None:
        if gradient.shape != self._store.master.shape or gradient.dtype != torch.float32:
            raise ValueError(f"a gradient of {gradient.shape}, {gradient.dtype} does not fit")
        if self._unfinished is not None:
            if self._unfinished != step:
                raise ValueError(f"step {self._unfinished} was interrupted; finish it first")
            return
        self._unfinished, self._done = step, 0
        self._store.changed()

    def _update(
        self, piece: _Piece, gradient: torch.Tensor, rate: float, step: int, coefficient: float
    ) -> None:
        store, where = self._store, slice(piece.start, piece.stop)
        scaled = self._scaled[: piece.stop - piece.start]
        torch.mul(gradient[where], coefficient, out=scaled)
        adamw(
            [store.master[where]],
            [scaled],
            [store.exp_avg[where]],
            [store.exp_avg_sq[where]],
            [],
            [torch.tensor(float(step - 1))],
            fused=True,
            amsgrad=False,
            beta1=self._settings.betas[0],
            beta2=self._settings.betas[1],
            lr=rate,
            weight_decay=self._settings.weight_decay if piece.decays else 0.0,
            eps=self._settings.epsilon,
            maximize=False,
        )
        if store.working is not store.master:
            store.working[where].copy_(store.master[where])


def _pieces(layout: ParameterLayout, frozen: frozenset[str]) -> Iterator[_Piece]:
    for spec in layout.specs:
        if spec.name in frozen:
            continue
        stop = spec.offset + spec.numel
        for start in range(spec.offset, stop, PIECE_ELEMENTS):
            end = min(start + PIECE_ELEMENTS, stop)
            yield _Piece(start, end, decays=len(spec.shape) >= 2)
