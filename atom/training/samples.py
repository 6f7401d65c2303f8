"""Which samples this peer trains on: dealt from what every peer of the round agrees on."""

from collections.abc import Callable

from atom.models.data.dataset import Dataset
from atom.swarm.chain import Head
from atom.training.worker import Batch


class Deck:
    """This peer's samples of the round that starts at a head. Used on the worker's thread."""

    def __init__(self, dataset: Dataset, peer_id: str) -> None:
        self._dataset = dataset
        self._peer_id = peer_id
        self._drawn = 0
        self._position: Callable[[int], int] = lambda k: k

    def deal(self, head: Head) -> None:
        """A new round: from the head's cursor on, in the order of the last round's members."""
        sampler, peer_id = self._dataset.sampler, self._peer_id
        self._drawn = 0
        self._position = lambda k: sampler.draw_position(head.cursor, head.members, peer_id, k)

    def next_batch(self, sequences: int) -> Batch:
        """The next `sequences` samples: `tokens` and `targets`, int64 [sequences, S] each."""
        first, self._drawn = self._drawn, self._drawn + sequences
        positions = [self._position(k) for k in range(first, self._drawn)]
        tokens, targets = self._dataset.batch(positions)
        return {"tokens": tokens, "targets": targets}

    def validation_batches(self, batches: int, sequences: int) -> list[Batch]:
        """The run's validation set, the same on every peer."""
        pairs = [self._dataset.validation_batch(i, sequences) for i in range(batches)]
        return [{"tokens": tokens, "targets": targets} for tokens, targets in pairs]
