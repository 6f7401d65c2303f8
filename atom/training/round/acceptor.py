"""The acceptor's memory: what was promised and accepted for one parent head. Pure Paxos core.

Kept in memory only: a restarted process is a new incarnation, hence no voter. A branch attempt
has a slot of its own, so that accepting in it can never complete an ordinary quorum.
"""

from dataclasses import dataclass, field

from atom.swarm.chain.commit import Ballot, Value, Voter
from atom.swarm.chain.messages import Accepted

Survivors = tuple[Voter, ...]
ORDINARY: Survivors = ()


@dataclass
class Slot:
    """One single-decree acceptor. Ballots only grow; an accepted value is never forgotten.

    It accepts only at a ballot it promised *here*: a vote that strayed into another slot would
    count where its coordinator never asked what was accepted before.
    """

    promised: Ballot | None = None
    accepted: Accepted | None = None

    def promise(self, ballot: Ballot) -> bool:
        """Promises to ignore lower ballots; False unless this one is higher than any before."""
        if self.promised is not None and ballot <= self.promised:
            return False
        self.promised = ballot
        return True

    def may_accept(self, ballot: Ballot) -> bool:
        return self.promised == ballot

    def accept(self, ballot: Ballot, value: Value) -> None:
        assert self.may_accept(ballot)
        self.accepted = Accepted(ballot, value)


@dataclass
class Acceptor:
    """The slots of one parent head: the ordinary one, and one per set of survivors."""

    by_survivors: dict[Survivors, Slot] = field(default_factory=dict)

    def slot(self, survivors: Survivors) -> Slot:
        return self.by_survivors.setdefault(survivors, Slot())

    def known(self, survivors: Survivors) -> Slot:
        """To look at only: a stranger that names survivors leaves nothing here."""
        return self.by_survivors.get(survivors, Slot())

    def survivors_of(self, ballot: Ballot) -> Survivors | None:
        """Which slot still promises exactly this ballot; None if it is unknown or outdone."""
        for survivors, slot in self.by_survivors.items():
            if slot.promised == ballot:
                return survivors
        return None

    @property
    def ordinary(self) -> Slot:
        return self.slot(ORDINARY)

    @property
    def accepted(self) -> list[Accepted]:
        """In any slot."""
        return [slot.accepted for slot in self.by_survivors.values() if slot.accepted]

    @property
    def highest_promised(self) -> Ballot | None:
        """Over all slots: what a new attempt has to surpass to be heard in any of them."""
        promised = [slot.promised for slot in self.by_survivors.values() if slot.promised]
        return max(promised, default=None)
