"""AdamW on the host, over flat arenas: PyTorch's fused kernel on aligned pieces.

The result is bit-equal to `torch.optim.AdamW(fused=True)` on the plain module, and does not depend
on the number of threads: pieces begin at multiples of sixteen elements, where the kernel's vectors
begin too. (It does depend on the instruction set in one case: a CPU without fused multiply-add.)
"""

from collections.abc import Callable, Iterator, Sequence
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
class Piece:
    """What is updated at a time: elements [start, stop) of every arena, all of one parameter."""

    start: int
    stop: int
    decays: bool


class Step:
    """One optimizer step under way: a list of pieces, and which of them are done.

    Pieces lie in ascending order of their place in the arenas, which is the order of first use:
    whoever updates them in this order serves the next forward earliest. Any thread may update any
    piece; two threads must not update the same one.
    """

    def __init__(
        self, number: int, pieces: Sequence[Piece], update_piece: Callable[[Piece], None]
    ) -> None:
        """Made by `AdamW.begin`."""
        self.number = number
        """Counts from 1."""
        self.pieces = pieces
        self._update_piece = update_piece
        self._done = bytearray(len(pieces))

    def update(self, index: int) -> None:
        """Updates `pieces[index]`, unless that is done. What it raises leaves it to be done."""
        if not self._done[index]:
            self._update_piece(self.pieces[index])
            self._done[index] = True

    def is_done(self, index: int) -> bool:
        return bool(self._done[index])

    @property
    def finished(self) -> bool:
        """Every piece is done: the store holds the next state."""
        return 0 not in self._done


class AdamW:
    """Updates a store in place, piece by piece.

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
        self._pieces = tuple(_pieces(store.layout, frozen))
        self._unfinished: Step | None = None

    @property
    def torn(self) -> bool:
        """A step was begun and not finished: some parameters are updated, others perhaps not."""
        return self._unfinished is not None

    def step(
        self, gradient: torch.Tensor, learning_rate: float, step: int, coefficient: float = 1.0
    ) -> None:
        """One update with `gradient` [total elements] float32 (a mean; not changed) times
        `coefficient`; `step` counts from 1 and corrects the moments' bias. Rewrites the working
        copy and declares loaded copies stale.

        Raises: ValueError for a gradient of another shape, or another step while torn.
        """
        begun = self.begin(gradient, learning_rate, step, coefficient)
        for index in range(len(begun.pieces)):
            begun.update(index)
        self.finish()

    def begin(
        self, gradient: torch.Tensor, learning_rate: float, step: int, coefficient: float = 1.0
    ) -> Step:
        """As `step`, but leaves the pieces to the caller, who updates every one of them and then
        calls `finish`. `gradient` must stay as it is until then. Begun again while torn, with the
        same arguments, it gives the unfinished step.

        Declares loaded copies stale now: what is loaded later must be of finished pieces.

        Raises: as `step`.
        """
        self._check(gradient, step)
        if self._unfinished is None:
            self._store.changed()

            def update(piece: Piece) -> None:
                self._update(piece, gradient, learning_rate, step, coefficient)

            self._unfinished = Step(step, self._pieces, update)
        return self._unfinished

    def finish(self) -> None:
        """Ends the step begun, whose pieces are all done, and lets go of its gradient."""
        assert self._unfinished is not None
        assert self._unfinished.finished
        self._unfinished = None

    def discard_unfinished(self) -> None:
        """Forgets an interrupted step: the store has been filled from elsewhere."""
        self._unfinished = None

    def _check(self, gradient: torch.Tensor, step: int) -> None:
        if gradient.shape != self._store.master.shape or gradient.dtype != torch.float32:
            raise ValueError(f"a gradient of {gradient.shape}, {gradient.dtype} does not fit")
        if self._unfinished is not None and self._unfinished.number != step:
            raise ValueError(f"step {self._unfinished.number} was interrupted; finish it first")

    @torch.no_grad()
    def _update(
        self, piece: Piece, gradient: torch.Tensor, rate: float, step: int, coefficient: float
    ) -> None:
        store, where = self._store, slice(piece.start, piece.stop)
        adamw(
            [store.master[where]],
            [gradient[where] * coefficient],
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


def _pieces(layout: ParameterLayout, frozen: frozenset[str]) -> Iterator[Piece]:
    for spec in layout.specs:
        if spec.name in frozen:
            continue
        stop = spec.offset + spec.numel
        for start in range(spec.offset, stop, PIECE_ELEMENTS):
            end = min(start + PIECE_ELEMENTS, stop)
            yield Piece(start, end, decays=len(spec.shape) >= 2)
