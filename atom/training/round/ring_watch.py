"""A coordinator's rings: who is in them, and what comes of those that break."""

from dataclasses import replace

from atom.swarm.chain.commit import Contribution
from atom.swarm.chain.messages import Suspect
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.exchange.composition import carried_by, seats_of
from atom.training.round.attempt import Attempt
from atom.training.round.blame import accusations, is_eyewitness
from atom.training.round.desk import Desk
from atom.training.round.electorate import Electorate, same_head
from atom.training.round.events import RingFailed
from atom.training.round.seating import attach_leaves, choose_algorithm, seat_members
from atom.training.round.suspicions import PATIENT_WITH, Suspicions


class RingWatch:
    """Remembers broken rings over all heads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._suspicions = Suspicions(desk.me.peer_id)

    def left_out(self) -> frozenset[str]:
        """Who is not to be in the next ring."""
        desk, head = self._desk, self._desk.head.digest
        suspected = self._suspicions.left_out(head, desk.now)
        several = len(suspected) > 1 or self._suspicions.broken_in(head) > 0
        if several and not self._others_than(suspected):
            # All others cannot be bad. Rather than go on alone, we try those once more that failed
            # in earlier rounds only: perhaps it was us.
            suspected = self._suspicions.left_out(head, desk.now, earlier=False)
        seen = self._suspicions.seen_failing(head, desk.now)
        if seen and self._others_than(suspected | seen):  # a mere hint sends nobody alone
            suspected |= seen
        return (suspected | desk.view.aside) - {desk.me.peer_id}

    def _others_than(self, left_out: frozenset[str]) -> bool:
        """Whether anybody else is at this head."""
        return not left_out >= same_head(self._desk.head, self._desk.view).keys()

    def dispensable(self, chosen: Electorate, invited: set[str]) -> frozenset[str]:
        """Who is left out of the ring need not promise either, unless a quorum needs it."""
        desk, left_out = self._desk, self.left_out()
        without = chosen.can_do_with(invited - left_out, desk.me, desk.view)
        return left_out if without else frozenset()

    def members(self, attempt: Attempt) -> tuple[Contribution, ...]:
        """Of a ring of those that promised, in an order that is dealt anew by every head."""
        return attempt.ring_of(self._desk.me.peer_id, self.left_out(), self._desk.head.digest)

    def compose(self, attempt: Attempt) -> None:
        """Seats the attempt's members, or has some carried, and chooses how they average: by what
        is known of the ways between them."""
        desk, average_bytes = self._desk, self._desk.terms.average_bytes
        dealt, apart = self.members(attempt), self._suspicions.at_odds(desk.now)
        known = (desk.view, average_bytes, apart)
        attached = attach_leaves(dealt, *known)
        carriers = attached.carriers if attached else {}
        seated = [member for member in dealt if member.peer_id not in carriers]
        leaves = [
            replace(member, carrier=carriers[member.peer_id])
            for member in dealt
            if member.peer_id in carriers
        ]
        seats, order = seat_members(seated, *known)
        attempt.members = (*seats, *leaves)
        desk.report("ring-order", **order.story())
        if attached:
            desk.report("leaves-attached", **attached.story())
            return
        choice = choose_algorithm(attempt.members, *known)
        attempt.one_shot = choice.algorithm is Algorithm.ONE_SHOT
        desk.report("all-reduce-chosen", **choice.story())

    def hear(self, attempt: Attempt, speaker: str, words: Suspect) -> None:
        """A member's word that the ring broke. Only its first counts."""
        if not attempt.testimonies:
            attempt.deadline = self._desk.now + self._desk.patience.testimony
        attempt.testimonies.setdefault(speaker, words)

    def is_over(self, attempt: Attempt) -> bool:
        """Whether it broke, and all that is to be said about it was said."""
        said = attempt.testimonies
        settled = any(map(is_eyewitness, said.values())) or len(said) == len(attempt.members)
        return bool(said) and (settled or self._desk.now >= attempt.deadline)

    def judge(self, attempt: Attempt) -> None:
        """Draws the consequences for the rings to come."""
        desk, members = self._desk, attempt.members
        found = accusations(
            seats_of(members), attempt.testimonies, attempt.one_shot, carried_by(members)
        )
        self._suspicions.add(desk.head.digest, found, desk.now)
        desk.report("ring-judged", accusations=sorted(found), left_out=sorted(self.left_out()))

    @property
    def own_fault(self) -> bool:
        """Whether the last ring broke because of us, by our own word."""
        return self._suspicions.own_fault(self._desk.head.digest)

    def remember(self, failed: RingFailed) -> None:
        """Of somebody else's ring, what we have seen ourselves: that a neighbour failed us. In this
        round it is not found out again."""
        desk, coordinator = self._desk, failed.ballot.coordinator
        if failed.suspect and not failed.told_by:
            self._suspicions.saw(desk.head.digest, coordinator, failed.suspect, desk.now)

    @property
    def our_fault_it_seems(self) -> bool:
        """Whether several rings of this round broke, and either all of them with us, or so that
        nobody is left but us."""
        head = self._desk.head.digest
        alone = self._suspicions.broken_in(head) > 1 and not self._others_than(self.left_out())
        return alone or self._suspicions.in_all_pairs(head)

    @property
    def promising(self) -> bool:
        """Whether to try again at once: each of the first broken rings leaves somebody out."""
        return self._suspicions.broken_in(self._desk.head.digest) <= PATIENT_WITH + 1
