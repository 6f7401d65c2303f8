"""The protocol with one rule broken at a time: a search that cannot fail proves nothing.

Each mutant changes one answer of `Rules`. Where it changes who decides, its replicas take the
commits that it makes.
"""

from dataclasses import dataclass

from .bounds import Bounds
from .cast import BallotKey, VoterKey
from .rules import Rules, Slotted
from .state import Attempt, Peer, Peers, Promised, Survivors, Voters, lives


class _OwnCertificates(Rules):
    """Replicas believe what this mutant decides."""

    def certified(self, a: Attempt) -> bool:
        return True


class LocalMajority(_OwnCertificates):
    """The electorate is a majority of the peers that the coordinator happens to see."""

    def decides(self, a: Attempt, present: Voters, peers: Peers) -> bool:
        return len(present) > 0


class AsksForCommits(Rules):
    """A new attempt asks who has seen a commit, not who has accepted a value."""

    def to_finish(self, promises: tuple[Promised, ...]) -> int | None:
        return None  # a peer that has seen one has stepped, and does not answer at this head


class PeersVote(_OwnCertificates):
    """A voter is a peer id: a restarted one still votes."""

    def decides(self, a: Attempt, present: Voters, peers: Peers) -> bool:
        here = {p for p, _ in present}
        voting = tuple(v for v in self.ledger.electors(a) if v[0] in here)
        return super().decides(a, voting, peers)

    def votes(self, a: Attempt, who: VoterKey) -> bool:
        return any(who[0] == p for p, _ in self.ledger.electors(a))


class OneSlot(_OwnCertificates):
    """Values accepted for a branch are kept in the ordinary slot."""

    def slot_of(self, survivors: Survivors) -> Survivors:
        return ()


class KeepsGradients(Rules):
    """A peer that fetched the state keeps the gradients it had."""

    def tag_after_fetch(self, tag: int, head: int) -> int:
        return tag


class MajorityOfTheRest(_OwnCertificates):
    """Dead voters are struck off, and a majority of the rest decides."""

    def decides(self, a: Attempt, present: Voters, peers: Peers) -> bool:
        rest = tuple(v for v in self.ledger.heads[a.head].voters if lives(v, peers))
        return _most(rest, present)

    def electorates(self, head: int, me: VoterKey, peers: Peers) -> tuple[Survivors, ...]:
        return ((),) if me in self.ledger.heads[head].voters else ()


class PromisesForgotten(Rules):
    """A promise does not bind: any ballot is accepted."""

    def accept(
        self, slots: Slotted, survivors: Survivors, ballot: BallotKey, value: int
    ) -> Slotted | None:
        promised = next((s[1] for s in slots if s[0] == survivors), ())
        if not promised:
            return None
        return ((survivors, promised, (ballot, value)),)


class AnyHead(Rules):
    """Calls are answered whatever head they name."""

    def takes_part(self, peer: Peer, head: int) -> bool:
        return True


class OwnResult(Rules):
    """A step takes the result that this peer voted for, whatever digest was committed."""

    def result_applied(self, peer: Peer, value: int) -> int:
        ours = [s[2][1] for s in peer.slots if s[2]]
        return ours[0] if ours else value


class CountsWork(Rules):
    """The chain with more samples is preferred, even if no quorum decided its rounds."""

    def prefers(self, one: int, other: int) -> bool:
        ours, theirs = self.ledger.heads[other].head, self.ledger.heads[one].head
        return (theirs.work, ours.digest) > (ours.work, theirs.digest)


class OffersAfterTheStep(Rules):
    """A result can be fetched from others only once they have stepped with it."""

    def offers_what_it_accepted(self) -> bool:
        return False


class AllMustVote(Rules):
    """Every voter has to answer: one death, and nothing is decided any more."""

    def decides(self, a: Attempt, present: Voters, peers: Peers) -> bool:
        return set(present) >= set(self.ledger.electors(a))


def _most(voters: Voters, present: Voters) -> bool:
    return 2 * sum(v in present for v in voters) > len(voters)


@dataclass(frozen=True)
class Mutant:
    """A broken rule, the bounds within which it shows, and how."""

    rules: type[Rules]
    bounds: Bounds
    trouble: str
    way: int
    """Moves in its shortest story."""

    @property
    def meaning(self) -> str:
        return (self.rules.__doc__ or "").split(":")[0].rstrip(".")


_TWO_CHOSEN = "a quorum accepted one value, then another"
_TWO_COMMITS = "two commits by an ordinary quorum on one head"
_OVERRULED = "a quorum's round was given up for a branch"
_STUCK = "stuck: no peer's attempt can commit any more"


def _within(peers: int, starts: int, **more: int) -> Bounds:
    return Bounds("", peers, starts, liveness=False, **more)


MUTANTS = (
    Mutant(LocalMajority, _within(3, 2), _TWO_CHOSEN, 6),
    Mutant(AsksForCommits, _within(3, 2), _TWO_CHOSEN, 8),
    Mutant(PeersVote, _within(3, 2, crashes=1, restarts=1), _TWO_CHOSEN, 10),
    Mutant(OneSlot, _within(2, 2, branches=1), _TWO_CHOSEN, 8),
    Mutant(KeepsGradients, _within(2, 2, rounds=2), "gradients counted twice", 8),
    Mutant(MajorityOfTheRest, _within(3, 2, crashes=2), _TWO_COMMITS, 10),
    Mutant(PromisesForgotten, _within(3, 2), _TWO_CHOSEN, 8),
    Mutant(AnyHead, _within(3, 2, rounds=2), "peers with different heads averaged", 9),
    Mutant(OwnResult, _within(3, 2), "equal heads, different bytes", 9),
    Mutant(CountsWork, _within(3, 1, branches=1), _OVERRULED, 11),
    Mutant(OffersAfterTheStep, Bounds("", 3, 1), _STUCK, 3),
    Mutant(AllMustVote, Bounds("", 3, 1, crashes=1), _STUCK, 1),
)
