"""Recovery of a state: from disk after a restart, from other peers after an absence.

A state is a snapshot plus the later results, which the chain names. The chain is fetched first and
verified from genesis. Results and states are then accepted only if they have the digests that the
chain contains, so any peer may deliver them.

A peer that missed a few rounds replays them from its own state. A peer that missed more fetches the
newest state that a commit certifies, and replays the rounds since.

`Recovery` chooses the chain and the peers to ask; `PeerDonors` fetches what these peers serve.
"""

import itertools
import math
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from atom.base.errors import PeerRefused, Reason, StorageError
from atom.base.events import EventSink
from atom.swap.host_store import FROZEN
from atom.swarm.addresses import RecentHead
from atom.swarm.chain.commit import Commit, Head, valid_votes
from atom.swarm.chain.commit_chain import PAGE_BYTES, Ask, Chain, pages_beyond
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.state.arenas import DIGEST_BYTES
from atom.swarm.state.fetch import UNCHECKED_PACE, Wanted, Watch, asking, fetch
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import Transport
from atom.training.shared_state import SharedState
from atom.training.storage.run_storage import OFFERS

DOWNLOADS = "downloads"

Arenas = Mapping[str, torch.Tensor]


@dataclass(eq=False)
class PeerDonors:
    """Data that other peers serve. Each fetch that fails raises PeerRefused or OSError."""

    transport: Transport
    result_bytes: int
    """Size of one result, without the few bytes that each chunk adds."""
    state_bytes: int
    """Size of one state."""
    downloads: Path
    """Folder of states that are not complete yet."""
    watch: Watch
    """Receiver of the progress of fetches, and of reports about peers that sent wrong data."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Event that stops fetches and replays; set when this peer ends, from any thread."""

    def asking(self, peer_id: str) -> AbstractContextManager[Ask]:
        """Connect to a peer, to ask it for pages of its chain or for its list of states."""
        return asking(self.transport, peer_id, UNCHECKED_PACE, self.stop, self.watch)

    def offered(self, heads: Sequence[Head], peer_id: str) -> list[Head]:
        """Return the heads whose states the peer offers, newest first.

        Heads with a partial download on this disk come before all other heads.

        Args:
            heads: Heads to look for.
            peer_id: Peer to ask.
        """
        with self.asking(peer_id) as ask:
            raw = ask(OFFERS, PAGE_BYTES)
        told = {raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)}
        found = [head for head in heads if head.digest in told]
        return sorted(
            found, key=lambda head: (self._folder(head.digest).exists(), head.round), reverse=True
        )

    def state(self, head: bytes, peers: Sequence[str], digest: bytes) -> Arenas:
        """Fetch the state at a head into files, so an interrupted fetch can be continued.

        Args:
            head: Digest of the head.
            peers: Peers to ask.
            digest: Digest of the whole state.

        Raises:
            PeerRefused: No peer serves it.
            OSError: The connection failed.
            StorageError: The disk is full or gone.
        """
        wanted = Wanted(f"state/{head.hex()}", peers, digest, self.state_bytes + (1 << 20))
        return fetch(self.transport, wanted, self._folder(head), self.stop, self.watch)

    def frozen(self, peers: Sequence[str], digest: bytes, size_bytes: int) -> Arenas:
        """Fetch the frozen parameters into files, as `state` does."""
        wanted = Wanted(FROZEN, peers, digest, size_bytes + (1 << 20))
        return fetch(self.transport, wanted, self.downloads / FROZEN, self.stop, self.watch)

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> EncodedMean:
        """Fetch a round's mean by its digest.

        Args:
            pace: Slowest acceptable pace; None: any.
        """
        most = self.result_bytes + self.result_bytes // 32 + (1 << 20)
        wanted = Wanted(f"result/{digest.hex()}", peers, digest, most, pace)
        quiet = replace(self.watch, on_progress=lambda done, total: None)
        return EncodedMean.of(fetch(self.transport, wanted, None, self.stop, quiet))

    def keep_only(self, heads: Collection[bytes] = ()) -> None:
        """Delete all downloads except the states at the heads with these digests."""
        kept = {self._folder(head) for head in heads}
        for folder in self.downloads.glob("*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, head: bytes) -> Path:
        return self.downloads / head.hex()[:16]


@dataclass(eq=False)
class Recovery:
    """Chooser of the chain to follow, and of the peers that serve its states and results.

    Used on the worker's thread, except `proven` and `fetch_result`, which are thread-safe.
    """

    shared: SharedState
    donors: PeerDonors
    events: EventSink
    pinned: RecentHead | None = None
    """Head that every chain must have, from the join address."""

    def __post_init__(self) -> None:
        self._journal = self.shared.storage.journal
        self._walked = Chain([], [self._journal.genesis])
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
        pinned, ours = self.pinned, self._journal
        beyond = pinned is not None and pinned.round > ours.head.round
        is_chosen = beyond or self._has_pinned(ours)
        if not (is_chosen or self._is_astray):
            raise StorageError(
                "the state here is of another chain than the join address names",
                "ask the run's owner for the `pinned address` that `atom info` prints at the"
                " owner's peer; or join with another --state",
            )
        return self.shared.restore(lambda digest: self.fetch_result(digest, ()), is_chosen)

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
                head, ours = chain.head, self._journal.head
                again = discard and head.digest == ours.digest
                if not (head.prefers(ours) or again or self._owner_chose(chain)):
                    raise OSError("nothing better")
                self._follow(chain, [*dict.fromkeys([donor, *donors])], discard)
                self.shared.storage.room.attempt(DOWNLOADS, self.donors.keep_only)
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
        return chain.head, self._forks(chain)

    def _has_pinned(self, chain: Chain) -> bool:
        """Return True if the chain has the head in the join address, or the address has none."""
        return self.pinned is None or chain.has(self.pinned.round, self.pinned.digest)

    @property
    def _is_astray(self) -> bool:
        """True if the run's owner signed a head that our own chain lacks."""
        signed = self.pinned is not None and self.pinned.signature != b""
        return signed and not self._has_pinned(self._journal)

    def _owner_chose(self, chain: Chain) -> bool:
        """Return True if this chain, unlike ours, has the head that the run's owner signed."""
        return self._is_astray and self._has_pinned(chain)

    def _rivals(self, chain: Chain) -> tuple[Commit, Commit] | None:
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
            self.events.emit("double-vote", round=number, voters=voters, all_lied=lied)
        raise PeerRefused(Reason.WRONG_HEAD, f"another round {number} than the one decided here")

    def _forks(self, chain: Chain) -> tuple[Head, ...]:
        steps = zip(chain.commits, chain.heads, chain.heads[1:], strict=False)
        return tuple(
            head
            for commit, head, after in steps
            if commit.survivors and not self._journal.has(after.round, after.digest)
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
        result = self.shared.storage.results.get(digest) or self.donors.result(digest, peers, pace)
        self.shared.storage.results.hold(digest, result)

    # ---- from others

    def _chain_of(self, donor: str, claimed_round: float = math.inf) -> Chain:
        """Fetch and verify the donor's chain as far as it may lead beyond ours.

        A verified prefix is kept for the next donor, unless it has a branch that our own chain
        lacks: a single former member can make an endless branch.

        Raises: PeerRefused, OSError.
        """
        ours = self._journal
        base = self._walked
        if not base.head.prefers(ours.head):
            base = Chain(ours.commits, ours.heads)  # ours may be replaced meanwhile
        to_surpass = ours.genesis if self._is_astray else ours.head
        chain = Chain([], [ours.genesis])
        try:
            with self.donors.asking(donor) as ask:
                for along, page in pages_beyond(base.heads, ask, to_surpass, claimed_round):
                    if chain.head != along[0]:
                        chain = base.until(along[0].round)
                    chain.commits.extend(page)
                    chain.heads.extend(along[1:])
        finally:
            rivals = self._rivals(chain)
            branched = len(chain.head.branches) > len(ours.head.branches)
            if chain.head.prefers(self._walked.head) and rivals is None and not branched:
                self._walked = chain
        if rivals is not None:
            self._refuse(*rivals)
        if not self._has_pinned(chain):
            raise PeerRefused(Reason.WRONG_HEAD, "not the chain that the join address names")
        return chain

    def _follow(self, chain: Chain, peers: Sequence[str], discard: bool) -> None:
        """Bring the replica to the end of the chain, from our state or a state of the first peer.

        If fetching one offered state fails, the next one is tried. Raises: PeerRefused, OSError.
        """
        self._fetch_frozen(peers)
        here = self._journal.head
        ours = chain.has(here.round, here.digest) and self.shared.usable and not discard
        if ours and chain.head.round - here.round <= self._worth_replaying:
            with suppress(PeerRefused, OSError):
                return self._replay_rest(chain, peers)
        failed: PeerRefused | OSError | None = None
        offered = self.donors.offered(chain.heads, peers[0])
        for head in offered:
            if ours and head.round <= self._journal.head.round:
                continue
            try:
                self.donors.keep_only([each.digest for each in offered])
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
        if not self.shared.has_frozen:
            size = sum(arena.nbytes for arena in self.shared.replica.frozen.values())
            digest = self.shared.first.frozen_digest
            found = self._downloaded(lambda: self.donors.frozen(peers, digest, size))
            self.shared.adopt_frozen(found)

    @property
    def _worth_replaying(self) -> int:
        """Number of results that together have at most as many bytes as a state."""
        state = self.shared.replica.state_arenas().values()
        return sum(arena.nbytes for arena in state) // self.shared.storage.results.usual_bytes

    def _begin_at(self, head: Head, chain: Chain, peers: Sequence[str]) -> None:
        """Fetch and load the state at a head of the chain. Raises: PeerRefused, OSError."""
        digest = chain.certified_state(head.round, self.shared.first.digest)
        if digest is None:
            raise PeerRefused(Reason.NOT_FOUND, f"no commit vouches for round {head.round} yet")
        found = self._downloaded(lambda: self.donors.state(head.digest, peers, digest))
        self.shared.adopt(found, chain.until(head.round))

    def _downloaded(self, fetched: Callable[[], Arenas]) -> Arenas:
        """Return the result of a download to disk; report a full disk.

        Raises: PeerRefused, OSError.
        """
        found, room = list[Arenas](), self.shared.storage.room
        if not room.attempt(DOWNLOADS, lambda: found.append(fetched())):
            raise OSError(room.paused[DOWNLOADS])
        return found[0]

    def _replay_rest(self, chain: Chain, peers: Sequence[str]) -> None:
        missed = chain.commits[self._journal.head.round :]
        self.shared.replay(missed, lambda digest: self.fetch_result(digest, peers))
