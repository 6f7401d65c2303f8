"""Feed that fetches the run's text from other peers, in the order in which this peer needs it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from atom.base.clock import Clock
from atom.daemon.model.texts import TOKENIZER, piece_of, tokenizer_pieces, validation_pieces
from atom.daemon.peer.box import Box
from atom.daemon.state_directory import write_atomically
from atom.models.data.samples import Piece, PiecesMissing, Samples
from atom.swarm.chain.commit import Head
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.state import arenas
from atom.swarm.state.arenas import bytes_of
from atom.swarm.state.fetch import Watch
from atom.swarm.state.piece_feed import STRETCH, FeedCallbacks, PieceFeed
from atom.swarm.state.piece_store import PieceStore
from atom.swarm.transport.limits import offend
from atom.swarm.transport.transport import Transport
from atom.training.storage.disk import DiskRoom

TEXT = "text"
_OWN_DRAWS = 256
"""Number of this peer's next draws whose pieces are fetched ahead."""


class RunText(PieceFeed):
    """Feed of the run's text, for a peer that has no copy of the text. Thread-safe."""

    def __init__(
        self,
        box: Box,
        samples: Samples,
        store: PieceStore,
        transport: Transport,
        room: DiskRoom,
        clock: Clock,
        on_ready: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare the feed without starting its thread.

        Args:
            samples: samples of the run.
            store: store of the text.
            room: reports a full disk.
            on_ready: called when samples that were missing have arrived.
            on_failure: gets the exception that ended the feed.
        """
        self._box, self._samples, self._room, self._clock = box, samples, room, clock
        self._offenders = offenders = transport.offenders
        self._head: Head | None = None
        self._tokenizer = tokenizer_pieces(store)
        """Pieces of the tokenizer; empty once they are written as a file for `atom export`."""
        self._validation = validation_pieces(samples)
        watch = Watch(
            events=box.events,
            on_lie=lambda peer, reason: offend(offenders, peer, reason, clock.now()),
        )
        callbacks = FeedCallbacks(watch, on_ready, partial(room.attempt, TEXT), on_failure)
        super().__init__(transport, store, self._order_of_need, callbacks)
        self.samples = replace(samples, need=self._need)
        """Samples of the run; using pieces that are missing raises PiecesMissing."""

    def figures(self) -> Mapping[str, int]:
        """Return the bytes of the text that are here, and the bytes of the whole text."""
        return {"kept_bytes": self._store.kept_bytes, "total_bytes": self._store.total_bytes}

    def look(self, leases: Mapping[str, Lease], head: Head | None) -> None:
        """Update the peers that can give pieces, and the head from which needs follow.

        Args:
            leases: all fresh leases, by peer id.
            head: our head; None while this peer is catching up.
        """
        there = {peer for peer, lease in leases.items() if lease.state is not PeerState.LEFT}
        self._head = head
        self.know(there - self._offenders.held(self._clock.now()))

    def _need(self, pieces: Collection[Piece]) -> None:
        """Raise PiecesMissing unless all pieces are here; request the missing ones first."""
        if not self.need([*map(piece_of, pieces)]):
            raise PiecesMissing("pieces of the text are being fetched")

    def _order_of_need(self) -> Iterator[arenas.Piece]:
        """Yield all pieces in the order of need.

        The tokenizer comes first, then our next draws, then the validation data, then everything
        from the run's cursor on.
        """
        head, samples = self._head, self._samples
        if head is None:
            return
        self._keep_tokenizer()
        yield from self._tokenizer
        dealt = head.cursor, head.members, self._box.me.peer_id
        draws = (samples.sampler.draw_position(*dealt, k) for k in range(_OWN_DRAWS))
        own = (piece for position in draws for piece in samples.pieces([position]))
        yield from islice(dict.fromkeys(map(piece_of, own)), STRETCH)
        yield from self._validation
        yield from map(piece_of, samples.pieces_from(head.cursor))

    def _keep_tokenizer(self) -> None:
        """Write the tokenizer to its file as soon as all its pieces are here."""
        if self._tokenizer and all(map(self._store.has, self._tokenizer)):
            raw = bytes(bytes_of(self._store.arenas[TOKENIZER]))
            if self._room.attempt(TEXT, lambda: write_atomically(self._box.state.tokenizer, raw)):
                self._tokenizer = []  # once is enough
