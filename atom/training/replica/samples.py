"""Which samples this peer trains on: dealt from what every peer of the round agrees on."""

from collections.abc import Iterator
from contextlib import contextmanager

from atom.base.errors import ModelError
from atom.models.data.samples import Samples
from atom.models.source import SourceError
from atom.swarm.chain.commit import Head
from atom.training.replica.worker import Batch


class Deck:
    """This peer's samples of the round that starts at a head. Used on the worker's thread."""

    def __init__(self, samples: Samples, peer_id: str) -> None:
        self._samples = samples
        self._peer_id = peer_id
        self._head: Head
        self._drawn = 0

    def deal(self, head: Head) -> None:
        """A new round: from the head's cursor on, in the order of the last round's members."""
        self._head, self._drawn = head, 0

    def next_batch(self, sequences: int) -> Batch:
        """The next `sequences` samples, as the model takes them. Raises: ModelError."""
        first, self._drawn = self._drawn, self._drawn + sequences
        dealt = (self._head.cursor, self._head.members, self._peer_id)
        places = range(first, self._drawn)
        positions = [self._samples.sampler.draw_position(*dealt, place) for place in places]
        with _as_model_errors():
            return self._samples.batch(positions)

    def put_back(self, sequences: int) -> None:
        """The latest `sequences` come again: nobody has trained on them."""
        self._drawn -= sequences

    def validation_batches(self, batches: int, sequences: int) -> list[Batch]:
        """The run's validation set, the same on every peer. Raises: ModelError."""
        with _as_model_errors():
            return [self._samples.validation_batch(i, sequences) for i in range(batches)]


@contextmanager
def _as_model_errors() -> Iterator[None]:
    """An own dataset's mistakes are its author's, and no fault of ours."""
    try:
        yield
    except SourceError as problem:
        raise ModelError(problem.message, problem.hint) from problem
