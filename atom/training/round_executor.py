"""The actions of a round on a real replica: what the loop asks for is done here.

Work on the model's memory is handed to the worker's thread, transfers to threads of their own;
each outcome comes back to the loop as an event.

A step only begins on the worker's thread: then the passes of the next round go on under it. What
follows its end, the state's digest first, is done in the background. Nothing of it changes the
state, and the worker waits for it before it changes the state or the journal again.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.config.run_file import RunFile
from atom.models.data.samples import PiecesMissing
from atom.optim.clipping import gradient_norm
from atom.swap.engine import PassCancelled
from atom.swap.readiness import StepFailed
from atom.swap.voided import PassVoided
from atom.swarm.chain.commit import Ballot, Commit, Head, Voter
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.records.lease import Validation
from atom.swarm.records.view import validation_told
from atom.swarm.state.arenas import state_digest
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import Transport
from atom.training.exchange import Exchange, start_task
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.replica import Replica
from atom.training.replica.worker import Worker
from atom.training.round.events import (
    Action,
    Apply,
    CatchUp,
    CaughtUp,
    ChainFetched,
    Event,
    FetchChain,
    FetchResult,
    Freeze,
    Frozen,
    ResultFetched,
    StartExchange,
    Stepped,
    Thaw,
)
from atom.training.round_stats import RoundStats
from atom.training.state_sync import StateSync
from atom.training.storage.checkpoints import Checkpoints
from atom.training.storage.run_storage import RunStorage

ROUND = "round"
PATIENCE_S, HASTE_S = 6.0, 4.0
"""How long a round's result is asked for again, of holders that do not offer it yet: for a step, or
for a vote. The latter is less than `RoundPatience.holding`: a result that is nowhere is to be known
for that before the next attempt (a test holds them together)."""
PAUSE_S = 0.4
OWN_EVERY_S = 1800.0
"""Between two savings of what is this peer's own, at the end of a round."""


@dataclass(frozen=True)
class TrainingContext:
    """A replica and what stands around it."""

    me: Voter
    replica: Replica
    worker: Worker
    storage: RunStorage
    state_sync: StateSync
    transport: Transport
    clock: Clock
    events: EventSink
    checkpoints: Checkpoints


