"""Chain of commits: its bytes on the wire and on disk, its verification, and the ledger of the run.

A record is a length and an encoded commit. A chain is a sequence of records.

A later quorum vouches for all that led to its head, so most certificates could be skipped. They are
checked all the same: a head's digest does not cover votes, so a peer that skipped a forged
certificate would keep it, pass it on, and be refused by the next peer that checks that round. Every
commit has the sequences of each member, so every reader that has the run's manifest can verify the
ledger's sums.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atom.base.errors import PeerRefused, Reason
from atom.swarm import schema
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.succession import commit_problem

LENGTH_BYTES = 4
MAX_RECORD_BYTES = 256 * 1024
PAGE_BYTES = LENGTH_BYTES + MAX_RECORD_BYTES
"""Most bytes of a chain that are fetched before their certificates are checked."""
KEPT_RECORD_BYTES = 64 * 1024 * 1024
MAX_CHAIN_BYTES = 64 * 1024 * 1024
"""Bytes of a donor's chain after which a fetch ends; it may exceed them by one page."""
MOST_BEYOND_CLAIM = 8
"""Rounds that a donor may have committed since it published its lease."""

Ask = Callable[[str, int], bytes]
"""Return the bytes that a peer serves under a name, up to a limit. Raises: PeerRefused, OSError."""


@dataclass(eq=False)
class Chain:
    """Verified commits since genesis."""

    commits: list[Commit]
    heads: list[Head]
    """Heads along the commits: genesis, then the head after each commit."""

    @property
    def head(self) -> Head:
        """Head after the last commit."""
        return self.heads[-1]

    def has(self, round_number: int, digest: bytes) -> bool:
        """Return True if the head at that round has this digest. Thread-safe."""
        at = self.heads[round_number : round_number + 1] if round_number >= 0 else []
        return [head.digest for head in at] == [digest]

    def certified_state(self, round_number: int, first: bytes) -> bytes | None:
        """Return the digest of the state after a round; None if no commit names that state yet.

        Args:
            round_number: Round of the state; the newest state is not named yet.
            first: Digest of the state of round 0.
        """
        if round_number == 0:
            return first
        following = self.commits[round_number : round_number + 1]
        return following[0].value.parent_state_digest if following else None

    def until(self, round_number: int) -> "Chain":
        """Return a copy of the chain up to that round."""
        return Chain(self.commits[:round_number], self.heads[: round_number + 1])


def record_of(commit: Commit) -> bytes:
    """Return the record of one commit."""
    raw = schema.encode(commit)
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


def parse_commits(raw: bytes) -> tuple[list[Commit], int]:
    """Return the commits in `raw`, and the offset at which the last whole record ends.

    Raises:
        PeerRefused: A whole record is not a commit.
    """
    commits: list[Commit] = []
    start = 0
    while start + LENGTH_BYTES <= len(raw):
        size = int.from_bytes(raw[start : start + LENGTH_BYTES], "big")
        if size > MAX_RECORD_BYTES:
            raise PeerRefused(Reason.TOO_LARGE, "commit record")
        end = start + LENGTH_BYTES + size
        if end > len(raw):
            break
        commits.append(schema.decode(Commit, raw[start + LENGTH_BYTES : end], MAX_RECORD_BYTES))
        start = end
    return commits, start


