"""Witness of every commit and every state of a simulated swarm: it checks the promises."""

from collections.abc import Iterable

from simulated_seat import Chain

from atom.swarm.chain.commit import Ballot, Commit, Head, MemberCount, Value
from atom.swarm.chain.succession import commit_problem


class Witness:
    """Remembers what happened anywhere; no replica sees as much."""

    def __init__(self, start: Chain, global_batch: int = 0) -> None:
        self._global_batch = global_batch
        self.heads: dict[bytes, Head] = {start.head.digest: start.head}
        self.states: dict[bytes, bytes] = {start.head.digest: start.state}
        self.ordinary: dict[bytes, bytes] = {}
        """Parent → digest of the one value that an ordinary quorum committed."""
        self.branches = 0
        self._rings: dict[Ballot, bytes] = {}
        self._commits: dict[bytes, Commit] = {}
        """Head → the commit that led to it."""
        self._after: dict[tuple[bytes, bytes], Head] = {}
        self._seen: dict[int, Commit] = {}
        """Commits by identity: a commit is sent to many peers, and checked once."""

    @property
    def rounds(self) -> int:
        """Number of committed rounds, including rounds of lost branches."""
        return len(self.heads) - 1

    @property
    def triggers(self) -> int:
        """All-reduces that were begun, those included that came to nothing."""
        return len(self._rings)

    def sees_trigger(self, parent: bytes, ballot: Ballot, members: Iterable[MemberCount]) -> None:
        """A coordinator begins an all-reduce. It may be shown once for each whom it tells."""
        promised = sum(member.sequences for member in members)
        assert promised >= self._global_batch, "an all-reduce was begun early"
        first = self._rings.setdefault(ballot, parent)
        assert first == parent, "late word of an old ballot could pass for a new one's"

    def sees_commit(self, commit: Commit) -> None:
        if id(commit) not in self._seen:
            self._seen[id(commit)] = commit
            self._check(commit)

    def vouches_for(self, chain: Chain) -> bool:
        """Return True if a stranger would follow this chain: all its commits are certified."""
        return all(self.heads.get(head.digest) == head for head in chain.heads)

    def head_after(self, before: Head, value: Value) -> Head:
        """Return `before.after(value)`, computed once."""
        key = before.digest, value.digest()
        if key not in self._after:
            self._after[key] = before.after(value)
        return self._after[key]

    def _check(self, commit: Commit) -> None:
        parent = self.heads[commit.value.parent]
        problem = commit_problem(parent, commit)
        assert problem is None, f"a commit that does not bind: {problem}"
        assert commit.value.sequences >= self._global_batch, "a round came early"
        head = self.head_after(parent, commit.value)
        self.branches += bool(commit.survivors) and head.digest not in self.heads
        self.heads[head.digest] = head
        self._commits.setdefault(head.digest, commit)
        if not commit.survivors:
            digest = commit.value.digest()
            first = self.ordinary.setdefault(parent.digest, digest)
            assert first == digest, "two ordinary commits on one parent"
            self._commits[head.digest] = commit

    def sees_state(self, head: Head, state: bytes) -> None:
        first = self.states.setdefault(head.digest, state)
        assert first == state, "equal heads, different states"

    def sees_the_end(self, chain: Chain) -> None:
        """All agree on `chain`: what else was committed is lost, and a branch on record is why."""
        kept = {head.digest for head in chain.heads}
        after = {commit.value.parent: commit for commit in chain.commits}
        for digest in self._commits.keys() - kept:
            lost = self._commits[digest]
            while lost.value.parent not in kept:
                lost = self._commits[lost.value.parent]
            instead = after.get(lost.value.parent)  # none: it is the next, and not lost at all
            recorded = instead is None or instead.survivors or lost.survivors
            assert recorded, "a commit was lost, and no branch is on record"
