"""Who may decide a round, how many are enough, and who decides the next one. Pure.

The voters of a round are fixed by the previous commit, never by anybody's view of who is alive:
two views of "alive" make two majorities. A quorum is more than half of the voters, or exactly half
with the tie-breaker among them (dynamic-linear voting), so any two quorums share a voter.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from blake3 import blake3

from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    MAX_VOTERS,
    VOTE_DOMAIN,
    Commit,
    Head,
    Voter,
    vote_payload,
)
from atom.swarm.identity import verify


def standing(voters: Iterable[Voter], salt: bytes = b"") -> list[Voter]:
    """The voters in the order that `salt` deals: who coordinates first, who breaks ties."""
    return sorted(voters, key=lambda v: (blake3(salt + v.peer_id.encode()).digest(), v.incarnation))


def is_quorum(voters: Sequence[Voter], present: AbstractSet[Voter]) -> bool:
    """Whether `present` may decide for `voters`. Present non-voters do not count."""
    count = sum(voter in present for voter in voters)
    if 2 * count == len(voters) and count > 0:
        return standing(voters)[0] in present
    return 2 * count > len(voters)


def voters_next(
    voters: Sequence[Voter],
    contributors: Sequence[Voter],
    leaving: AbstractSet[str],
    dead: AbstractSet[Voter],
    idle: AbstractSet[Voter] = frozenset(),
) -> tuple[Voter, ...]:
    """The electorate after a commit. `idle`: these promised, and had nothing to give.

    A voter goes when it says goodbye, is confirmed dead, or neither had a part nor was idle in two
    commits running; a lapsed lease alone removes nobody. Newcomers enter at most half as many as
    there are voters at a time, so that a crowd of new peers cannot outvote the run in one round.
    The last peers to leave stay voters on paper: their successors open a recorded branch.
    """
    present = {*contributors, *idle}
    renewed = {voter.peer_id: voter.incarnation for voter in contributors}
    kept = [
        Voter(v.peer_id, v.incarnation, 0 if v in present else v.absences + 1)
        for v in voters
        if v.peer_id not in leaving
        and v not in dead
        and renewed.get(v.peer_id, v.incarnation) == v.incarnation
        and (v in present or v.absences < 1)
    ]
    room = min(max(1, len(voters) // 2), MAX_VOTERS - len(kept))
    candidates = [v for v in contributors if v not in kept and v.peer_id not in leaving]
    newcomers = [Voter(v.peer_id, v.incarnation) for v in standing(candidates)[: max(room, 0)]]
    chosen = kept + newcomers or [Voter(v.peer_id, v.incarnation) for v in contributors]
    return tuple(sorted(chosen)[:MAX_VOTERS])


def certificate_problem(head: Head, commit: Commit) -> Reason | None:
    """Why `commit` does not bind a replica at `head`; None if it does.

    A branch needs somebody who belongs to the run: a voter of the head or a member of its round,
    by peer id, since all may have been restarted. Strangers alone found no branch.
    """
    signed = valid_votes(commit)
    if commit.survivors:
        complete = len(commit.survivors) <= MAX_VOTERS and signed >= set(commit.survivors)
        ours = any(voter.peer_id in head.known for voter in commit.survivors)
        return None if complete and ours else Reason.BAD_CERTIFICATE
    return None if is_quorum(head.voters, signed) else Reason.BAD_CERTIFICATE


def valid_votes(commit: Commit) -> set[Voter]:
    """Whose signatures are under it."""
    payload = vote_payload(
        commit.value.parent, commit.ballot, commit.value.digest(), commit.survivors
    )
    return {vote.voter for vote in commit.votes if voted(vote.voter, payload, vote.signature)}


def signed_by(voter: Voter, payload: bytes) -> bytes:
    """What a voter signs: bound to the incarnation, so old votes stay with the old process."""
    return voter.incarnation + payload


def voted(voter: Voter, payload: bytes, signature: bytes) -> bool:
    """Whether it signed the vote that `vote_payload` made."""
    return verify(voter.peer_id, VOTE_DOMAIN, signed_by(voter, payload), signature)
