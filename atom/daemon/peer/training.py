"""Training of a peer: replica, worker, storage, round machine and its loop, and the run's text."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from atom.base.clock import Clock
from atom.daemon.model.round_zero import RoundZero
from atom.daemon.model.texts import (
    TOKENIZER,
    content_of,
    piece_of,
    tokenizer_pieces,
    validation_pieces,
)
from atom.daemon.peer.box import Box
from atom.daemon.peer.founding import Membership, PeerContext
from atom.daemon.peer.own_code import blob_name
from atom.daemon.state_directory import write_atomically
from atom.models.data.samples import Piece, PiecesMissing, Samples
from atom.swap.voided import PassVoided
from atom.swarm.addresses import RecentHead
from atom.swarm.chain.commit import Head
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.records.lease import Lease, PeerState, SampleText
from atom.swarm.state import arenas
from atom.swarm.state.arenas import bytes_of
from atom.swarm.state.blobs import Content, plain_bytes
from atom.swarm.state.fetch import Watch
from atom.swarm.state.piece_feed import STRETCH, FeedCallbacks, PieceFeed
from atom.swarm.state.piece_store import PieceStore, text_blob
from atom.swarm.transport.limits import offend
from atom.swarm.transport.transport import Transport
from atom.training.loop import Inbox, RoundLoop
from atom.training.recovery import PeerDonors, Recovery
from atom.training.replica.round_texts import RoundTexts
from atom.training.replica.worker import BatchLoader, Worker
from atom.training.round.events import CaughtUp, Phase
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundPatience, RoundTerms
from atom.training.round_executor import RoundExecutor
from atom.training.shared_state import FirstState, SharedState
from atom.training.storage.checkpoints import Checkpoints
from atom.training.storage.disk import DiskRoom
from atom.training.storage.results import Results
from atom.training.storage.run_storage import Journal, RunStorage

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


class Training:
    """Parts of a peer that train: they own the replica, and all files of the run's chain and state.

    Its methods are called on the main thread, unless they say otherwise.
    """

    def __init__(
        self,
        context: PeerContext,
        storage: RunStorage,
        transport: Transport,
        inbox: Inbox,
        pinned: RecentHead | None,
        on_change: Callable[[], None],
    ) -> None:
        """Build the parts in the order of their dependencies, and start none.

        Args:
            context: objects that all parts of the peer share.
            storage: chain, results and snapshots on disk.
            transport: connections to other peers.
            inbox: queue of the round loop, into which the transport puts messages.
            pinned: head that the join address names; None: the address names none.
            on_change: called when head, phase or counted sequences have changed, so that our lease
                should be renewed soon.
        """
        box, member, clock, report = context.box, context.member, context.clock, context.report
        run, replica = member.run, member.replica
        self._report, self._on_change, self._log = report, on_change, box.events
        self.terms = terms = round_terms(member, storage.results.codec)
        self.shared, recovery = recovery_of(context, transport, storage, pinned)
        self.text = None if member.text is None else RunText(
            box, member.samples, member.text, transport, storage.room, clock,
            lambda: self.worker.text_came(), report,
        )  # fmt: skip
        samples = member.samples if self.text is None else self.text.samples
        loader = BatchLoader(samples, box.me.peer_id, run.batch.micro_batch_sequences)
        tells = self._on_pass, self._on_void, report
        self.worker = worker = Worker(replica, loader, terms.global_batch, clock, *tells)
        texts = RoundTexts(member.prompts, replica, worker, clock, self._on_text)
        self.executor = RoundExecutor(
            self.shared, worker, recovery, transport, clock, box.events,
            Checkpoints(box.state.checkpoints, storage, box.peer.checkpoints),
            run, inbox.put, self._on_round_begun, texts.round_settled,
        )  # fmt: skip
        self.machine = RoundMachine(
            box.me, member.genesis, b"", terms, box.identity.sign, clock.now()
        )
        self.loop = RoundLoop(self.machine, self.executor, inbox, on_change, report)
        self._dropped_before: int | None = None
        """Counted sequences that were lost before the request to leave; None: no such request."""
        self.has_settled = False
        """True once a leaving peer has no uncommitted work left; no pass begins any more."""

    # ---- state, from any thread

    @property
    def sequences(self) -> int:
        """Number of sequences that we counted for the round that follows our head."""
        return self.shared.sequences_at(self.machine.head.digest)

    @property
    def has_dropped_work(self) -> bool:
        """True if counted work of ours was lost since the request to leave."""
        before = self._dropped_before
        return before is not None and self.executor.stats.sequences_dropped > before

    # ---- life

    def start(self, digest: bytes) -> None:
        """Start the threads.

        Args:
            digest: digest of the state from disk; empty if there is none.
        """
        self.worker.start()
        if (text := self.text) is not None:
            self.worker.gate.why_no_text = lambda: text.why_waiting
            text.start()
        head = self.shared.storage.journal.head
        self.loop.start(CaughtUp(head, digest) if digest else None)

    def leave(self) -> bool:
        """Begin no new work, and set `has_settled` once the counted work is committed. Thread-safe.

        Returns:
            True if the download of a state was stopped: only counted work would have needed it.
        """
        self._dropped_before = self.executor.stats.sequences_dropped
        # Submitted before `ends_with_round` is set: if no work is counted, no pass begins.
        self.worker.submit(self._settle)
        self.worker.ends_with_round = True
        self.loop.leave()
        needless = self.machine.phase is Phase.SYNCING and not self.shared.replica.sequences
        if needless:
            self.shared.stop.set()
        return needless

    def read(self, leases: Mapping[str, Lease]) -> None:
        """Give newly read leases to the feed of the text and to the round loop.

        Called on the directory's thread.

        Args:
            leases: leases of all peers that run our version, by peer id.
        """
        if self.text is not None:
            syncing = self.machine.phase is Phase.SYNCING
            self.text.look(leases, None if syncing else self.machine.head)
        self.loop.read(leases)

    def close(self) -> None:
        """End all parts, in an order in which each part can finish its work."""
        self.shared.stop.set()
        if self.text is not None:
            self.text.close()
        self.loop.close()
        self.worker.close()
        self.executor.close()

    # ---- callbacks of the parts, each on the thread of its part

    def _on_pass(self) -> None:
        self.executor.stats.pass_counted()
        self.loop.pass_ended()
        self._on_change()

    def _on_void(self, void: PassVoided) -> None:
        """Record a pass without result, with which gradients of earlier passes may be lost."""
        if self.executor.voided(void):
            self._report(f"{void.message}; {void.hint}")
        self._on_change()

    def _on_text(self, sample: SampleText, seconds: float) -> None:
        """Publish a text that the model wrote within `seconds`."""
        self.executor.stats.sample = sample
        self._log.emit("sample", round=sample.round, text=sample.text, seconds=round(seconds, 3))
        self._report(f"round {sample.round:,} writes, in {seconds:.1f} s: {sample.text}")

    def _on_round_begun(self) -> None:
        if self._dropped_before is not None:  # a leaving peer must not start new work
            self._settle()

    def _settle(self) -> None:
        """Hold a leaving peer if all its counted work is committed. On the worker's thread."""
        if not self.shared.replica.sequences:
            self.worker.hold("leaving")
            self.has_settled = True
            self._on_change()


