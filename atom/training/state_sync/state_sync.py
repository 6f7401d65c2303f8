"""Bringing a replica to a head: after a restart from disk, after an absence from the others.

A state is a snapshot plus the results since, and the chain says which results those are. The
chain comes first and is verified from genesis; whatever bytes follow are accepted only under the
names it gives them. So it does not matter who delivers; but for the newest state of all, which no
commit names yet: the next round compares its digest with everybody else's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from atom.base.errors import AtomError, MismatchError, PeerRefused, StorageError
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.ring_standing import Pace
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.donor_queue import LIES
from atom.training.replica.replica import Replica
from atom.training.state_sync.donated_chain import donated_chain
from atom.training.state_sync.donors import Arenas, Donors, Offer
from atom.training.state_sync.offers import offers_on
from atom.training.state_sync.one_by_one import Told, one_by_one
from atom.training.state_sync.way_back import Position, Sizes, Way, ways_back
from atom.training.storage.run_storage import RunStorage
from atom.training.storage.snapshot import Snapshot, load_snapshot

DOWNLOADS = "downloads"


class CatchUpFailed(AtomError):
    """Nobody could bring us to a better head; `shunned` served what did not hold."""

    def __init__(self, message: str, shunned: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.shunned = shunned


class BrokenOff(OSError):
    """This peer ends before it has a state; its disk is as it was."""


@dataclass(frozen=True)
class FirstState:
    """The state of round 0, which no commit names but the run's manifest."""

    digest: bytes
    initialise: Callable[[], bool]
    """Sets the replica to round 0, if it can be made here; whether it is bit for bit the run's."""


