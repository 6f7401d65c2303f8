"""AdamW on the host, in one pass over flat arenas, by a compiled kernel: the same bits everywhere.

For each element, with every operation rounded to float32, f(a, b, c) = a·b + c rounded once, and
the scalars computed in float64 and rounded to float32 before they are used:

    g = gradient · coefficient
    m = f(1 - β₁, g - m, m)                 (β₁ ≤ ½: f((1 - β₁) - 1, g - m, g))
    v = f((1 - β₂)·g, g, v·β₂)
    w = w·(1 - rate·decay) + (-rate/(1 - β₁ᵗ) · m) / (√v / √(1 - β₂ᵗ) + ε)

This is what `torch.optim.AdamW(fused=True)` computes with AVX2 and AVX-512, bit for bit, but for
the elements that torch has left over at the end of a tensor, or of a thread's share of it, when
its vectors do not divide it: those it rounds in another way, and these here are treated as the
others. How work is cut into pieces and shared among threads does not show.

Moments that the store keeps in bfloat16 are used as computed and rounded at random when stored,
with 16 bits of noise each. The noise is a function of the seed, the step and the element's number
(`noise_of` in the kernel's source), so replicas agree.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal

import torch

from atom.optim.noise import noise_key
from atom.optim.step import Piece, Step, pieces_of
from atom.swap.host_kernels import (
    GRADIENT_FORMATS,
    MOMENT_FORMATS,
    NO_WORKING_COPY,
    SPLIT_MASTER,
    WHOLE_MASTER,
    WORKING_FORMATS,
    AdamWArguments,
    host_kernels,
)
from atom.swap.host_store import HostStore
from atom.swap.state_form import LOW, MASTER, MOMENTS

LEAST_THREADS = 8


@dataclass(frozen=True)
class AdamWSettings:
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """Applied to parameters of two or more dimensions only: not to biases and norms."""
    seed: int = 0
    """Of the noise that moments in sixteen bits are rounded with."""


class AdamW:
    """Updates a store in place, piece by piece.

    A step that an exception interrupted is finished by calling `step` again with the same
    arguments: pieces already updated are remembered and skipped. Until then the store is torn, and
    a step with another number is refused.
    """

    def __init__(
        self,
        store: HostStore,
        settings: AdamWSettings,
        frozen: frozenset[str] = frozenset(),
        threads: int | None = None,
    ) -> None:
        """`frozen` parameters, by layout name, are never updated. `threads`: that a large step is
        shared among; as `step_threads` says, unless given.

        Raises: MismatchError when the kernel has not been compiled.
        """
        self._kernels = host_kernels()
        self._threads = threads
        self._store = store
        self._settings = settings
        self._pieces = tuple(pieces_of(store.layout, frozen))
        self._unfinished: Step | None = None

    @property
    def torn(self) -> bool:
        """A step was begun and not finished: some parameters are updated, others perhaps not."""
        return self._unfinished is not None

    def step(
        self, gradient: torch.Tensor, learning_rate: float, step: int, coefficient: float = 1.0
    ) -> None:
        """One update with `gradient` [total elements], float32 or bfloat16 (a mean; not changed),
        times `coefficient`; `step` counts from 1 and corrects the moments' bias. Rewrites the
        working copy and declares loaded copies stale.

        Raises: ValueError for a gradient of another shape, or another step while torn.
        """
        for _ in self.begin(gradient, learning_rate, step, coefficient).update_all():
            pass
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
            numbers = self._arguments(gradient, learning_rate, step, coefficient)
            decay = 1 - learning_rate * self._settings.weight_decay
            update = self._updating(gradient, numbers, decay)
            threads = self._threads
            if threads is None:  # they may have become fewer
                threads = step_threads(torch.get_num_threads())
            self._unfinished = Step(step, self._pieces, update, threads)
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
        fits = (
            gradient.shape == self._store.gradients.shape
            and gradient.dtype in GRADIENT_FORMATS
            and gradient.is_contiguous()
            and gradient.device.type == "cpu"
        )
        if not fits:
            raise ValueError(f"a gradient of {gradient.shape}, {gradient.dtype} does not fit")
        if self._unfinished is not None and self._unfinished.number != step:
            raise ValueError(f"step {self._unfinished.number} was interrupted; finish it first")

    def _updating(
        self, gradient: torch.Tensor, arguments: AdamWArguments, decay: float
    ) -> Callable[[Piece, int], None]:
        """What updates a piece: it holds on to the gradient and to the kernel's arguments."""

        def update(piece: Piece, done: int, _held: torch.Tensor = gradient) -> None:
            share = decay if piece.decays else 1.0
            self._kernels.adamw(arguments, piece.start, piece.stop, share, done)

        return update

    def _arguments(
        self, gradient: torch.Tensor, rate: float, step: int, coefficient: float
    ) -> AdamWArguments:
        store, (beta1, beta2) = self._store, self._settings.betas
        splits, (mean, mean_square) = store.form.splits, (store.state[name] for name in MOMENTS)
        copied = not splits and store.working is not store.master
        return AdamWArguments(
            master=store.state[LOW if splits else MASTER].data_ptr(),
            working=store.working.data_ptr(),
            exp_avg=mean.data_ptr(),
            exp_avg_sq=mean_square.data_ptr(),
            gradient=gradient.data_ptr(),
            noise_key=noise_key(self._settings.seed, step),
            gradient_format=GRADIENT_FORMATS[gradient.dtype],
            master_format=SPLIT_MASTER if splits else WHOLE_MASTER,
            moment_format=MOMENT_FORMATS[mean.dtype],
            working_format=WORKING_FORMATS[store.working.dtype] if copied else NO_WORKING_COPY,
            coefficient=coefficient,
            beta2=beta2,
            one_minus_beta1=1 - beta1,
            one_minus_beta2=1 - beta2,
            root_of_correction2=math.sqrt(1 - power(beta2, step)),
            epsilon=self._settings.epsilon,
            minus_step_size=-rate / (1 - power(beta1, step)),
        )


def step_threads(most: int) -> int:
    """How many threads a step is shared among where PyTorch may use so many.

    It waits for memory, and a few cores ask for all that memory gives. Meanwhile others load,
    launch and add gradients: beyond eight threads, half of the cores are left to them.
    """
    return most if most <= LEAST_THREADS else max(LEAST_THREADS, most // 2)


def power(beta: float, step: int) -> float:
    """beta to the power of step, rounded once: mathematics libraries differ in the last bit of
    theirs, and replicas must not."""
    return float(Context(prec=50).power(Decimal(beta), step))