class RoundExecutor:
    """Carries out what the machine asks for on the replica's side."""

    def __init__(
        self,
        context: TrainingContext,
        run: RunFile,
        post: Callable[[Event], None],
        on_round_begun: Callable[[], None],
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        """`post` is told what comes of actions, from several threads. `on_round_begun` is called on
        the worker's thread while nothing is counted for a round: the daemon's chance to hold it. A
        step may still be under way. `on_settled`: on the same thread, when nothing of what follows
        a step is left to do."""
        self._replica = context.replica
        self._worker = context.worker
        self._storage = context.storage
        self._state_sync = context.state_sync
        self._transport = context.transport
        self._run = run
        self._me = context.me
        self._clock = context.clock
        self._events = context.events
        self._on_round_begun = on_round_begun
        self._on_settled = on_settled
        self._post = post
        self._checkpoints = context.checkpoints
        self._own_saved_at = context.clock.now()
        self._closing = threading.Event()
        self._results = context.storage.results
        self.exchange = Exchange(self._transport, self._results, self._offered, post, self._clock)
        self._after_step = ThreadPoolExecutor(1, "post-step")
        self._settling: Future[None] = Future()
        """What follows the latest step. Raises, to everybody who waits, what it failed with."""
        self._settling.set_result(None)
        self._offer: Contribution | None = None
        """What the latest promise of ours is about."""
        self._first_offer: int | None = None
        """Sequences of the first one at this head, if passes went on beyond it."""
        self.stats = RoundStats(context.me, self._spent)

    def close(self) -> None:
        """After the worker: what it began is seen to its end."""
        self._closing.set()
        self.exchange.stop()
        self._after_step.shutdown()
        with suppress(StepFailed):
            self._save_own()

    def _spent(self) -> tuple[float, int, int]:
        line = self._transport.bandwidth
        return self._worker.passes_s, line.sent_bytes, line.received_bytes

    def carry_out(self, action: Action) -> None:
        if isinstance(action, Freeze | Thaw | Apply):
            self.exchange.stop()
        elif isinstance(action, StartExchange | FetchResult) and action.keep is not None:
            self._results.keep(action.keep)
        match action:
            case Freeze() if action.goes_on and self._replica.overlaps:
                self._worker.submit(lambda: self._report_and_train_on(action.ballot))
            case Freeze(ballot):
                self._hold(lambda: self._report_frozen(ballot))
            case Thaw():
                self._worker.submit(lambda: self._worker.train_beyond(None))
                self._worker.release(ROUND)
            case StartExchange(members=members):
                self._transport.known.in_ring(part.peer_id for part in members)
                self.exchange.start(action)
            case FetchResult():
                self._fetch_result(action)
            case FetchChain():
                self._fetch_chain(action)
            case Apply(commit, head):
                self._hold(lambda: self._step(commit, head))
            case CatchUp():
                self._hold(lambda: self._catch_up(action))
            case _:
                raise AssertionError(action)

    def _hold(self, command: Callable[[], None]) -> None:
        """Runs `command` on the worker's thread, where no pass begins from then on."""
        self._worker.hold(ROUND)
        self._worker.submit(command)

    # ---- counting

    def _report_frozen(self, ballot: Ballot) -> None:
        try:
            self._make_offer()
        except PassVoided as void:  # of what was counted, something did not land
            self.voided(void)
            self._make_offer()
        self._post(Frozen(ballot, self._replica.sequences, self._replica.loss_sum))

    def _make_offer(self) -> None:
        """Sums that have overflowed are dropped: every result with them would be void."""
        if self._replica.sequences:
            self._offer = self._replica.contribution()
            if not self._offer.is_finite():
                self._events.emit("gradients-dropped", reason="not-finite")
                self._replica.drop_contribution()

    def _report_and_train_on(self, ballot: Ballot) -> None:
        """At one go: nothing else uses the replica between the two."""
        self._report_frozen(ballot)
        self._train_beyond()

    def _train_beyond(self) -> None:
        """Beyond the first offer at this head: however many are in vain, no peer goes far."""
        if self._first_offer is None:
            self._first_offer = self._replica.sequences
        self._worker.train_beyond(self._first_offer)

    def voided(self, void: PassVoided) -> bool:
        """A pass counted for nothing. On the worker's thread. Returns whether to say so: of many,
        fewer and fewer are written down."""
        is_told = self.stats.voided(void)
        if is_told:
            self._events.emit(
                "pass-voided",
                reason=void.cause.value,
                detail=void.detail[:300],
                hint=void.hint,
                in_a_row=self.stats.void_in_a_row,
                sequences_lost=void.sequences_lost,
            )
        return is_told

    # ---- exchange

    def _offered(self, parent: bytes) -> Contribution:
        assert self._replica.gradients_tag == parent, "these gradients are another head's"
        assert self._offer is not None, "said with the promise"
        return self._offer

    # ---- stepping

    def _step(self, commit: Commit, head: Head) -> None:
        """Begins the step and the next round. The machine hears of the step from `_settle`: until
        then it asks for nothing that would have to wait."""
        self._settling.result()  # a snapshot of the state before may still be on its way to disk
        value = commit.value
        mean = self._results.numbers(value.result_digest)  # only held results are applied
        self._storage.record(commit)
        ours = self._state_sync.ours_in(value)
        counted = self._replica.sequences
        knows_lost = (value.parent, value.origin) == self.exchange.gave_to
        self._replica.begin_step(mean, value.gradient_norm, value.round, ours, knows_lost)
        self._start_round(head)
        left = self._replica.sequences
        self.stats.committed(commit, counted - left, self._clock.now())
        if self._clock.now() >= self._own_saved_at + OWN_EVERY_S:
            self._save_own()
        if value.round != self._run.run.rounds:
            self._worker.release(ROUND)  # before anybody can hear of the step, and freeze us again
        settled = self._after_step.submit(self._settle, head)
        validation = self._validation(value.round, settled)
        self._settling = self._after_step.submit(self._tell, commit, head, settled, validation)
        self._settling.add_done_callback(lambda done: self._worker.submit(lambda: self._end(done)))
        self._on_round_begun()

    def _end(self, settled: Future[None]) -> None:
        settled.result()
        if settled is self._settling:
            self._on_settled()

    def _settle(self, head: Head) -> bytes:
        """In the background: the end of the step, and the state's digest."""
        self._replica.finish_step()
        digest = self._state_digest()
        # Before anybody hears of the step: what is held from now on belongs to the next round.
        self._results.keep(frozenset())
        self._post(Stepped(head.digest, digest))
        return digest

    def _tell(
        self, commit: Commit, head: Head, settled: Future[bytes], validation: Mapping[str, Any]
    ) -> None:
        """In the background, after `settled`."""
        value, digest, tokens = commit.value, settled.result(), self._worker.loader.sequence_tokens
        self._events.emit(
            "round",
            round=value.round,
            loss=round(value.loss, 6),
            **validation,
            sequences=value.sequences,
            tokens_per_s=round(self.stats.sequences_per_s * tokens, 1),
            members=[c.peer_id for c in value.contributions],
            contributed=[c.sequences for c in value.contributions],
            head=head.digest.hex(),
            digest=digest.hex(),
            reduce_seconds=round(self.exchange.seconds.get(value.result_digest, 0.0), 4),
            gradient_norm=value.gradient_norm,
            voters=[v.peer_id for v in value.voters_next],
            branch=bool(commit.survivors),
            **(self.stats.use._asdict() if self.stats.use else {}),
            last_pass=self._replica.watch.figures(),
        )
        due = head.round % self._run.snapshot.every_rounds == 0
        last = head.round == self._run.run.rounds
        if due or last:
            self._storage.snapshot(digest, self._replica.state_arenas())
        loss = validation.get("validation_loss")
        self._checkpoints.stepped(self._replica.state_arenas(), loss)

    def begin(self) -> bytes:
        """Rebuilds our last state from disk; its digest, empty if there is none. Before the worker
        starts. Raises: PeerRefused(SUPERSEDED): we end."""
        self._storage.begin()
        self._state_sync.restore()
        self.stats.caught_up(self._storage.journal.commits, 0)
        self._start_round(self._storage.journal.head)
        if not self._state_sync.usable:
            return b""
        if (own := self._storage.own()) is not None:
            head, incarnation, arenas = own
            with suppress(ValueError):  # of another optimizer: it begins anew
                self._replica.adopt_own(arenas, head == self._storage.journal.head.digest)
                self._state_sync.goes_on_from(incarnation)
        digest = self._state_digest()
        if not self._storage.snapshots():
            self._storage.snapshot(digest, self._replica.state_arenas())
        return digest

    def _save_own(self) -> None:
        """What is this peer's own, at the journal's head. Nothing else uses the replica."""
        self._own_saved_at = self._clock.now()
        if self._state_sync.usable and (own := self._replica.own_state()):
            self._storage.save_own(own, self._me.incarnation)

    def _start_round(self, head: Head) -> None:
        self._transport.known.at_head(head.known)
        self._replica.start_round(head.digest)
        self._first_offer = None
        self._worker.train_beyond(None)
        self._worker.loader.deal(head, goes_on=self._replica.sequences > 0)

    def _state_digest(self) -> bytes:
        return state_digest(self._replica.state_arenas())

    def _validation(self, round_number: int, settled: Future[bytes]) -> dict[str, Any]:
        """If it is due: with the new weights, as soon as they are stepped, and, where they change
        places with a peer's own, `settled`."""
        wanted, worker = self._run.validation, self._worker
        if wanted is None or round_number % wanted.every_rounds:
            return {}
        if self._replica.overlaps:
            settled.result()
        try:
            sets = worker.loader.validation(wanted.batches)
            last = round_number == self._run.run.rounds  # whose end ends the worker, too
            stop = self._closing.is_set if last else worker.should_stop
            losses = [self._replica.evaluate(batches, stop) for batches in sets.values()]
        except (PassCancelled, DeviceTaken, PiecesMissing):  # others validate the same
            return {}
        except PassVoided as void:  # the next one takes fewer micro-batches at a time
            self.voided(void)
            return {}
        found = Validation.of(round_number, losses)
        self.stats.validation = found
        return {"validation_loss": found.loss, "validation": validation_told(found, self._run.data)}

    # ---- fetching

    def _fetch_result(self, wanted: FetchResult) -> None:
        def failed(fault: Exception) -> Event:
            detail = f"{type(fault).__name__}: {fault}"[:200]
            self._events.emit("fetch-failed", detail=detail)
            return ResultFetched(wanted.digest, is_here=False)

        start_task("fetch", lambda: self._fetched(wanted), failed, self._post)

    def _fetched(self, wanted: FetchResult) -> Event:
        """Holds the result among the others. Asks again for a while: a holder offers it once it has
        averaged it."""
        pace, patience_s = Pace(), HASTE_S
        if wanted.committed:
            pace, patience_s = self.exchange.fetching_pace(), PATIENCE_S
        give_up_at = self._clock.now() + patience_s
        while True:
            try:
                self._state_sync.fetch_result(wanted.digest, wanted.holders, pace)
                break
            except (PeerRefused, OSError):
                if self._clock.now() >= give_up_at or self._closing.wait(PAUSE_S):
                    raise
        self._results.check(wanted.digest)
        norm = gradient_norm(self._results.numbers(wanted.digest))
        return ResultFetched(wanted.digest, is_here=True, norm=norm)

    def _fetch_chain(self, wanted: FetchChain) -> None:
        donor, claimed = wanted.donor, wanted.claimed_round
        start_task(
            "claim",
            lambda: ChainFetched(donor, *self._state_sync.proven(donor, claimed)),
            lambda fault: ChainFetched(donor, None),
            self._post,
        )

    # ---- catching up

    def _catch_up(self, wanted: CatchUp) -> None:
        self._settling.result()
        self._events.emit("catching-up", reason=wanted.reason, donors=list(wanted.donors))
        before = self._storage.journal.head
        counted = self._worker.own_sequences(before.digest)
        problem = self._state_sync.run(wanted.donors, wanted.discard, wanted.forks)
        if problem:
            self._events.emit("catch-up-failed", detail=problem[:300])
        head, usable = self._storage.journal.head, self._state_sync.usable
        digest = self._state_digest() if usable else b""
        if head != before or (wanted.discard and not problem):
            if usable:
                self._start_round(head)
            left = self._worker.own_sequences(head.digest)
            self.stats.caught_up(self._storage.journal.commits, counted - left)
            if usable:
                self._begin_at(head, digest)
        self._post(CaughtUp(head, digest, wanted.donors if problem else ()))

    def _begin_at(self, head: Head, digest: bytes) -> None:
        """Counting for a head that others brought us to."""
        self._storage.snapshot(digest, self._replica.state_arenas())
        self._events.emit(
            "caught-up", round=head.round, head=head.digest.hex(), digest=digest.hex()
        )
        self._on_round_begun()
