"""A coordinator's exchanges: who is in them, which kind it is, and what comes of those that break.

What leases say of the ways between peers are hints: the choice may be poor, never wrong.
"""

import math
import statistics

from atom.swarm.chain.commit import Contribution
from atom.swarm.chain.messages import Suspect
from atom.swarm.exchange.choice import MOST_IN_A_RING, MOST_MEMBERS, Line, choose, line_rates
from atom.swarm.records.lease import Lease, Link, Reached, short_name
from atom.training.round.attempt import Attempt
from atom.training.round.desk import Desk
from atom.training.round.electorate import Electorate, same_head
from atom.training.round.suspicions import PATIENT_WITH, Suspicions


class RingWatch:
    """Remembers broken exchanges over all heads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._suspicions = Suspicions(desk.me.peer_id)

    def left_out(self) -> frozenset[str]:
        """Who is not to be in the next exchange."""
        desk, head = self._desk, self._desk.head.digest
        suspected = self._suspicions.left_out(head, desk.now)
        several = len(suspected) > 1 or self._suspicions.broken_in(head) > 0
        if several and not self._others_than(suspected):
            # All others cannot be bad. Rather than go on alone, we try those once more that failed
            # in earlier rounds only: perhaps it was us.
            suspected = self._suspicions.left_out(head, desk.now, earlier=False)
        return (suspected | desk.view.aside) - {desk.me.peer_id}

    def _others_than(self, left_out: frozenset[str]) -> bool:
        """Whether anybody else is at this head."""
        return not left_out >= same_head(self._desk.head, self._desk.view).keys()

    def dispensable(self, chosen: Electorate, invited: set[str]) -> frozenset[str]:
        """Peers that are left out need not promise either, unless a quorum needs them."""
        desk, left_out = self._desk, self.left_out()
        without = chosen.can_do_with(invited - left_out, desk.me, desk.view)
        return left_out if without else frozenset()

    def members(self, attempt: Attempt) -> tuple[Contribution, ...]:
        """Of an exchange of those that promised, in an order that is dealt anew by every head."""
        desk = self._desk
        most = MOST_IN_A_RING if desk.terms.ring_possible else MOST_MEMBERS
        return attempt.contributors(desk.me.peer_id, self.left_out(), desk.head.digest, most)

    def compose(self, attempt: Attempt) -> None:
        """Says who the attempt's members are, and whether they average in a ring or by parts."""
        desk, members = self._desk, self.members(attempt)
        links = self._links(members)
        round_trips = [link.round_trip_s for link in links.values()]
        latency_s = statistics.median_low(round_trips) / 2 if round_trips else None
        unexplained = self._suspicions.unexplained(desk.now)
        choice = choose(
            self._lines(members, links),
            desk.terms.average_bytes,
            latency_s,
            desk.terms.ring_possible and not unexplained,
        )
        attempt.members, attempt.shares = members, choice.shares
        desk.report("exchange-chosen", members=[m.peer_id for m in members], **choice.story())

    def _lines(
        self, members: tuple[Contribution, ...], links: dict[tuple[str, str], Link]
    ) -> list[Line]:
        peers = {member.peer_id for member in members}
        pairs = [pair for pair in self._suspicions.at_odds(self._desk.now) if pair <= peers]
        apart = frozenset[str]().union(*pairs)
        rates = {way: link.bytes_per_s for way, link in links.items()}
        slow = line_rates({way: rate for way, rate in rates.items() if math.isfinite(rate)})
        hidden = {peer for peer, lease in self._leases().items() if lease.reached is Reached.NO}
        idle = {member.peer_id for member in members if not member.sequences}
        never = apart | hidden | idle
        return [Line(slow.get(m.peer_id), m.peer_id not in never) for m in members]

    def _links(self, members: tuple[Contribution, ...]) -> dict[tuple[str, str], Link]:
        """What members measured of their ways to each other, by sender and receiver."""
        names = {short_name(member.peer_id): member.peer_id for member in members}
        return {
            (peer_id, names[name]): link
            for peer_id, lease in self._leases().items()
            if peer_id in names.values()
            for name, link in lease.links
            if name in names and names[name] != peer_id
        }

    def _leases(self) -> dict[str, Lease]:
        view = self._desk.view
        return {**view.fresh, **({view.mine.peer_id: view.mine} if view.mine else {})}

    def hear(self, attempt: Attempt, speaker: str, words: Suspect) -> None:
        """A member's word that the exchange broke. Only its first counts."""
        if not attempt.testimonies:
            attempt.deadline = self._desk.now + self._desk.patience.testimony
        attempt.testimonies.setdefault(speaker, words)

    def is_over(self, attempt: Attempt) -> bool:
        """Whether it broke, and a member saw why, or nobody will say any more."""
        said = attempt.testimonies
        seen = any(words.peer_id for words in said.values())
        return bool(said) and (
            seen or len(said) == len(attempt.members) or self._desk.now >= attempt.deadline
        )

    def judge(self, attempt: Attempt) -> None:
        """Draws the consequences for the exchanges to come."""
        desk = self._desk
        said = attempt.testimonies.items()
        found = frozenset((peer, words.peer_id) for peer, words in said if words.peer_id)
        self._suspicions.add(desk.head.digest, found, desk.now)
        desk.report("ring-judged", accusations=sorted(found), left_out=sorted(self.left_out()))

    @property
    def own_fault(self) -> bool:
        """Whether the last exchange broke because of us, by our own word."""
        return self._suspicions.own_fault(self._desk.head.digest)

    @property
    def our_fault_it_seems(self) -> bool:
        """Whether several exchanges of this round broke, and either all of them with us, or so that
        nobody is left but us."""
        head = self._desk.head.digest
        alone = self._suspicions.broken_in(head) > 1 and not self._others_than(self.left_out())
        return alone or self._suspicions.in_all_pairs(head)

    @property
    def promising(self) -> bool:
        """Whether to try again at once: each of the first broken exchanges leaves somebody out."""
        return self._suspicions.broken_in(self._desk.head.digest) <= PATIENT_WITH + 1
