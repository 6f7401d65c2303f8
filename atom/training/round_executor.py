"""Executor of the round machine's actions on the real replica.

Work on the model's memory runs on the worker's thread, and each transfer on its own thread; every
outcome returns to the loop as an event.

A step begins on the worker's thread and continues while the passes of the next round run. The tasks
after a step, first of all the state's digest, run in the background. They do not change the state,
and the worker waits for them before it changes the state or the journal again.
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
from atom.swap.host_store import StepFailed
from atom.swap.voided import PassVoided
from atom.swarm.chain.commit import Ballot, Commit, Head
from atom.swarm.records.lease import Validation
from atom.swarm.records.view import validation_json
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import Transport
from atom.training.exchange import Exchange, start_task
from atom.training.recovery import Recovery
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.worker import Worker
from atom.training.round import events
from atom.training.round.events import Action, Event
from atom.training.round_stats import RoundStats
from atom.training.shared_state import SharedState
from atom.training.storage.checkpoints import Checkpoints

ROUND = "round"
PATIENCE_S, HASTE_S = 6.0, 4.0
"""Seconds during which a fetch is retried while the holders do not offer the result yet.

The first value is for a committed result, the second for a vote. The second is less than
`RoundPatience.holding` (a test compares them): a peer must know that a result cannot be had before
the next attempt begins.
"""
PAUSE_S = 0.4
OWN_EVERY_S = 1800.0
"""Least time in seconds between two saves of this peer's own state, made at the end of a round."""


