"""Which samples this peer trains on: dealt from what every peer of the round agrees on."""

from collections.abc import Callable

from atom.models.data.samples import Samples
from atom.swarm.chain import Head
from atom.training.worker import Batch


class Deck:
    """This peer's samples of the round that starts at a head. Used on the worker's thread."""

    def __init__(self, samples: Samples, peer_id: str) -> None:
        self._samples = samples
        self._peer_id = peer_id
        self._drawn = 0
        self._position: Callable[[int], int] = lambda k: k

    def deal(self, head: Head) -> None:
        """A new round: from the head's cursor on, in the order of the last round's members."""
        sampler, peer_id = self._samples.sampler, self._peer_id
        self._drawn = 0
        self._position = lambda k: sampler.draw_position(head.cursor, head.members, peer_id, k)

    def next_batch(self, sequences: int) -> Batch:
        """The next `sequences` samples, as the model takes them."""
        first, self._drawn = self._drawn, self._drawn + sequences
        return self._samples.batch([self._position(k) for k in range(first, self._drawn)])

    def validation_batches(self, batches: int, sequences: int) -> list[Batch]:
        """The run's validation set, the same on every peer."""
        return [self._samples.validation_batch(i, sequences) for i in range(batches)]
