"""The optimizer's step on a thread of its own, under the pass that needs what it makes.

Pieces are updated in the order in which the next forward needs them, by several threads where
there is enough to do, and each may be read as soon as it and those before it are done
(`atom.swap.readiness`). The kernel releases the interpreter's lock, so the thread that launches
the pass is not held up. Nothing is guessed: the gradient and its norm are final before a step
begins.

The gradient may even be the arena that the next pass's gradients go to, as long as nobody clears
that arena: a sub-model's gradients leave after its backward, which came after its load, and that
load waited for every piece of the parameters whose gradients they are.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby

from torch import Tensor

from atom.base.clock import Clock
from atom.graph.ir import ParameterLayout, SubModel
from atom.optim.adamw import AdamW
from atom.optim.step import Step
from atom.swap.engine import Observer
from atom.swap.host_store import HostStore
from atom.swap.readiness import Readiness, StepFailed
from atom.swap.schedule import OptimizerStep


class Stepper:
    """Takes the steps of one store, one at a time.

    A step that broke off leaves the store torn, as one that an exception interrupted: `begin` with
    the same arguments goes on where it stopped. Calls come from one thread at a time, those to
    `wait` from any.
    """

    def __init__(
        self,
        store: HostStore,
        adamw: AdamW,
        sub_models: Sequence[SubModel],
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        """`observer` is told, from the thread that steps, of each of the `sub_models`'s share."""
        self._store = store
        self._adamw = adamw
        self._first_user = _first_user(sub_models, store.layout)
        self._clock = clock
        self._observer = observer
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def follow(self, sub_models: Sequence[SubModel]) -> None:
        """The passes' sub-models are others. Not while a step is under way."""
        self._first_user = _first_user(sub_models, self._store.layout)

    @property
    def torn(self) -> bool:
        """The last step broke off: some parameters are updated, others are not."""
        stepping = self._thread is not None and self._thread.is_alive()
        return not stepping and self._adamw.torn

    def begin(
        self, gradient: Tensor, learning_rate: float, step: int, coefficient: float = 1.0
    ) -> None:
        """Starts a step and returns; what was loaded before is stale from now on.

        `gradient` belongs to the stepper until `wait` returns or raises. For the rest see
        `AdamW.begin`. A step under way is waited for first.

        Raises: ValueError for a gradient that does not fit, or another step while torn.
        """
        self.rest()
        begun = self._adamw.begin(gradient, learning_rate, step, coefficient)
        readiness = Readiness([(piece.start, piece.stop) for piece in begun.pieces])
        thread = threading.Thread(target=self._run, args=(begun, readiness), name="atom-optimizer")
        self._failure = None
        thread.start()
        self._thread, self._store.readiness = thread, readiness

    def wait(self) -> None:
        """Returns when no step is under way and the store is whole. Raises: StepFailed."""
        self.rest()
        if self.torn:
            raise StepFailed(self._failure)

    def rest(self) -> None:
        """Returns when no step is under way, whatever became of it."""
        if self._thread is not None:
            self._thread.join()

    def discard(self) -> None:
        """Forgets a step that broke off: the store has been filled from elsewhere. Not while a
        step is under way."""
        self._adamw.discard_unfinished()
        self._store.readiness = None

    def _run(self, step: Step, readiness: Readiness) -> None:
        shares = groupby(range(len(step.pieces)), lambda i: self._first_user(step.pieces[i].start))
        try:
            with closing(step.update_all()) as done:
                for sub_model, pieces in shares:
                    self._take(done, readiness, sub_model, list(pieces))
            self._adamw.finish()
        except BaseException as failure:  # noqa: BLE001 - whoever waits for the step hears of it
            self._failure = failure
            readiness.fail(failure)

    def _take(
        self, done: Iterator[int], readiness: Readiness, sub_model: int, pieces: Sequence[int]
    ) -> None:
        """Passes on which pieces are done; the share begins when the one before it has ended."""
        started = self._clock.now()
        for piece in pieces:
            assert next(done) == piece
            if piece == pieces[-1] and self._observer is not None:  # before a pass can end with it
                self._observer(OptimizerStep(sub_model), started, self._clock.now())
            readiness.finish(piece)


def _first_user(sub_models: Sequence[SubModel], layout: ParameterLayout) -> Callable[[int], int]:
    """By arena element: the first sub-model that uses its parameter."""
    users: dict[str, int] = {}
    for sub_model in reversed(sub_models):
        users.update({name: sub_model.index for _, name in sub_model.parameters})
    starts = [spec.offset for spec in layout.specs]
    by_spec = [users[spec.name] for spec in layout.specs]
    return lambda element: by_spec[bisect_right(starts, element) - 1]