def run_storage(box: Box, member: Membership) -> RunStorage:
    """Return the storage of chain, results and snapshots in the state directory.

    It also offers other peers the run's own code and its text, if the run has them.

    Raises:
        StorageError: the chain on disk is damaged, or belongs to another run.
    """
    codec = codec_named(member.run.swarm.codec)
    results = Results(box.state.results, member.replica.elements, codec)
    journal = Journal(box.state.chain, member.genesis)
    room = DiskRoom(box.state.root, box.events, box.console.note)
    given: dict[str, Content | PieceStore] = {}
    if member.code is not None:
        given[blob_name(member.run)] = plain_bytes(member.code.content)
    if (text := member.manifest.text) is not None:
        given[text_blob(text.digest)] = member.text or content_of(member.samples)
    keep = box.peer.state.snapshots
    return RunStorage(journal, results, box.state.snapshots, room, keep, given)


def round_terms(member: Membership, codec: Codec) -> RoundTerms:
    """Return the run's rules for rounds, as the round machine needs them."""
    run = member.run
    return RoundTerms(
        run.batch.global_sequences,
        last_round=run.run.rounds,
        branches=run.swarm.survivors == "branch",
        patience=RoundPatience(grace=run.swarm.grace_seconds),
        average_bytes=codec.wire_bytes(member.replica.elements),
        ring_possible=codec.fixed_size,
    )


def recovery_of(
    context: PeerContext, transport: Transport, storage: RunStorage, pinned: RecentHead | None
) -> tuple[SharedState, Recovery]:
    """Return the peer's state, and the part that fetches a state from other peers."""
    box, member, clock = context.box, context.member, context.clock
    donors = PeerDonors(
        transport,
        storage.results.usual_bytes,
        sum(arena.size_bytes for arena in member.replica.state_form.values()),
        box.state.downloads,
        Watch(
            partial(box.console.progress, "fetching the state"),
            box.events,
            lambda peer, reason: offend(transport.offenders, peer, reason, clock.now()),
        ),
    )
    manifest = member.manifest
    zero = RoundZero(manifest, member.recipe, member.replica, box.console, member.weights)
    shared = SharedState(
        box.me,
        member.replica,
        storage,
        FirstState(
            manifest.initial_state_digest,
            zero.initialise,
            manifest.frozen_digest,
            zero.fill_frozen,
        ),
        box.events,
        donors.stop,
        partial(box.console.progress, "replaying missed rounds"),
    )
    return shared, Recovery(shared, donors, box.events, pinned)
