"""Synchronisation of a replica: from disk after a restart, from other peers after an absence.

A state is a snapshot plus the later results, which the chain names. The chain is fetched first and
verified from genesis. Results and states are then accepted only if they have the digests that the
chain contains, so any peer may deliver them.

A peer that missed a few rounds replays them from its own state. A peer that missed more fetches the
newest state that a commit certifies, and replays the rounds since.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atom.base.errors import PeerRefused, StorageError
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.addresses import RecentHead
from atom.swarm.chain.commit import Commit, Head, valid_votes
from atom.swarm.chain.commit_chain import pages_beyond
from atom.swarm.stream.frames import Pace
from atom.training.peer_donors import Arenas, PeerDonors
from atom.training.shared_state import SharedState

DOWNLOADS = "downloads"


@dataclass(frozen=True)
class _Chain:
    """Verified chain of commits from genesis on."""

    commits: list[Commit]
    heads: list[Head]
    """Heads of the chain: genesis, then the head after each commit."""


def _has_head(heads: Sequence[Head], wanted: RecentHead) -> bool:
    at = heads[wanted.round : wanted.round + 1]
    return [head.digest for head in at] == [wanted.digest]


class StateSync:
    """Synchronisation of the replica with the chain, from disk or from other peers.

    Used on the worker's thread, except `proven` and `fetch_result`, which are thread-safe.
    """

    def __init__(
        self,
        shared: SharedState,
        donors: PeerDonors,
        events: EventSink,
        pinned: RecentHead | None = None,
    ) -> None:
        """Begin with the state and the chain on this disk.

        Args:
            shared: State and chain of this peer.
            donors: Fetches from other peers.
            events: Event log.
            pinned: Head that every chain must have, from the join address.
        """
        self.pinned = pinned
        self._shared = shared
        self._storage = shared.storage
        self._journal = shared.storage.journal
        self._results = shared.storage.results
        self._donors = donors
        self._events = events
        self._walked = _Chain([], [self._journal.genesis])
        """Verified part of the best fetched chain, which is not fetched again."""

    def restore(self) -> bytes:
        """Rebuild the newest state that our own disk allows; return its digest if it is usable.

        The state is not usable if the run's owner has signed another chain. Then `run` must fetch a
        state; until then our own chain stays on the disk.

        Raises:
            PeerRefused: This peer ends (SUPERSEDED).
            StorageError: The chain here lacks the head that the join address names, and the run's
                owner did not sign that address.
        """
        heads, pinned = self._journal.heads, self.pinned
        astray = pinned is not None and pinned.round < len(heads) and not _has_head(heads, pinned)
        if astray and self._chosen is None:
            raise StorageError(
                "the state here is of another chain than the join address names",
                "ask the run's owner for the address `with its head` that `atom info` prints at the"
                " owner's peer; or join with another --state",
            )
        return self._shared.restore(lambda digest: self.fetch_result(digest, ()), not astray)

    def run(
        self, donors: Sequence[str], discard: bool, forks: frozenset[bytes] | None = None
    ) -> str:
        """Bring the replica to a better head that one of the donors proves.

        A donor's chain is fetched again, because its states and results belong to its present head.

        Args:
            donors: Peer ids, in the order to ask them.
            discard: True if our own state must not be trusted.
            forks: Digests of the heads from which the chain may branch. None: from any head, but
                chains without new branches are tried first, because a single former member can
                make a branch.

        Returns:
            Why no donor brought the replica to a better head; empty if one did.
        """
        problems: list[str] = []
        put_off: list[str] = []
        for donor in itertools.chain(donors, put_off):
            try:
                chain = self._chain_of(donor)
                new = {head.digest for head in self._forks(chain)}
                if new and forks is None and donor not in put_off:
                    put_off.append(donor)
                    continue
                if forks is not None and not new <= forks:
                    raise OSError("a branch that was not agreed to")
                head, ours = chain.heads[-1], self._journal.head
                again = discard and head.digest == ours.digest
                if not (head.prefers(ours) or again or self._owner_chose(chain)):
                    raise OSError("nothing better")
                self._follow(chain, [*dict.fromkeys([donor, *donors])], discard)
                self._storage.room.attempt(DOWNLOADS, self._donors.keep_only)
                return ""
            except (PeerRefused, OSError, ValueError) as problem:
                problems.append(f"{donor}: {problem}")
        return "; ".join(problems) or "no donors"

    def proven(self, donor: str, claimed_round: float = math.inf) -> tuple[Head, tuple[Head, ...]]:
        """Fetch and verify a donor's chain beyond the rounds that were verified before.

        Thread-safe.

        Args:
            donor: Peer id.
            claimed_round: Round of the head in the donor's lease.

        Returns:
            Last head of the chain, and the heads from which branches depart beyond our own chain.

        Raises:
            PeerRefused: The chain does not hold, or the donor refused.
            OSError: The donor cannot be reached.
        """
        chain = self._chain_of(donor, claimed_round)
        return chain.heads[-1], self._forks(chain)

    @property
    def _chosen(self) -> RecentHead | None:
        """Head that the run's owner signed and that our own chain lacks; None if there is none."""
        pinned = self.pinned
        if pinned is None or not pinned.signature or _has_head(self._journal.heads, pinned):
            return None
        return pinned

    def _owner_chose(self, chain: _Chain) -> bool:
        """Return True if this chain, unlike ours, has the head that the run's owner signed."""
        chosen = self._chosen
        return chosen is not None and _has_head(chain.heads, chosen)

    def _rivals(self, chain: _Chain) -> tuple[Commit, Commit] | None:
        """Return the first two commits that differ, ours and theirs, if a quorum decided ours.

        The chain must then be refused. None: the chain may be followed.
        """
        if self._owner_chose(chain):
            return None
        pairs = zip(self._journal.commits, chain.commits, strict=False)
        found = next((pair for pair in pairs if pair[0].value != pair[1].value), None)
        return None if found is None or found[0].survivors else found

    def _refuse(self, ours: Commit, theirs: Commit) -> None:
        """Refuse a chain that replaces a round that a quorum decided.

        If a quorum decided the other round as well, some voters have signed both: the proof is kept
        and these voters are reported. An honest voter may sign two values at different ballots, if
        other voters lied to it. At one ballot to which both values belong, it signs one value.

        Raises:
            PeerRefused: Always, with WRONG_HEAD.
        """
        number = ours.value.round
        if not theirs.survivors and self._journal.keep_proof([ours, theirs]):
            both = valid_votes(ours) & valid_votes(theirs)
            voters = sorted(voter.peer_id for voter in both)
            ballot = ours.ballot
            lied = ballot == theirs.ballot >= max(ours.value.origin, theirs.value.origin)
            self._events.emit("double-vote", round=number, voters=voters, all_lied=lied)
        raise PeerRefused(Reason.WRONG_HEAD, f"another round {number} than the one decided here")

    def _forks(self, chain: _Chain) -> tuple[Head, ...]:
        ours = self._journal.heads
        steps = zip(chain.commits, chain.heads, chain.heads[1:], strict=False)
        return tuple(
            head
            for commit, head, after in steps
            if commit.survivors and ours[after.round : after.round + 1] != [after]
        )

    def fetch_result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> None:
        """Fetch a result by its digest, unless it is here, and hold it in memory. Thread-safe.

        Args:
            digest: Digest of the result.
            peers: Peer ids to ask.
            pace: Slowest acceptable pace; None: any.

        Raises:
            PeerRefused: No peer serves it.
            OSError: The connection failed.
        """
        result = self._results.get(digest) or self._donors.result(digest, peers, pace)
        self._results.hold(digest, result)

    # ---- from others

    def _chain_of(self, donor: str, claimed_round: float = math.inf) -> _Chain:
        """Fetch and verify the donor's chain as far as it may lead beyond ours.

        A verified prefix is kept for the next donor, unless it has a branch that our own chain
        lacks: a single former member can make an endless branch.

        Raises: PeerRefused, OSError.
        """
        ours = self._journal
        base = self._walked
        if not base.heads[-1].prefers(ours.head):
            base = _Chain(ours.commits, ours.heads)
        to_surpass = ours.head if self._chosen is None else ours.genesis
        chain = _Chain([], [ours.genesis])
        try:
            with self._donors.asking(donor) as ask:
                for along, page in pages_beyond(base.heads, ask, to_surpass, claimed_round):
                    if chain.heads[-1] != along[0]:
                        shared = along[0].round
                        chain = _Chain(base.commits[:shared], base.heads[: shared + 1])
                    chain.commits.extend(page)
                    chain.heads.extend(along[1:])
        finally:
            head, walked = chain.heads[-1], self._walked.heads[-1]
            rivals = self._rivals(chain)
            branched = len(head.branches) > len(ours.head.branches)
            if head.prefers(walked) and rivals is None and not branched:
                self._walked = chain
        if rivals is not None:
            self._refuse(*rivals)
        self._require_pinned(chain)
        return chain

    def _require_pinned(self, chain: _Chain) -> None:
        """Require that the chain has the head that the join address names. Raises: PeerRefused."""
        if self.pinned is not None and not _has_head(chain.heads, self.pinned):
            raise PeerRefused(Reason.WRONG_HEAD, "not the chain that the join address names")

    def _follow(self, chain: _Chain, peers: Sequence[str], discard: bool) -> None:
        """Bring the replica to the end of the chain, from our state or a state of the first peer.

        If fetching one offered state fails, the next one is tried. Raises: PeerRefused, OSError.
        """
        self._fetch_frozen(peers)
        here = self._journal.head
        on_chain = chain.heads[here.round : here.round + 1] == [here]
        ours = on_chain and self._shared.usable and not discard
        if ours and len(chain.commits) - here.round <= self._worth_replaying:
            with contextlib.suppress(PeerRefused, OSError):
                return self._replay_rest(chain, peers)
        failed: PeerRefused | OSError | None = None
        offered = self._donors.offered(chain.heads, peers[0])
        for head in offered:
            if ours and head.round <= self._shared.head.round:
                continue
            try:
                self._donors.keep_only([each.digest for each in offered])
                self._begin_at(head, chain, peers)
                break
            except (PeerRefused, OSError) as problem:
                failed = failed or problem
        else:
            if not ours:
                raise failed or OSError("no donor serves a state on the chain")
        self._replay_rest(chain, peers)

    def _fetch_frozen(self, peers: Sequence[str]) -> None:
        """Fetch the frozen parameters if they are missing. Raises: PeerRefused, OSError."""
        if not self._shared.has_frozen:
            size = sum(arena.nbytes for arena in self._shared.replica.frozen.values())
            digest = self._shared.first.frozen_digest
            found = self._downloaded(lambda: self._donors.frozen(peers, digest, size))
            self._shared.adopt_frozen(found)

    @property
    def _worth_replaying(self) -> int:
        """Number of results that together have at most as many bytes as a state."""
        state = self._shared.replica.state_arenas().values()
        return sum(arena.nbytes for arena in state) // self._results.usual_bytes

    def _begin_at(self, head: Head, chain: _Chain, peers: Sequence[str]) -> None:
        """Fetch and load the state at a head of the chain. Raises: PeerRefused, OSError."""
        digest = self._shared.certified(head.round, chain.commits)
        if digest is None:
            raise PeerRefused(Reason.NOT_FOUND, f"no commit vouches for round {head.round} yet")
        found = self._downloaded(lambda: self._donors.state(head.digest, peers, digest))
        self._shared.adopt(found, chain.commits, chain.heads, head.round)

    def _downloaded(self, fetched: Callable[[], Arenas]) -> Arenas:
        """Return the result of a download to disk; report a full disk.

        Raises: PeerRefused, OSError.
        """
        found, room = list[Arenas](), self._storage.room
        if not room.attempt(DOWNLOADS, lambda: found.append(fetched())):
            raise OSError(room.paused[DOWNLOADS])
        return found[0]

    def _replay_rest(self, chain: _Chain, peers: Sequence[str]) -> None:
        missed = chain.commits[len(self._journal.commits) :]
        self._shared.replay(missed, lambda digest: self.fetch_result(digest, peers))
