"""Training of a peer: replica, worker, storage, round machine and its loop, and the run's text."""

from collections.abc import Callable, Mapping
from functools import partial

from atom.base.clock import Clock
from atom.daemon.model.round_zero import RoundZero
from atom.daemon.model.texts import content_of
from atom.daemon.peer.box import Box
from atom.daemon.peer.founding import Membership
from atom.daemon.peer.own_code import blob_name
from atom.daemon.peer.run_text import RunText
from atom.swap.voided import PassVoided
from atom.swarm.addresses import RecentHead
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.records.lease import Lease, SampleText
from atom.swarm.state.blobs import Content, plain_bytes
from atom.swarm.state.fetch import Watch
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


class Training:
    """Parts of a peer that train: they own the replica, and all files of the run's chain and state.

    Its methods are called on the main thread, unless they say otherwise.
    """

    def __init__(
        self,
        box: Box,
        member: Membership,
        storage: RunStorage,
        transport: Transport,
        inbox: Inbox,
        clock: Clock,
        pinned: RecentHead | None,
        report: Callable[[str | BaseException], None],
        on_change: Callable[[], None],
    ) -> None:
        """Build the parts in the order of their dependencies, and start none.

        Args:
            inbox: queue of the round loop, into which the transport puts messages.
            clock: monotonic clock.
            pinned: head that the join address names; None: the address names none.
            report: takes lines for the owner, and the failure of a part, which cannot go on.
            on_change: called when head, phase or counted sequences have changed, so that our lease
                should be renewed soon.
        """
        run, replica = member.run, member.replica
        self._report, self._on_change, self._log = report, on_change, box.events
        self.terms = terms = round_terms(member, storage.results.codec)
        self.shared, recovery = recovery_of(box, member, transport, storage, clock, pinned)
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
            True if fetching a state was ended: a peer without counted work needs none to leave.
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
        """Take newly read leases. Called on the directory's thread."""
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
    box: Box,
    member: Membership,
    transport: Transport,
    storage: RunStorage,
    clock: Clock,
    pinned: RecentHead | None,
) -> tuple[SharedState, Recovery]:
    """Return the peer's state, and the part that fetches a state from other peers.

    Args:
        clock: monotonic clock.
        pinned: head that the join address names; None: the address names none.
    """
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
