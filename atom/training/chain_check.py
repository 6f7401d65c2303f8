"""Whether a stranger's chain is the run's: linked by digests, and vouched for.

Checking every certificate takes milliseconds a round, minutes for a long run. It is not needed. A
voter votes only at its own head, and a head's digest covers all that led to it. So a certificate
that holds a quorum of the voters we trust, many rounds on, vouches for every round in between; the
links are hashed, and that is all. As long as the electorate changes slowly, a long chain takes few
certificates. What must be believed is what must be believed anyway: that not all of a quorum lie.
"""

from collections.abc import Sequence

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain import Commit, Head
from atom.swarm.membership import certificate_problem, is_quorum


def verified_heads(first: Head, commits: Sequence[Commit]) -> list[Head]:
    """The heads along a chain that begins at `first`, which we trust.

    Raises: PeerRefused with BAD_CERTIFICATE, BAD_WEIGHT or WRONG_HEAD.
    """
    heads = linked_heads(first, commits)
    trusted = 0
    while trusted < len(commits):
        trusted = _vouched_from(heads, commits, trusted)
    return heads


def linked_heads(first: Head, commits: Sequence[Commit]) -> list[Head]:
    """The heads along a chain, no certificate looked at. Raises: as `verified_heads`."""
    heads = [first]
    for commit in commits:
        head, value = heads[-1], commit.value
        if value.parent != head.digest or value.round != head.round + 1:
            raise PeerRefused(Reason.WRONG_HEAD, f"round {value.round}")
        if value.sequences <= 0 or not value.voters_next:
            raise PeerRefused(Reason.BAD_WEIGHT, f"round {value.round}")
        heads.append(head.after(value))
    return heads


def _vouched_from(heads: Sequence[Head], commits: Sequence[Commit], trusted: int) -> int:
    """The farthest head found that the voters of `heads[trusted]` vouch for."""
    step = len(commits) - trusted
    while step > 1:
        last = trusted + step
        if _vouches(heads[trusted], heads[last - 1], commits[last - 1]):
            return last
        step = step // 2
    problem = certificate_problem(heads[trusted], commits[trusted])
    if problem is not None:
        raise PeerRefused(problem, f"round {commits[trusted].value.round}")
    return trusted + 1


def _vouches(trusted: Head, parent: Head, commit: Commit) -> bool:
    """Whether this commit holds by itself, and a quorum of the trusted head's voters signed it.

    Both: old voters may have signed a value that never had a quorum of its own electorate.
    """
    signed = {vote.voter for vote in commit.votes}
    if commit.survivors or not is_quorum(trusted.voters, signed):
        return False
    votes = tuple(vote for vote in commit.votes if vote.voter in trusted.voters)
    by_trusted = Commit(commit.value, commit.ballot, votes)
    problems = (certificate_problem(parent, commit), certificate_problem(trusted, by_trusted))
    return problems == (None, None)