@dataclass(eq=False)
class RoundExecutor:
    """Executor of the machine's actions that concern the state, training or transfers.

    Call `begin` before the worker starts. Other parts of the daemon may read the fields.
    """

    shared: SharedState
    worker: Worker
    recovery: Recovery
    transport: Transport
    clock: Clock
    log: EventSink
    checkpoints: Checkpoints
    run: RunFile
    post: Callable[[Event], None]
    """Function that receives the outcomes of actions, from several threads."""
    on_round_begun: Callable[[], None]
    """Function called on the worker's thread when a round begins, before training for that round.

    The daemon can hold the worker then; a step may still be under way.
    """
    on_settled: Callable[[], None] = lambda: None
    """Function called on the worker's thread when all tasks after a step are done."""

    def __post_init__(self) -> None:
        shared, self._replica = self.shared, self.shared.replica
        self._results = shared.storage.results
        self.exchange = Exchange(self.transport, self._results, shared.give, self.post, self.clock)
        self.stats = RoundStats(shared.me, self._spent)
        self._own_saved_at = self.clock.now()
        self._closing = threading.Event()
        self._after_step = ThreadPoolExecutor(1, "post-step")

    def close(self) -> None:
        """Finish the tasks after the latest step, and save our own state.

        Close the worker first.
        """
        self._closing.set()
        self.exchange.stop()
        self._after_step.shutdown()
        with suppress(StepFailed):
            self._save_own()

    def _spent(self) -> tuple[float, int, int]:
        line = self.transport.bandwidth
        return self.worker.passes_s, line.sent_bytes, line.received_bytes

    def carry_out(self, action: Action) -> None:
        """Begin an action of the round machine; its outcome is reported as an event."""
        if isinstance(action, events.Freeze | events.Thaw | events.Apply):
            self.exchange.stop()
        elif (
            isinstance(action, events.StartExchange | events.FetchResult)
            and action.keep is not None
        ):
            self._results.keep(action.keep)
        match action:
            case events.Freeze(ballot, goes_on) if goes_on and self._replica.overlaps:
                self.worker.submit(lambda: self._report_frozen(ballot, goes_on=True))
            case events.Freeze(ballot):
                self._hold(lambda: self._report_frozen(ballot))
            case events.Thaw():
                self.worker.submit(lambda: self.worker.train_beyond(None))
                self.worker.release(ROUND)
            case events.StartExchange(members=members):
                self.transport.known.in_ring(part.peer_id for part in members)
                self.exchange.start(action)
            case events.FetchResult():
                self._fetch_result(action)
            case events.FetchChain(donor, claimed):
                start_task(
                    "claim",
                    lambda: events.ChainFetched(donor, *self.recovery.proven(donor, claimed)),
                    lambda fault: events.ChainFetched(donor, None),
                    self.post,
                )
            case events.Apply(commit):
                self._hold(lambda: self._step(commit))
            case events.CatchUp():
                self._hold(lambda: self._catch_up(action))
            case _:
                raise AssertionError(action)

    def _hold(self, command: Callable[[], None]) -> None:
        """Run `command` on the worker's thread; no pass begins from then on."""
        self.worker.hold(ROUND)
        self.worker.submit(command)

    # ---- counting

    def _report_frozen(self, ballot: Ballot, goes_on: bool = False) -> None:
        """Fix and report our offer; if training goes on, begin to train for the next round.

        Both are one command of the worker, so no other command uses the replica in between.
        Training stays within one share beyond the first offer at this head, so that failed attempts
        lead no peer far ahead.
        """
        try:
            offered = self.shared.offer()
        except PassVoided as void:  # some counted gradients were lost; offer the remaining ones
            self.voided(void)
            offered = self.shared.offer()
        self.post(events.Frozen(ballot, *offered))
        if goes_on:
            self.worker.train_beyond(self.shared.first_offer)

    def voided(self, void: PassVoided) -> bool:
        """Record a void pass. On the worker's thread.

        Returns:
            True if it was logged; of many void passes, fewer and fewer are logged.
        """
        is_told = self.stats.voided(void)
        if is_told:
            self.log.emit(
                "pass-voided",
                reason=void.cause.value,
                detail=void.detail[:300],
                hint=void.hint,
                in_a_row=self.stats.void_in_a_row,
                sequences_lost=void.sequences_lost,
            )
        return is_told

    # ---- stepping

    def _step(self, commit: Commit) -> None:
        """Begin the step and the next round.

        The machine learns of the step from `_settle`. Until then it requests nothing that would
        have to wait for the step.
        """
        counted = self._replica.sequences
        head = self.shared.apply(commit)
        self._start_round(head)
        self.stats.committed(commit, counted - self._replica.sequences, self.clock.now())
        if self.clock.now() >= self._own_saved_at + OWN_EVERY_S:
            self._save_own()
        if head.round != self.run.run.rounds:
            self.worker.release(ROUND)  # before the machine learns of the step and may freeze us
        settled = self._after_step.submit(self._settle, head)
        validation = self._validation(head.round, settled)
        told = self._after_step.submit(self._tell, commit, head, settled, validation)
        self.shared.settled = told
        told.add_done_callback(lambda done: self.worker.submit(lambda: self._end(done)))
        self.on_round_begun()

    def _end(self, settled: Future[None]) -> None:
        settled.result()
        if settled is self.shared.settled:
            self.on_settled()

    def _settle(self, head: Head) -> bytes:
        """Wait for the step, then post and return the state's digest. In the background."""
        # Results are dropped before the machine learns of the step: later ones are the next round's
        self.shared.finish()
        digest = self.shared.digest()
        self.post(events.Stepped(head.digest, digest))
        return digest

    def _tell(
        self, commit: Commit, head: Head, settled: Future[bytes], validation: Mapping[str, Any]
    ) -> None:
        """Log the round; write its snapshot and checkpoint. In the background, after `settled`."""
        value, digest, tokens = commit.value, settled.result(), self.worker.loader.sequence_tokens
        self.log.emit(
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
        due = head.round % self.run.snapshot.every_rounds == 0
        last = head.round == self.run.run.rounds
        if due or last:
            self.shared.snapshot(digest)
        loss = validation.get("validation_loss")
        self.checkpoints.stepped(self._replica.state_arenas(), loss)

    def begin(self) -> bytes:
        """Rebuild our last state from disk. Call it before the worker starts.

        Returns:
            Digest of the state; empty if there is no usable state.

        Raises:
            PeerRefused: This peer ends (SUPERSEDED).
        """
        digest = self.recovery.restore()
        self.stats.caught_up(self.shared.storage.journal.commits, 0)
        self._start_round(self.shared.head)
        return digest

    def _save_own(self) -> None:
        self._own_saved_at = self.clock.now()
        self.shared.save_own()

    def _start_round(self, head: Head) -> None:
        others = {voter.peer_id for voter in head.voters} - {self.transport.peer_id}
        self.transport.known.at_head(head.known, others)
        self.worker.train_beyond(None)
        self.worker.loader.deal(head, goes_on=self._replica.sequences > 0)

    def _validation(self, round_number: int, settled: Future[bytes]) -> dict[str, Any]:
        """Return the validation losses for the event log; empty if none are due or possible.

        Validation uses the new weights as soon as each part is stepped. If the update rule swaps
        them with this peer's own weights, it waits for `settled` first.
        """
        wanted, worker = self.run.validation, self.worker
        if wanted is None or round_number % wanted.every_rounds:
            return {}
        if self._replica.overlaps:
            settled.result()
        try:
            sets = worker.loader.validation(wanted.batches)
            last = round_number == self.run.run.rounds  # the worker closes after the last round
            stop = self._closing.is_set if last else worker.should_stop
            losses = [self._replica.evaluate(batches, stop) for batches in sets.values()]
        except (PassCancelled, DeviceTaken, PiecesMissing):  # other peers validate the same sets
            return {}
        except PassVoided as void:  # the next validation takes fewer micro-batches at a time
            self.voided(void)
            return {}
        found = Validation.of(round_number, losses)
        self.stats.validation = found
        return {"validation_loss": found.loss, "validation": validation_json(found, self.run.data)}

    # ---- fetching

    def _fetch_result(self, wanted: events.FetchResult) -> None:
        def failed(fault: Exception) -> Event:
            detail = f"{type(fault).__name__}: {fault}"[:200]
            self.log.emit("fetch-failed", detail=detail)
            return events.ResultFetched(wanted.digest, in_memory=False)

        start_task("fetch", lambda: self._fetched(wanted), failed, self.post)

    def _fetched(self, wanted: events.FetchResult) -> Event:
        """Fetch a result and hold it in memory.

        The fetch is retried for a while, because a holder offers the result only when its own
        exchange has ended.
        """
        pace, patience_s = Pace(), HASTE_S
        if wanted.committed:
            pace, patience_s = self.exchange.fetching_pace(), PATIENCE_S
        give_up_at = self.clock.now() + patience_s
        while True:
            try:
                self.recovery.fetch_result(wanted.digest, wanted.holders, pace)
                break
            except (PeerRefused, OSError):
                if self.clock.now() >= give_up_at or self._closing.wait(PAUSE_S):
                    raise
        self._results.check(wanted.digest)
        norm = gradient_norm(self._results.numbers(wanted.digest))
        return events.ResultFetched(wanted.digest, in_memory=True, norm=norm)

    # ---- catching up

    def _catch_up(self, wanted: events.CatchUp) -> None:
        shared = self.shared
        shared.settled.result()
        self.log.emit("catching-up", reason=wanted.reason, donors=list(wanted.donors))
        before, counted = shared.head, self._replica.sequences
        problem = self.recovery.run(wanted.donors, wanted.discard, wanted.forks)
        if problem:
            self.log.emit("catch-up-failed", detail=problem[:300])
        head, digest = shared.head, shared.digest() if shared.usable else b""
        if head != before or (wanted.discard and not problem):
            self._start_round(head)
            dropped = counted - self._replica.sequences
            self.stats.caught_up(shared.storage.journal.commits, dropped)
            shared.snapshot(digest)
            self.log.emit(
                "caught-up", round=head.round, head=head.digest.hex(), digest=digest.hex()
            )
            self.on_round_begun()
        self.post(events.CaughtUp(head, digest, wanted.donors if problem else ()))
