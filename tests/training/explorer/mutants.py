"""The real machine with one fault at a time: a search that cannot fail proves nothing.

Each fault replaces one function of `atom/` while a search runs. Where it changes who decides, its
peers believe the certificates that it makes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from atom.base.errors import Reason
from atom.swarm.chain import commit, succession
from atom.swarm.chain.commit import Ballot, Commit, Head, Voter, is_quorum, valid_votes
from atom.swarm.chain.messages import CommitNotice
from atom.training.round import (
    attempt,
    coordinator,
    election,
    electorate,
    head_candidates,
    machine,
    participant,
    round_state,
)
from atom.training.round.electorate import Electorate

from . import liar, world
from .bounds import LINE, Bounds
from .properties import PROPERTIES
from .search import Verdict, search

Patch = tuple[Any, str, Any]
"""A module or class, the name in it, and the replacement."""

_BELIEVES = (participant, "commit_problem", lambda head, commit: None)


_DECIDERS = (commit, succession, electorate, election, head_candidates, liar, world)
"""Modules that ask whether peers are a quorum."""


def _quorum(is_quorum: Callable[..., bool]) -> list[Patch]:
    return [(place, "is_quorum", is_quorum) for place in _DECIDERS]


def _half(voters: Sequence[Voter], present: AbstractSet[Voter]) -> bool:
    return 2 * sum(voter in present for voter in voters) >= len(voters)


def _majority(voters: Sequence[Voter], present: AbstractSet[Voter]) -> bool:
    """Return True for more than half, or half with the first voter: the earlier rule."""
    count = sum(voter in present for voter in voters)
    return 2 * count > len(voters) or (2 * count == len(voters) and voters[0] in present)


def _vouch_again(self: Any, ballot: Ballot, value: Any) -> None:
    """Vouch for a value, also if it is the second at this ballot."""
    self._context.state.acceptor.vouched.pop(ballot, None)
    _VOUCH(self, ballot, value)


def _vote_at_once(self: Any, sender: Voter, message: Any) -> None:
    """Vote, although a quorum vouched for the value at an earlier ballot only."""
    _VOTE(self, sender, replace(message, vouched_at=message.ballot))


def _by_peer(voters: Sequence[Voter], present: AbstractSet[Voter]) -> bool:
    here = {voter.peer_id for voter in present}
    return 2 * sum(voter.peer_id in here for voter in voters) > len(voters)


def _by_number(head: Head, signed: Commit) -> Reason | None:
    """Count votes, not voters."""
    return None if 2 * len(signed.votes) > len(head.voters) else Reason.BAD_CERTIFICATE


def _vote_of_any_life(self: Any, sender: Voter, message: Any) -> None:
    found = self._attempt_of(message.ballot, attempt.Stage.ACCEPT)
    if found is None or found.value is None:
        return
    found.votes[sender] = message.signature
    if found.electorate.satisfied_by(set(found.votes)):
        self._commit(found)


def _promise_anything(self: Any, survivors: Any, ballot: Ballot) -> bool:
    self.promised[survivors] = ballot
    return True


def _majority_of_the_rest(
    head: Head, me: Voter, view: Any, grace_s: float, branches: bool, given_up: Any = frozenset()
) -> Electorate | None:
    alive = electorate.alive_voters(head, me, view)
    return Electorate(tuple(sorted(alive))) if me in head.voters else None


def _hears_of_any_head(self: Any, sender: Voter, message: Any) -> None:
    if isinstance(message, CommitNotice):
        self._on_commit(sender, message)
    else:
        self._at_our_head[type(message)](sender, message)


def _has_any(context: Any, value: Any, vouchers: Any, committed: bool) -> bool:
    context.state.held.setdefault(value.result_digest, value.gradient_norm)
    return True


def _awaited_by_peer(self: Any) -> set[Voter]:
    electors = {voter.peer_id for voter in self.electorate.voters}
    members = {member.voter for member in self.members}
    return {voter for voter in members - self.vouched.keys() if voter.peer_id in electors}


def _signed_by_a_quorum(head: Head, signed: Commit) -> Reason | None:
    """Check the signatures, and no rule for the value."""
    return None if is_quorum(head.voters, valid_votes(signed)) else Reason.BAD_CERTIFICATE


def _any_ballot(self: Any, message: Any) -> Reason | None:
    found: Reason | None = self._problem_of_claims(message)
    return found


def _all_vouch(value: Any, evidence: Any, ballot: Ballot) -> set[Voter]:
    return {*value.voters_next, *value.survivors, *(part.voter for part in value.contributions)}


def _any_leap(self: Any, number: int) -> bool:
    self.highest_attempt = max(self.highest_attempt, number)
    return True


def _alive_by_peer(head: Head, me: Voter, view: Any) -> set[Voter]:
    return {voter for voter in head.voters if voter == me or voter.peer_id in view.fresh}


def _claims_another(lease: Any, ours: Head) -> bool:
    return bool(lease.head != ours.digest)


def _rank_by_work(self: Head) -> Any:
    return self.work, -int.from_bytes(self.digest)


@dataclass(frozen=True)
class Mutant:
    """A fault, the bounds within which it shows, and the trouble that the search finds."""

    name: str
    trouble: str
    patches: tuple[Patch, ...]
    bounds: Bounds
    tidies: bool = True
    """Promises only grow, so letters become obsolete; not with this fault."""
    only: str = ""
    """Name of the property to look at; empty: all."""

    def search(self) -> Verdict:
        """Search with the fault planted."""
        chosen = [PROPERTIES[self.only]] if self.only else PROPERTIES.values()
        with planted(self.patches):
            return search(self.bounds, tidies=self.tidies, properties=chosen)


@contextmanager
def planted(patches: Iterable[Patch]) -> Iterator[None]:
    """Replace the functions while the context is open."""
    with ExitStack() as stack:
        for place, name, instead in patches:
            stack.enter_context(patch.object(place, name, instead))
        yield


def _within(peers: int, ballots: int, **more: Any) -> Bounds:
    return Bounds("", peers, ballots, **more)


_CHOSEN = "a quorum accepted one value, then another"
_COMMITS = "two commits by an ordinary quorum on one head"
_CERTIFICATE = "applied a value that catch-up refuses: bad-certificate"
_TWO_HALVES = ("B", "A", "D", "C")
_FAIR = ("all that promised",)
_ACCEPTOR, _COORDINATOR = round_state.Acceptor, coordinator.Coordinator
_PARTICIPANT = participant.Participant
_AVERAGES_AGAIN = (_PARTICIPANT, "_must_finish", lambda self, ballot: False)

_NOT_VOUCHED = (succession, "vouchers", _all_vouch)
_VOUCH, _VOTE = _PARTICIPANT._vouch, _PARTICIPANT._vote

MUTANTS = (
    Mutant("any part of the voters is a quorum", _COMMITS,
           (*_quorum(lambda voters, present: True), _BELIEVES), _within(3, 2, sees=LINE),
           only="agreement"),
    Mutant("half of the voters is a quorum", _COMMITS, tuple(_quorum(_half)),
           _within(4, 2, sees=_TWO_HALVES), only="agreement"),
    Mutant("a restarted voter votes", _COMMITS,
           (*_quorum(_by_peer), (_COORDINATOR, "on_vote", _vote_of_any_life),
            (attempt.Attempt, "awaited", _awaited_by_peer),
            (electorate, "alive_voters", _alive_by_peer),
            (election, "alive_voters", _alive_by_peer)),
           _within(3, 2, crashes=1, restarts=1, faulty="B", sees=LINE), only="agreement"),
    Mutant("accepted values are not finished", _CHOSEN,
           ((attempt, "value_to_finish", lambda promises: None), _AVERAGES_AGAIN),
           _within(3, 2, sees=LINE), only="one value chosen"),
    Mutant("accepted values are forgotten", _COMMITS,
           ((_ACCEPTOR, "accept", lambda self, ballot, value, evidence: None),),
           _within(3, 2, sees=LINE)),
    Mutant("a lower ballot is promised", _CHOSEN,
           ((_ACCEPTOR, "promise", _promise_anything),), _within(3, 2, sees=LINE),
           tidies=False, only="one value chosen"),
    Mutant("any ballot is accepted", _CHOSEN,
           ((_ACCEPTOR, "survivors_of", lambda self, ballot: ()),), _within(3, 2, sees=LINE),
           tidies=False, only="one value chosen"),
    Mutant("a majority of the living decides", _CERTIFICATE,
           ((election, "electorate", _majority_of_the_rest), _BELIEVES, _NOT_VOUCHED),
           _within(3, 2, branches=True), only="catch-up accepts it"),
    Mutant("messages about any head are heard", "peers with different heads average",
           ((machine.RoundMachine, "_on_message", _hears_of_any_head),),
           _within(2, 2, sees=("", "A")), tidies=False),
    Mutant("votes without the result", "voted for a result that is not here",
           ((participant, "result_in_memory", _has_any),), _within(3, 1)),
    Mutant("the chain with more samples is preferred",
           "a quorum's round was given up for a branch",
           ((Head, "rank", property(_rank_by_work)),
            (head_candidates, "claims_better", _claims_another)),
           _within(3, 2, branches=True, chases=1, sees=("B", "A", ""))),
    Mutant("a certificate counts votes, not voters", _CERTIFICATE,
           ((participant, "commit_problem", _by_number),),
           _within(3, 0, lies=1, values=_FAIR)),
    Mutant("certificates are not checked", _CERTIFICATE, (_BELIEVES,),
           _within(3, 0, lies=1, values=_FAIR)),
    Mutant("votes are not checked", "an honest peer is called an offender",
           ((coordinator, "signature_holds", lambda *given: True),), _within(3, 1, lies=2)),
    Mutant("evidence is not checked", "voted for a contribution that no peer promised",
           ((participant, "unsupported", lambda *given: None),),
           _within(3, 0, lies=5, liar=2, values=("counts that no peer promised",)),
           only="true statements"),
    Mutant("no quorum has to vouch for a value", "voted for a result that no quorum averaged",
           (_NOT_VOUCHED,), _within(3, 0, lies=5, liar=2, values=("another result",))),
    Mutant("a vote asks for evidence only",
           "voted for a value that may not follow: wrong-head",
           ((participant, "follows", lambda *given: None), _NOT_VOUCHED),
           _within(3, 0, lies=5, liar=2, values=("the last round",))),
    Mutant("a commit asks for votes only", "applied a value that catch-up refuses: wrong-head",
           ((participant, "follows", lambda *given: None), _NOT_VOUCHED,
            (participant, "commit_problem", _signed_by_a_quorum)),
           _within(3, 0, lies=5, liar=2, values=("the last round",)), only="catch-up accepts it"),
    Mutant("a voter averages again", "averages again after it accepted a value",
           (_AVERAGES_AGAIN,),
           _within(2, 0, lies=6, liar=1, lying_ballots=2, values=_FAIR)),
    Mutant("a vote does not bind a voter that vouches", "vouches against its own vote",
           ((_PARTICIPANT, "_problem_of_value", _any_ballot),),
           _within(2, 0, lies=4, lying_ballots=2,
                   values=("its first exchange", "its first exchange, and it leaves")),
           only="kept votes"),
    Mutant("a voter vouches twice at a ballot", "vouches for two values at one ballot",
           ((_PARTICIPANT, "_vouch", _vouch_again),),
           _within(2, 0, lies=5, lying_ballots=2, values=("its first exchange",)),
           only="kept votes"),
    Mutant("votes for a value that was vouched for earlier",
           "votes for a value for which no quorum vouches at this ballot",
           ((_PARTICIPANT, "_vote", _vote_at_once),), _within(3, 2, sees=LINE)),
    *(Mutant(f"a majority of {peers} is a quorum", _CHOSEN, tuple(_quorum(_majority)),
             _within(peers, 0, lies=12, splits=True, values=_FAIR), only="one value chosen")
      for peers in (4, 5)),
    Mutant("a ballot may be as high as it likes", "said something that others refuse as malformed",
           ((round_state.RoundContext, "heard_attempt", _any_leap),),
           _within(3, 1, ticks=1, lies=1)),
)  # fmt: skip

ALL_MUST_VOTE = _quorum(lambda voters, present: present >= set(voters))
"""Every voter has to answer: after one death nothing is decided any more."""
