"""Bringing a replica to a head: after a restart from disk, after an absence from the others.

A state is a snapshot plus the results since, and the chain says which results those are. The
chain comes first and is verified from genesis; whatever bytes follow are accepted only under the
digests it gives them. So it does not matter who delivers.

How a peer recovers: a few missed rounds are replayed, from our own state. After more of them it
fetches the newest state that a commit vouches for, and replays the rounds since.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from atom.base.errors import MismatchError, PeerRefused, StorageError
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import pages_beyond
from atom.swarm.state.arenas import state_digest
from atom.swarm.stream.frames import Pace
from atom.training.replica.replica import Replica
from atom.training.state_sync.donors import Arenas, PeerDonors
from atom.training.storage.run_storage import RunStorage, Snapshot

DOWNLOADS = "downloads"


@dataclass(frozen=True)
class FirstState:
    """The state of round 0, which no commit names but the run's manifest."""

    digest: bytes
    initialise: Callable[[], bool]
    """Sets the replica to round 0, if it can be made here; whether it is bit for bit the run's."""


@dataclass(frozen=True)
class _Chain:
    """A verified chain that somebody serves."""

    commits: list[Commit]
    heads: list[Head]
    """One more than commits: the first is genesis."""
    peers: Sequence[str] = ()
    """Those that may serve what it names."""


