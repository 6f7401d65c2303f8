"""Who has a seat in a ring, and who is carried by whom: what members must be. Pure."""

from collections.abc import Sequence

from atom.swarm.chain.commit import Contribution
from atom.swarm.exchange.leaves import Leaf

FEWEST_SEATS = 2
"""Of a ring with leaves."""


def seats_of(members: Sequence[Contribution]) -> tuple[str, ...]:
    """Peer ids in ring order."""
    return tuple(member.peer_id for member in members if not member.carrier)


def leaves_of(members: Sequence[Contribution]) -> tuple[Leaf, ...]:
    """In their order; `members` are well composed."""
    seats = seats_of(members)
    return tuple(
        Leaf(member.peer_id, seats.index(member.carrier)) for member in members if member.carrier
    )


def carried_by(members: Sequence[Contribution]) -> dict[str, str]:
    """Each leaf's carrier, by peer ids."""
    return {member.peer_id: member.carrier for member in members if member.carrier}


def well_composed(members: Sequence[Contribution], one_shot: bool = False) -> bool:
    """No name twice; then seats before leaves, each leaf with a seat to carry it, each seat with at
    most one leaf; and leaves only where there is a ring."""
    seats, carriers = seats_of(members), [m.carrier for m in members if m.carrier]
    if len({member.peer_id for member in members}) != len(members):
        return False
    if not carriers:
        return True
    return (
        not one_shot
        and len(seats) >= FEWEST_SEATS
        and all(not member.carrier for member in members[: len(seats)])
        and len(set(carriers)) == len(carriers)
        and set(carriers) <= set(seats)
    )
