"""State that all peers of a run share, on this peer: chain, weights and counted work move as one.

A commit is applied in one way, whether it was just decided, was missed, or is replayed from disk:
its result and the commit are on disk before the step begins. The step runs in the background, so
`apply` begins it and `finish` waits for its end.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from atom.base.errors import PeerRefused, Reason, StorageError
from atom.base.events import EventSink
from atom.swarm.chain.commit import Ballot, Commit, Head, Value, Voter
from atom.swarm.chain.commit_chain import Chain
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.storage.run_storage import STILL, RunStorage


@dataclass(frozen=True)
class FirstState:
    """State of round 0, which only the run's manifest names."""

    digest: bytes
    initialise: Callable[[], bool]
    """Function that sets the replica to this state, if possible here.

    It returns True if the replica then has exactly the run's state.
    """
    frozen_digest: bytes = b""
    """Digest of the parameters that no step changes; empty: there are none."""
    fill_frozen: Callable[[], bool] = lambda: False
    """Function that sets these parameters, if possible here; returns True if it did."""


@dataclass(eq=False)
class SharedState:
    """Owner of this peer's place on the chain: head, replica, and storage.

    Used on the worker's thread, unless a method says otherwise.
    """

    me: Voter
    replica: Replica
    storage: RunStorage
    first: FirstState
    events: EventSink
    stop: threading.Event
    """Event that ends replays; set when this peer ends, from any thread."""
    on_progress: Callable[[int, int], None] = lambda done, total: None
    """Function called with the number of rounds replayed and the total.

    If the total is 0, the replay was interrupted.
    """
    head: Head = field(init=False)
    """Head whose state the replica holds. While a step begins, the journal is one ahead."""
    usable: bool = field(default=False, init=False)
    """True if the replica holds the state of `head`."""
    has_frozen: bool = field(default=False, init=False)
    """True if the replica holds the parameters that no step changes."""
    first_offer: int | None = field(default=None, init=False)
    """Sequences of our first offer at this head; later offers may have more."""
    settled: Future[Any] = field(default_factory=Future, init=False)
    """Work that still reads the state after the latest step; `result` raises its error."""
    _offer: Contribution | None = field(default=None, init=False)
    """Latest offer at this head."""
    _gave_to: Ballot | None = field(default=None, init=False)
    """Ballot of the latest exchange at this head that used an offer."""
    _former: Voter | None = field(default=None, init=False)
    """Earlier process of this peer whose own state the replica has; None: there is none."""

    def __post_init__(self) -> None:
        self.head = self.storage.journal.head
        self.has_frozen = not self.first.frozen_digest
        self.settled.set_result(None)

    @property
    def lacks(self) -> str:
        """Name of the data without which the replica is not `usable`; empty if it is."""
        if self.usable:
            return ""
        return "the run's state" if self.has_frozen else "what the run keeps frozen"

    # ---- our contribution

    def sequences_at(self, head: bytes) -> int:
        """Return the number of our sequences that count for the round after `head`. Thread-safe.

        The round machine reaches a new head before the step to that head begins; until then our
        sequences belong to the old head, so the result is 0.
        """
        return self.replica.sequences if self.head.digest == head else 0

    def offer(self) -> tuple[int, float]:
        """Fix our contribution to the next round; return its sequences and their summed loss.

        A contribution that is not finite is dropped, because it would void the result.

        Raises:
            PassVoided: Some counted gradients were lost; call again to offer the remaining ones.
        """
        counted = self.replica
        if counted.sequences:
            self._offer = counted.contribution()
            if not self._offer.is_finite():
                self.events.emit("gradients-dropped", reason="not-finite")
                counted.drop_contribution()
        if self.first_offer is None:
            self.first_offer = counted.sequences
        return counted.sequences, counted.loss_sum

    def give(self, parent: bytes, ballot: Ballot) -> Contribution:
        """Return the latest offer for an exchange. On the thread of the exchange.

        Args:
            parent: Digest of the head at which the exchange averages.
            ballot: Ballot of the exchange.
        """
        assert self.head.digest == parent, "these gradients are another head's"
        assert self._offer is not None, "said with the promise"
        self._gave_to = ballot
        return self._offer

    # ---- steps

    def apply(self, commit: Commit) -> Head:
        """Begin the step of the next commit, whose result is held; return the new head.

        Result and commit are on disk before the step begins, unless the disk is full.
        """
        self.settled.result()  # a snapshot of the previous state may still be being written
        value, journal = commit.value, self.storage.journal
        mean = self.storage.results.numbers(value.result_digest)
        if value.round > journal.head.round:
            self.storage.record(commit)
        self.replica.begin_step(
            mean,
            value.gradient_norm,
            value.round,
            self._ours_in(value),
            knows_lost=value.origin == self._gave_to,
        )
        self._enter(journal.heads[value.round])
        return self.head

    def finish(self) -> None:
        """Wait for the end of the step; drop its result from memory. On any thread."""
        self.replica.finish_step()
        self.storage.results.keep(frozenset())

    def digest(self) -> bytes:
        """Return the digest of the state; wait for the end of a step."""
        return state_digest(self.replica.state_arenas())

    def replay(self, commits: Sequence[Commit], ready: Callable[[bytes], None]) -> None:
        """Apply these commits in order, each to its end.

        Args:
            commits: Commits that continue our state.
            ready: Function that makes sure that the result with this digest is held.

        Raises:
            PeerRefused: This peer ends (SUPERSEDED), or a result is nowhere or cannot be decoded.
                The commits before it have been applied by then.
            OSError: Raised by `ready`.
        """
        done, total = 0, len(commits)
        try:
            for done, commit in enumerate(commits):
                self.on_progress(done, total)
                self.go_on()
                ready(commit.value.result_digest)
                self.storage.results.check(commit.value.result_digest)
                self.apply(commit)
                self.finish()
            done = total
        finally:
            if commits:
                self.on_progress(done, total if done == total else 0)

    def go_on(self) -> None:
        """Stop the replay if this peer ends.

        Raises:
            PeerRefused: SUPERSEDED: this peer ends.
        """
        if self.stop.is_set():
            raise PeerRefused(Reason.SUPERSEDED, "this peer ends")

    def _ours_in(self, value: Value) -> int:
        """Return the sequences in `value` that this replica or its former process counted."""
        return sum(map(value.given_by, {self.me, self._former or self.me}))

    def _enter(self, head: Head) -> None:
        """Forget the offers at the old head; the replica no longer has gradients of that head."""
        self._offer = self._gave_to = self.first_offer = None
        # Last, after the step has taken its sequences: `sequences_at` never pairs those with it.
        self.head = head

    # ---- states from disk or from other peers

    def restore(self, ready: Callable[[bytes], None], is_chosen: bool) -> bytes:
        """Rebuild the newest state that our own disk allows, and cut the chain after it.

        The rounds that are cut off must be fetched again.

        Args:
            ready: As for `replay`.
            is_chosen: False if the run's owner has chosen another chain: this one is not usable.

        Returns:
            Digest of the state; empty if it is not `usable`, for example because even the state of
            round 0 is missing. Then `adopt` must bring one.

        Raises:
            PeerRefused: This peer ends (SUPERSEDED).
        """
        storage, commits = self.storage, self.storage.journal.commits
        storage.begin()
        if not self.has_frozen:
            self._restore_frozen()
        is_there = self._from_disk()
        self.replica.reset_gradients()
        try:
            self.replay(commits[self.replica.step_count :] if is_there else (), ready)
        except PeerRefused:
            self.go_on()  # a result is missing
        reached = self.replica.step_count if is_there else 0
        if reached < len(commits):
            storage.replace_chain(storage.journal.until(reached))
        self._enter(storage.journal.head)
        self.usable = is_there and self.has_frozen and is_chosen
        if not self.usable:
            return b""
        self._restore_own()
        digest = self.digest()
        if not storage.snapshots():
            self.snapshot(digest)
        return digest

    def _from_disk(self) -> bool:
        """Load the newest snapshot on our chain, or else round 0; return False without either."""
        for snapshot in self.storage.snapshots():
            self.go_on()
            certified = self.storage.journal.certified_state(snapshot.round, self.first.digest)
            try:
                self.replica.load_state(snapshot.checked(certified), snapshot.round)
                return True
            except StorageError:
                self.events.emit("snapshot-damaged", path=snapshot.path.name)
        self.go_on()
        return self.first.initialise()

    def _restore_frozen(self) -> None:
        """Load the frozen parameters or, if no good file is here, compute them, if possible."""
        saved, wanted = self.storage.frozen() or {}, self.first.frozen_digest
        if state_digest(saved) == wanted:
            self.replica.load_frozen(saved)
            self.has_frozen = True
            return
        if saved:
            self.events.emit("snapshot-damaged", path=STILL)
        if self.first.fill_frozen() and state_digest(self.replica.frozen) == wanted:
            self.storage.save_frozen(self.replica.frozen)
            self.has_frozen = True

    def _restore_own(self) -> None:
        """Continue from the own state of an earlier process, unless another optimizer saved it."""
        if (own := self.storage.own()) is not None:
            head, incarnation, arenas = own
            with suppress(ValueError):
                self.replica.adopt_own(arenas, head == self.head.digest)
                self._former = replace(self.me, incarnation=incarnation)

    def adopt(self, arenas: Mapping[str, Tensor], chain: Chain) -> None:
        """Replace state and chain by a verified chain, and the state at its head.

        Raises:
            ValueError: The state does not fit; nothing is changed.
        """
        self.replica.load_state(arenas, chain.head.round)
        self.replica.reset_gradients()
        self.storage.replace_chain(chain)
        self._enter(chain.head)
        self.usable = True

    def adopt_frozen(self, arenas: Mapping[str, Tensor]) -> None:
        """Take and save the run's frozen parameters.

        Raises:
            ValueError: The parameters do not fit.
        """
        self.replica.load_frozen(arenas)
        self.storage.save_frozen(arenas)
        self.has_frozen = True

    # ---- saving

    def snapshot(self, digest: bytes) -> None:
        """Save the state, which has this digest. No step may begin until the call returns."""
        self.storage.snapshot(digest, self.replica.state_arenas())

    def save_own(self) -> None:
        """Save this peer's own state; no other code may use the replica.

        Raises:
            StepFailed: The last step failed.
        """
        if self.usable and (own := self.replica.own_state()):
            self.storage.save_own(own, self.me.incarnation)