class EncodedRecords:
    """Records of one growing chain, each encoded once for all peers that ask. Thread-safe.

    Memory is bounded: beyond `KEPT_RECORD_BYTES` the records are dropped and encoded again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chain: Sequence[Commit] = ()
        self._records: dict[int, bytes] = {}
        """Record by its place in the chain."""
        self._size_bytes = 0

    def page(self, commits: Sequence[Commit], since: int) -> bytes:
        """Return as many records after round `since` as fit in `PAGE_BYTES`.

        Args:
            commits: Chain since genesis, to which another thread may append; another chain has to
                be another list.
            since: Round; the first record is of the round after it.

        Returns:
            One record at least; empty if there is no commit after that round.
        """
        page, size = list[bytes](), 0
        for index in range(since, len(commits)):
            record = self._record(commits, index)
            size += len(record)
            if page and size > PAGE_BYTES:
                break
            page.append(record)
        return b"".join(page)

    def _record(self, commits: Sequence[Commit], index: int) -> bytes:
        with self._lock:
            if commits is not self._chain or self._size_bytes > KEPT_RECORD_BYTES:
                self._chain, self._records, self._size_bytes = commits, {}, 0
            if index not in self._records:
                self._records[index] = record_of(commits[index])
                self._size_bytes += len(self._records[index])
            return self._records[index]


def pages_beyond(
    heads: Sequence[Head], ask: Ask, ours: Head | None = None, claimed_round: float = math.inf
) -> Iterator[tuple[list[Head], list[Commit]]]:
    """Fetch and verify the part of a donor's chain that is not on ours, page by page.

    The place where the chains part is searched backwards, in steps that double, then by halves: so
    a donor that only repeats known rounds costs a few pages. A chain that cannot become preferred
    to ours, such as a branch against a round of a quorum, ends the fetch after its first page.

    Args:
        heads: Heads of one trusted chain, in order; the first is genesis.
        ask: Asks the donor.
        ours: Head that the donor's chain has to surpass; None: the last of `heads`.
        claimed_round: Round of the head that the donor claims; a few more are fetched.

    Yields:
        Heads along a page, beginning with the head before it, and the commits of the page. Less
        than the donor's whole chain if that has more than `MAX_CHAIN_BYTES` beyond ours.

    Raises:
        PeerRefused: A commit does not follow, or a branch has more than `MAX_CHAIN_BYTES`
            (TOO_LARGE).
        OSError: Raised by `ask`.
    """
    size = 0

    def page_after(since: int) -> list[Commit]:
        nonlocal size
        raw = ask(f"chain/{since}", PAGE_BYTES)
        size += len(raw)
        commits, end = parse_commits(raw)
        if end != len(raw):
            raise PeerRefused(Reason.MALFORMED, "a page ends in the middle of a commit")
        return commits

    def page_at(index: int) -> list[Commit]:
        found = page_after(heads[index].round)
        follows = found and (index == 0 or found[0].value.parent == heads[index].digest)
        return found if follows else []

    shared, beyond, index, step = -1, len(heads), len(heads) - 1, 1
    page: list[Commit] = []
    while beyond - shared > 1:
        if found := page_at(index):
            shared, page = index, found
        else:
            beyond = index
        index = max(beyond - step, 0) if shared < 0 else (shared + beyond) // 2
        step *= 2
    head = heads[shared]
    while page and head.round < claimed_round + MOST_BEYOND_CLAIM:
        along = verified_heads(head, page)
        if surpasses_for_good(ours or heads[-1], along[-1]):
            return
        yield along, page
        if along[1] in heads[beyond : beyond + 1]:
            return  # its chain ends within ours
        head = along[-1]
        if size > MAX_CHAIN_BYTES:
            if len(head.branches) > len(heads[shared].branches):
                raise PeerRefused(Reason.TOO_LARGE, f"a branch of more than {size} bytes")
            return
        page = page_after(head.round)


def surpasses_for_good(ours: Head, theirs: Head) -> bool:
    """Return True if our head is preferred to each chain that continues `theirs`.

    A continuation changes only the last part of a head's rank (see `rank`).
    """
    fixed = theirs.rank[:-1]
    return ours.rank[: len(fixed)] > fixed


def verified_heads(first: Head, commits: Sequence[Commit]) -> list[Head]:
    """Verify a chain that begins at the trusted head `first`; return the heads along it.

    Raises:
        PeerRefused: with the reason of `commit_problem`, at the first commit that does not follow.
    """
    heads = [first]
    for commit in commits:
        if (problem := commit_problem(heads[-1], commit)) is not None:
            raise PeerRefused(problem, f"round {commit.value.round}")
        heads.append(heads[-1].after(commit.value))
    return heads


class Round(NamedTuple):
    """One committed round."""

    number: int
    loss: float
    """Mean loss over the round's sequences; for text in nats per token."""
    sequences: int
    members: int
    """Peers whose gradients were averaged."""
    absent: int
    """Number of voters that were not in the exchange. A voter that was in it without contributing
    is not absent, but does not count as a member either."""
    branch: int
    """Number of survivors that went on without a quorum; 0 for an ordinary round."""


class Share(NamedTuple):
    """Contributions of one peer to committed rounds."""

    sequences: int
    """Sequences that the peer contributed to them; the paper calls them mini-batches."""
    rounds: int
    """Number of rounds to which the peer contributed."""
    first_round: int
    last_round: int


@dataclass(frozen=True)
class Ledger:
    """Rounds 1 to the head's, and the sum of each peer's contributions to them."""

    head: Head
    rounds: tuple[Round, ...] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)
    """Contributions by peer id, over all restarts of a peer."""

    def after(self, heads: Sequence[Head], commits: Sequence[Commit]) -> "Ledger":
        """Return the ledger with more commits.

        Args:
            heads: Heads along the commits: `heads[0]` is this ledger's, and `heads[i + 1]` is the
                head after `commits[i]`.
            commits: Verified commits.
        """
        assert heads[0] == self.head
        shares = dict(self.shares)
        for commit in commits:
            _add(shares, commit)
        new = map(_round_of, heads, commits)
        return Ledger(heads[-1], (*self.rounds, *new), shares)

    @property
    def sequences(self) -> int:
        """Sequences in all committed rounds."""
        return self.head.work

    def by_share(self) -> list[tuple[str, Share]]:
        """Return the peers with their contributions, the largest contribution first."""
        return sorted(self.shares.items(), key=lambda each: (-each[1].sequences, each[0]))


def _round_of(parent: Head, commit: Commit) -> Round:
    value = commit.value
    present = {part.peer_id for part in value.contributions}
    return Round(
        number=value.round,
        loss=value.loss,
        sequences=value.sequences,
        members=len({part.peer_id for part in value.contributions if part.sequences}),
        absent=sum(voter.peer_id not in present for voter in parent.voters),
        branch=len(commit.survivors),
    )


def _add(shares: dict[str, Share], commit: Commit) -> None:
    """Add a commit to the sums. A peer that restarted within the round appears twice in it."""
    number = commit.value.round
    given: Counter[str] = Counter()
    for part in commit.value.contributions:
        if part.sequences:
            given[part.peer_id] += part.sequences
    for peer_id, sequences in given.items():
        so_far = shares.get(peer_id, Share(0, 0, number, number))
        shares[peer_id] = Share(
            so_far.sequences + sequences,
            so_far.rounds + 1,
            so_far.first_round,
            number,
        )
