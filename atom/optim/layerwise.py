"""LAMB and LARS for large batches: each matrix moves in proportion to its own norm.

For a parameter of two or more dimensions, with g the clipped gradient, λ the weight decay and r
AdamW's step without rate and decay:

    LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2):
        u = r + λ·w
        w = w - rate·(‖w‖ / ‖u‖)·u

    LARS (You et al. 2017, arXiv 1708.03888, algorithm 1), η = 0.001:
        m = µ·m + rate·(η·‖w‖ / (‖g‖ + λ·‖w‖))·(g + λ·w)
        w = w - m

The ratio is 1 if one of the two norms is zero. The scaling function φ of LAMB's paper is the
identity. Parameters of fewer dimensions (biases and gains of norms) take steps without ratio and
decay, as in the authors' code for BERT (`exclude_from_layer_adaptation`) and in NVIDIA's
(`FusedLAMB`, `use_nvlamb=False`).

The bits are the same on every machine: norms are added in a fixed order, and IEEE 754 defines the
rounding of every other operation. Therefore products and sums are separate operations. PyTorch's
combined ones (`alpha=`, `lerp`, `addcmul`) round once or twice, depending on the processor.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.adamw import AdamW
from atom.optim.clipping import norm_of_pieces
from atom.optim.optimizer import Optimizer, Part, StateTensor, StepTerms, stretches
from atom.swap.host_kernels import host_kernels
from atom.swap.host_store import WORKING, weights_of
from atom.swap.state_form import StateForm, round_to_bfloat16

MOMENTUM = "momentum"
LEAST_NORM = 1e-30  # smaller norms count as zero, so a float32 can hold a ratio
TRUST_COEFFICIENT = 0.001
PIECE_ELEMENTS = 2**18
"""Elements that are processed at a time, so that they stay in the cache.

The order in which squares are added depends on it, and so do the bits: it is part of the
definition.
"""


class LAMB(AdamW):
    """LAMB with AdamW's two moments for each weight.

    Parameters of fewer than two dimensions take AdamW's steps. A step needs 8 bytes of temporary
    memory for each weight of the largest parameter.
    """

    elementwise: ClassVar[bool] = False

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        if len(part.parameter.shape) < 2:
            super().update(part, gradient, step)
            return
        pieces = _pieces(part, gradient)
        moves = [self._move(piece, piece_gradient, step) for piece, piece_gradient in pieces]
        size = norm_of_pieces(weights_of(piece.stored) for piece, _ in pieces)
        move_size = norm_of_pieces(moves)
        ratio = 1.0 if min(size, move_size) < LEAST_NORM else size / move_size
        for (piece, _), move in zip(pieces, moves, strict=True):
            with piece.weights() as weights:
                weights.add_(move.mul_(step.learning_rate * ratio))

    def _move(self, piece: Part, gradient: Tensor, step: StepTerms) -> Tensor:
        """Return -u of one piece, float32 in new memory, and update the piece's moments.

        AdamW's kernel runs on a copy of the weights, with the decay factor -λ and a rate of 1,
        which gives -λ·w - r = -u.
        """
        copy = {name: each.clone() for name, each in piece.stored.items() if name != WORKING}
        on_copy, terms = replace(piece, stored=copy), replace(step, learning_rate=1.0)
        arguments = self._arguments(on_copy, gradient, terms)
        host_kernels().adamw(arguments, piece.stop - piece.start, piece.start, -self.weight_decay)
        return weights_of(copy)


class LARS(Optimizer):
    """LARS with one momentum for each weight; its decay µ is the first of the betas.

    The momentum is float32, or in the `half` form bfloat16, rounded to nearest when stored.
    """

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
        **_unused: float,
    ) -> None:
        self._momentum_decay, self._weight_decay = betas[0], weight_decay

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        dtype = torch.bfloat16 if form is StateForm.HALF else torch.float32
        return {MOMENTUM: StateTensor(parameter.shape, dtype)}

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        pieces = _pieces(part, gradient)
        rate, decay = step.learning_rate, 0.0
        if len(part.parameter.shape) >= 2:
            decay = self._weight_decay
            rate *= self._local_rate(pieces, step)
        for piece, piece_gradient in pieces:
            momentum = piece.state[MOMENTUM]
            with piece.weights() as weights:
                direction = step.clipped(piece_gradient).add_(weights * decay)
                moved = momentum.float().mul_(self._momentum_decay).add_(direction.mul_(rate))
                weights.sub_(moved)
            if momentum.dtype != moved.dtype:
                round_to_bfloat16(moved, momentum)

    def _local_rate(self, pieces: list[tuple[Part, Tensor]], step: StepTerms) -> float:
        size = norm_of_pieces(weights_of(piece.stored) for piece, _ in pieces)
        gradient = norm_of_pieces(step.clipped(piece_gradient) for _, piece_gradient in pieces)
        if min(size, gradient) < LEAST_NORM:
            return 1.0
        return TRUST_COEFFICIENT * size / (gradient + self._weight_decay * size)


def _pieces(part: Part, gradient: Tensor) -> list[tuple[Part, Tensor]]:
    """Cut a whole parameter and its gradient into flat pieces of `PIECE_ELEMENTS`."""
    flat, first = gradient.view(-1), part.start
    pieces = stretches(part, PIECE_ELEMENTS, dict.fromkeys(part.state, 1))
    return [(each, flat[each.start - first : each.stop - first]) for each in pieces]
