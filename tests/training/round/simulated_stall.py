"""Where everybody stands in a ring of the real plan that one member holds up."""

import itertools

from atom.swarm.chain.ring_standing import RingStanding
from atom.swarm.exchange.geometry import RingPlan


def stalled(plan: RingPlan, liar: int, sends: int) -> list[RingStanding]:
    """All members' true standings once everybody waits, because `liar` sent no more than that."""
    order = [list(plan.sends(rank)) for rank in range(plan.members)]
    gone = [0] * plan.members
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(order):
            left = (rank - 1) % plan.members
            while gone[rank] < len(steps) and (rank != liar or gone[rank] < sends):
                needs = steps[gone[rank]].needs
                if needs is not None and needs >= gone[left]:
                    break
                gone[rank] += 1
                moved = True
    return [standing(plan, rank, gone, blocked=False) for rank in range(plan.members)]


def standing(plan: RingPlan, rank: int, gone: list[int], blocked: bool) -> RingStanding:
    came = gone[(rank - 1) % plan.members]
    unsent = next(itertools.islice(plan.sends(rank), gone[rank], None), None)
    lacks = next(itertools.islice(plan.receives(rank), came, None), None)
    places = [plan.place(step) if step is not None else plan.end for step in (lacks, unsent)]
    return RingStanding(*places[0], *places[1], blocked)