class StateSync:
    """Used on the worker's thread, but for `proven_head` and `fetch_result`."""

    def __init__(
        self,
        replica: Replica,
        storage: RunStorage,
        donors: PeerDonors,
        first: FirstState,
        events: EventSink,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`on_progress`: rounds replayed, and how many there are; 0 there are: it broke off."""
        self._replica = replica
        self._storage = storage
        self._journal = storage.journal
        self._results = storage.results
        self._donors = donors
        self._first = first
        self._events = events
        self._on_progress = on_progress
        self.usable = False
        """Whether the replica holds the state of the journal's head."""
        self._walked = _Chain([], [storage.journal.genesis])
        """The chain that was checked last, as far as it was checked: it is not asked for again."""

    def restore(self) -> None:
        """From our own disk to the newest head whose state can be rebuilt.

        Journal entries beyond it are cut off: those rounds have to be fetched. Not `usable` if not
        even the run's first state is at hand: then `run` has to bring one.

        Raises: PeerRefused(SUPERSEDED): we end.
        """
        base = self._from_disk()
        self.usable = base is not None
        if base is not None:
            self._replay(self._journal.commits[base:])
        reached = self._replica.round if self.usable else 0
        if reached < len(self._journal.commits):
            self._storage.replace_chain(self._journal.commits, self._journal.heads, reached)

    def run(self, donors: Sequence[str], discard: bool) -> str:
        """To a better head that one of the donors proves, in this order: its chain is asked for
        anew, for what it serves belongs to where it is now. `discard`: our state is not to be
        trusted. Returns why nobody could bring us there; empty: we are there.

        Raises: StorageError.
        """
        problems: list[str] = []
        for donor in donors:
            try:
                chain = self._chain_of(donor)
                head, ours = chain.heads[-1], self._journal.head
                if not (head.prefers(ours) or (discard and head.digest == ours.digest)):
                    raise OSError("nothing better")
                self._follow(replace(chain, peers=[*dict.fromkeys([donor, *donors])]), discard)
                self._donors.keep_only()
                self._storage.room.give_up(DOWNLOADS)
                return ""
            except StorageError:
                raise  # our own disk, not the donor's fault
            except (PeerRefused, OSError, ValueError, MismatchError) as problem:
                problems.append(f"{donor}: {problem}")
        return "; ".join(problems) or "no donors"

    def proven_head(self, donor: str) -> Head:
        """Fetches and checks what that donor's chain has beyond what was checked before; where it
        leads. From any thread. Raises: PeerRefused, OSError."""
        return self._chain_of(donor).heads[-1]

    def fetch_result(
        self, digest: bytes, peers: Sequence[str], pace: Pace | None = None
    ) -> torch.Tensor:
        """A result by its digest, from whoever holds it and gives it no slower than `pace`. It is
        held from now on. What was here already is not held anew: its round may be over, and its
        memory the next one's. From any thread.

        Raises: PeerRefused, OSError.
        """
        held = self._results.get(digest)
        if held is not None:
            return held
        result = self._donors.result(digest, peers, pace)
        self._results.hold(digest, result)
        return result

    # ---- from our own disk

    def _from_disk(self) -> int | None:
        """Loads the newest snapshot on our chain, else round 0; the round, or None."""
        for snapshot in self._storage.snapshots():
            self._go_on()
            if self._load(snapshot):
                return snapshot.round
            self._events.emit("snapshot-damaged", path=snapshot.path.name)
        self._go_on()
        return 0 if self._first.initialise() else None

    def _load(self, snapshot: Snapshot) -> bool:
        """Only the state that the file's own name and the next commit vouch for."""
        try:
            arenas = snapshot.load()
        except StorageError:
            return False
        certified = self._certified(snapshot.round, self._journal.commits)
        vouched = {snapshot.state_digest, certified or snapshot.state_digest}
        if {state_digest(arenas)} != vouched:
            return False
        self._replica.load_state(arenas, snapshot.round)
        return True

    # ---- from others

    def _chain_of(self, donor: str) -> _Chain:
        """The donor's chain, checked. Raises: PeerRefused, OSError."""
        ours = self._journal
        base = self._walked
        if not base.heads[-1].prefers(ours.head):
            base = _Chain(ours.commits, ours.heads)
        chain = _Chain([], [ours.genesis])
        try:
            with self._donors.chain(donor) as ask:
                for along, page in pages_beyond(base.heads, ask):
                    if chain.heads[-1] != along[0]:
                        shared = along[0].round
                        chain = _Chain(base.commits[:shared], base.heads[: shared + 1])
                    chain.commits.extend(page)
                    chain.heads.extend(along[1:])
        finally:
            if chain.heads[-1].prefers(self._walked.heads[-1]):
                self._walked = chain
        return chain

    def _follow(self, chain: _Chain, discard: bool) -> None:
        """A peer that offers what it does not have, or something else, must not stand in the way of
        another offer. Raises: PeerRefused, OSError, StorageError."""
        here = len(self._journal.commits)
        on_chain = here < len(chain.heads) and chain.heads[here].digest == self._journal.head.digest
        ours, missed = on_chain and self.usable and not discard, chain.commits[here:]
        if ours and len(missed) <= self._worth_replaying and self._replay(missed, chain.peers):
            return
        failed: PeerRefused | OSError | None = None
        offered = self._donors.offered(chain.heads, chain.peers)
        for head in offered:
            if ours and head.round <= self._replica.round:
                continue
            try:
                self._donors.keep_only({head, offered[0]})
                self._begin_at(head, chain)
                return self._replay_or_fail(chain)
            except (PeerRefused, OSError) as problem:
                failed = failed or problem
        if ours and self.usable:
            return self._replay_or_fail(chain)
        if failed is not None:
            raise failed
        self._begin_anew(chain)
        self._replay_or_fail(chain)

    @property
    def _worth_replaying(self) -> int:
        """So many results have at most as many bytes as a state."""
        state = self._replica.state_arenas().values()
        return sum(arena.nbytes for arena in state) // self._results.arena_bytes

    def _certified(self, round_number: int, commits: Sequence[Commit]) -> bytes | None:
        """The digest of the state of that round; None for the newest: no commit names it yet."""
        if round_number == 0:
            return self._first.digest
        following = commits[round_number : round_number + 1]
        return following[0].value.parent_state_digest if following else None

    def _begin_at(self, head: Head, chain: _Chain) -> None:
        """Loads a state that others offer. Raises: PeerRefused, OSError."""
        digest = self._certified(head.round, chain.commits)
        if digest is None:
            raise PeerRefused(Reason.NOT_FOUND, f"no commit vouches for round {head.round} yet")
        arenas = self._state_of(head, chain.peers, digest)
        self.usable = False  # until the journal says the same
        self._replica.load_state(arenas, head.round)
        self._storage.replace_chain(chain.commits, chain.heads, head.round)
        self.usable = True

    def _state_of(self, head: Head, peers: Sequence[str], digest: bytes) -> Arenas:
        """In files, from which an interrupted fetch resumes; on a full disk, in our own memory."""
        found: list[Arenas] = []

        def in_files() -> None:
            try:
                found.append(self._donors.state(head, peers, digest, None))
            except StorageError:  # room for two states is a luxury, room for this one is not
                self._donors.keep_only({head})
                found.append(self._donors.state(head, peers, digest, None))

        if self._storage.room.attempt(DOWNLOADS, in_files):
            return found[0]
        self._donors.keep_only()
        self.usable = False
        return self._donors.state(head, peers, digest, self._replica.state_arenas())

    def _begin_anew(self, chain: _Chain) -> None:
        """At the run's first state. Raises: PeerRefused, OSError if that leads nowhere: before what
        we have goes, which may be all that is left of the run, the first result must be here."""
        if self.usable and chain.commits:
            self.fetch_result(chain.commits[0].value.result_digest, chain.peers)
        self.usable = False  # from here on the replica holds round 0, or nothing
        if not self._first.initialise():
            raise OSError("no donor serves a state on the chain")
        self._storage.replace_chain([], chain.heads, 0)
        self.usable = True

    # ---- replaying

    def _replay_or_fail(self, chain: _Chain) -> None:
        """What the chain has beyond our journal."""
        if not self._replay(chain.commits[len(self._journal.commits) :], chain.peers):
            raise OSError("the donors do not serve the results since this state")

    def _replay(self, commits: Sequence[Commit], peers: Sequence[str] = ()) -> bool:
        """Applies these to our state, one after the other; False (with some applied) if a result is
        neither here nor served. Raises: PeerRefused, OSError."""
        done, total = 0, len(commits)
        try:
            for commit in commits:
                self._on_progress(done, total)
                self._go_on()
                if not self._step(commit, peers):
                    break
                done += 1
        finally:
            if commits:
                self._on_progress(done, total if done == total else 0)
        return done == total

    def _step(self, commit: Commit, peers: Sequence[str]) -> bool:
        value = commit.value
        try:
            result = self.fetch_result(value.result_digest, peers)
        except PeerRefused as refused:
            if refused.reason in {Reason.NOT_FOUND, Reason.UNREACHABLE}:
                return False
            raise
        if value.round > self._journal.head.round:
            self._results.hold(value.result_digest, result)  # also the disk's; no ring runs here
            self._storage.record(commit)
        self._replica.apply(result, value.gradient_norm, value.round)
        self._results.release()
        return True

    def _go_on(self) -> None:
        """Between two steps, each of which may take a while. Raises: PeerRefused(SUPERSEDED)."""
        if self._donors.closed:
            raise PeerRefused(Reason.SUPERSEDED, "this peer ends")
