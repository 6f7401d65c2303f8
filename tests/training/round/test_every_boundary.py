"""One round, interrupted at every boundary between two actions of any process.

A calm round is played once to see how many things each process does in it. Then it is played again
for each of them: there the process dies, or dies and comes back, or stands still for a while.
"""

from collections.abc import Callable

import pytest
from simulated_peer import Process
from simulation import Swarm, begun

BOUND_S = 30.0


def before_the_round() -> Swarm:
    return begun(4, 3, global_batch=8, pass_seconds=(0.2,), ring_seconds=(0.1, 0.3))


def things_done(name: str) -> int:
    swarm = before_the_round()
    began = swarm[name].acts
    swarm.run_until_agreed(60.0, 1)
    return swarm[name].acts - began


def die(swarm: Swarm, process: Process) -> None:
    process.die()


def die_and_return(swarm: Swarm, process: Process) -> None:
    process.die()
    swarm.agenda.after(0.5, lambda: swarm.restart(process.seat.name))


def stand_still(swarm: Swarm, process: Process) -> None:
    process.suspend()
    swarm.agenda.after(5.0, process.resume)


@pytest.mark.parametrize("fault", [die, die_and_return, stand_still])
@pytest.mark.parametrize("name", "ABC")
def test_a_round_broken_off_anywhere(name: str, fault: Callable[[Swarm, Process], None]) -> None:
    things = things_done(name)
    assert things >= 7, "a round has more to it"
    for thing in range(things):
        swarm = before_the_round()
        process = swarm[name]
        process.interruption = process.acts + thing, lambda p=process, s=swarm: fault(s, p)
        swarm.note(f"{name} is interrupted after {thing} things")
        before = swarm.living[0].chain.head.round
        swarm.run_until_agreed(BOUND_S, 2)
        assert swarm.living[0].chain.head.round > before
        assert swarm.witness.branches == 0