class StateSync:
    """Used on the worker's thread, but for `fetch_result`."""

    def __init__(
        self,
        replica: Replica,
        storage: RunStorage,
        donors: Donors,
        first: FirstState,
        events: EventSink,
        told: Told = lambda done, total: None,
    ) -> None:
        """`told`: how far replaying rounds is, as `one_by_one` tells it."""
        self._replica = replica
        self._told = told
        self._storage = storage
        self._journal = storage.journal
        self._results = storage.results
        self._donors = donors
        self._first = first
        self._events = events
        self.usable = False
        """Whether the replica holds the state of the journal's head."""

    def restore(self) -> None:
        """From our own disk to the newest head whose state can be rebuilt.

        Journal entries beyond it are cut off: those rounds have to be fetched. Not `usable` if not
        even the run's first state is at hand: then `run` has to bring one. Raises: BrokenOff.
        """
        base = self._from_disk()
        self.usable = base is not None
        if base is not None:
            one_by_one(self._journal.commits[base:], self._restore_one, self._told)
        reached = self._replica.round if self.usable else 0
        journal = self._journal
        if reached < len(journal.commits):
            self._storage.replace_chain(journal.commits[:reached], journal.heads[: reached + 1])

    def run(self, donors: Mapping[str, bytes], discard: bool) -> tuple[str, ...]:
        """To the best chain that the donors (peer id → its head) prove. Returns the donors whose
        answers were false. Raises: CatchUpFailed."""
        shunned: set[str] = set()
        problems: list[str] = []
        for donor, claimed in donors.items():
            if donor in shunned:
                continue
            others = [donor, *(peer for peer in donors if peer not in {donor, *shunned})]
            try:
                commits, heads = donated_chain(self._journal, self._donors, donor, claimed)
                if not self._wanted(heads[-1], discard):
                    problems.append(f"{donor} has nothing better")
                    continue
                self._follow(commits, heads, others, discard)
                self._donors.forget()
                self._storage.room.give_up(DOWNLOADS)
                return tuple(sorted(shunned | self._donors.take_liars()))
            except PeerRefused as refused:
                if refused.reason in LIES:
                    shunned |= self._donors.take_liars() or {donor}
                problems.append(f"{donor}: {refused}")
            except StorageError:
                raise  # our own disk, not the donor's fault
            except (ValueError, MismatchError) as misfit:  # what it serves is not of this model
                shunned.add(donor)
                problems.append(f"{donor}: {misfit}")
            except OSError as problem:
                problems.append(f"{donor}: {problem}")
        shunned |= self._donors.take_liars()
        raise CatchUpFailed("; ".join(problems) or "no donors", tuple(sorted(shunned)))

    def fetch_result(
        self, digest: bytes, peers: Sequence[str], pace: Pace | None = None
    ) -> torch.Tensor:
        """A result by its digest, from whoever holds it and gives it no slower than `pace`. It is
        held from now on. What was here already is not held anew: its round may be over, and its
        memory the next one's.

        Raises: PeerRefused, OSError.
        """
        held = self._results.get(digest)
        if held is not None:
            return held
        result = self._donors.result(digest, peers, pace)
        self._results.hold(digest, result)
        return result

    def _from_disk(self) -> int | None:
        """Loads the newest snapshot on our chain, else round 0; the round, or None."""
        for snapshot in self._storage.snapshots():
            self._go_on()
            if not self._journal.leads_to(snapshot):
                continue
            if self._load(snapshot):
                return snapshot.round
            self._events.emit("snapshot-damaged", path=snapshot.path.name)
        self._go_on()
        return 0 if self._first.initialise() else None

    def _load(self, snapshot: Snapshot) -> bool:
        """Only the state that the file's own name and the next commit vouch for."""
        try:
            arenas = load_snapshot(snapshot)
        except StorageError:
            return False
        certified = self._certified(snapshot.round, self._journal.commits)
        vouched = {snapshot.state_digest, certified or snapshot.state_digest}
        if {state_digest(arenas)} != vouched:
            return False
        self._replica.load_state(arenas, snapshot.round)
        return True

    def _certified(self, round_number: int, commits: Sequence[Commit]) -> bytes | None:
        """The digest of the state of that round; None for the newest: no commit names it yet."""
        if round_number == 0:
            return self._first.digest
        following = commits[round_number : round_number + 1]
        return following[0].value.parent_state_digest if following else None

    def _wanted(self, head: Head, discard: bool) -> bool:
        ours = self._journal.head
        return head.prefers(ours) or (discard and head.digest == ours.digest)

    def _follow(
        self, commits: list[Commit], heads: list[Head], peers: list[str], discard: bool
    ) -> None:
        """By the way with the fewest bytes; where it ends too soon, by the next one."""
        here, sizes = len(self._journal.commits), self._sizes()
        on_chain = here < len(heads) and heads[here].digest == self._journal.head.digest
        own = here if on_chain and self.usable and not discard else None
        position, length = Position(own, self._rounds_held(commits)), len(commits)
        if own is not None:
            (by_results,) = ways_back(position, length, [], sizes)
            if by_results.missing_bytes <= sizes.state:  # then nobody's snapshot is needed
                self._tell(by_results, 1)
                if self._replay(commits[own:], peers):
                    return
                position = Position(None, position.results)
        offers = offers_on(heads, self._donors, peers)
        begun = [(offer, self._donors.begun(offer)) for offer in offers]
        ways = ways_back(position, length, begun, sizes)
        if ways:
            self._try(ways, commits, heads, peers)
        elif own is None:
            self._begin_anew(heads, commits, peers)
            self._replay_or_fail(commits, peers)
        else:
            raise OSError("the donors serve neither the results since our state nor another one")

    def _try(
        self, ways: list[Way], commits: list[Commit], heads: list[Head], peers: list[str]
    ) -> None:
        """A peer that offers what it does not have, or something else, must not stand in the way
        of another offer. Raises: PeerRefused, OSError."""
        failed: PeerRefused | OSError | None = None
        for way in ways:
            self._tell(way, len(ways))
            try:
                if way.base is not None:
                    self._donors.forget({way.base, self._most_begun(ways)})
                    self._begin_at(way.base, commits, heads, peers)
                self._replay_or_fail(commits[way.first_round :], peers)
                return
            except (PeerRefused, OSError) as problem:
                failed = failed or problem
        assert failed is not None, "called without ways"
        raise failed

    def _most_begun(self, ways: list[Way]) -> Offer:
        """Of the states offered, the one an interrupted fetch left most of: it stays until another
        one is whole, since what interrupted it may interrupt this one too."""
        offers = [way.base for way in ways if way.base is not None]
        return max(offers, key=self._donors.begun)

    def _begin_at(
        self, offer: Offer, commits: list[Commit], heads: list[Head], peers: list[str]
    ) -> None:
        """Loads a state that others offer. Raises: PeerRefused, OSError."""
        digest = self._certified(offer.round, commits)
        arenas = self._state_of(offer, peers, digest)
        if digest is not None and state_digest(arenas) != digest:
            self._donors.reject(offer)
            raise PeerRefused(Reason.STATE_MISMATCH, f"state of round {offer.round}")
        self.usable = False  # until the journal says the same
        self._replica.load_state(arenas, offer.round)
        self._storage.replace_chain(commits[: offer.round], heads[: offer.round + 1])
        self.usable = True

    def _state_of(self, offer: Offer, peers: list[str], digest: bytes | None) -> Arenas:
        """In files, from which an interrupted fetch resumes; on a full disk, in our own memory."""
        found: list[Arenas] = []

        def in_files() -> None:
            try:
                found.append(self._donors.state(offer, peers, digest, None))
            except StorageError:  # room for two states is a luxury, room for this one is not
                self._donors.forget({offer})
                found.append(self._donors.state(offer, peers, digest, None))

        if self._storage.room.attempt(DOWNLOADS, in_files):
            return found[0]
        self._donors.forget()
        self.usable = False
        return self._donors.state(offer, peers, digest, self._replica.state_arenas())

    def _begin_anew(self, heads: list[Head], commits: list[Commit], peers: list[str]) -> None:
        """At the run's first state. Raises: PeerRefused, OSError if that leads nowhere: before what
        we have goes, which may be all that is left of the run, the first result must be here."""
        if self.usable and commits:
            self.fetch_result(commits[0].value.result_digest, peers)
        self.usable = False  # from here on the replica holds round 0, or nothing
        if not self._first.initialise():
            raise OSError("no donor serves a state on the chain")
        self._storage.replace_chain([], heads[:1])
        self.usable = True

    def _replay_or_fail(self, commits: Sequence[Commit], peers: Sequence[str]) -> None:
        if not self._replay(commits, peers):
            raise OSError("the donors do not serve the results since their snapshot")

    def _replay(self, commits: Sequence[Commit], peers: Sequence[str]) -> bool:
        """Applies the commits in order; False (with some applied) if a result is not served."""
        return one_by_one(commits, lambda commit: self._replay_one(commit, peers), self._told)

    def _go_on(self) -> None:
        """Between two steps, each of which may take a while. Raises: BrokenOff."""
        if self._donors.closed:
            raise BrokenOff("this peer ends")

    def _replay_one(self, commit: Commit, peers: Sequence[str]) -> bool:
        self._go_on()
        digest = commit.value.result_digest
        try:
            result = self.fetch_result(digest, peers)
        except PeerRefused as refused:
            if refused.reason in {Reason.NOT_FOUND, Reason.UNREACHABLE}:
                return False
            raise
        self._results.hold(digest, result)  # also one of the disk's; no ring runs here
        self._storage.record(commit)
        self._apply(commit, result)
        self._results.release()
        return True

    def _restore_one(self, commit: Commit) -> bool:
        self._go_on()
        result = self._results.get(commit.value.result_digest)
        if result is not None:
            self._apply(commit, result)
        return result is not None

    def _sizes(self) -> Sizes:
        state = self._replica.state_arenas().values()
        return Sizes(sum(arena.nbytes for arena in state), self._results.arena_bytes)

    def _rounds_held(self, commits: Sequence[Commit]) -> set[int]:
        stored = set(self._results.stored())
        return {c.value.round for c in commits if c.value.result_digest in stored}

    def _tell(self, way: Way, ways: int) -> None:
        self._events.emit(
            "way-back",
            by="results" if way.base is None else "snapshot",
            from_round=way.first_round,
            missing_bytes=way.missing_bytes,
            ways=ways,
        )

    def _apply(self, commit: Commit, result: torch.Tensor) -> None:
        self._replica.apply(result, commit.value.gradient_norm, commit.value.round)
