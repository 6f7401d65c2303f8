"""Real daemons whose wires are cut, go dead or change bytes: once each here.

The long form is the same tests under `ATOM_CHAOS_TIMES=32` (see the Makefile).

Each joiner announces a host of its own, where a wire leads to its port. While one wire is in
trouble the others' rounds go on; when it is sound again, its peer has a part in them again; and no
head ever has two states.
"""

import os
from collections.abc import Iterator

import pytest
from swarm_history import all_end_on_one_chain, contributes, digests_by_head, say
from swarm_of_processes import START_S, Swarm, endless, free_port, gather, swarm_in
from test_faults import others_go_on
from wire import Trouble, Wire

TIMES = int(os.environ.get("ATOM_CHAOS_TIMES", "1"))
TROUBLES = [Trouble.CUT, Trouble.DEAD, Trouble.CHANGING]
BOUND_S = 60.0
RUN = "wires"


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, list[Wire]]]:
    names = ("ada", "bob", "cyd")
    with swarm_in(tmp_path_factory.mktemp("of"), endless(RUN, 4.0, 10), names) as swarm:
        wires = [Wire(f"127.0.0.{number}", free_port()) for number in (2, 3)]
        for wire, peer in zip(wires, swarm.joiners, strict=True):
            peer.configure(f'data_port = {wire.port}\nannounce = ["{wire.host}"]')
        try:
            swarm.found(standing=True)
            gather(swarm)
            swarm.resume()
            yield swarm, wires
        finally:
            for wire in wires:
                wire.close()


@pytest.mark.timeout(4 * START_S)
@pytest.mark.parametrize("attempt", range(TIMES))
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_wire_in_trouble(wired: tuple[Swarm, list[Wire]], trouble: Trouble, attempt: int) -> None:
    swarm, wires = wired
    number = (TROUBLES.index(trouble) + attempt) % len(wires)
    wire, victim = wires[number], swarm.joiners[number]
    swarm.until(lambda: contributes(swarm, victim, 0), "its part in a round", BOUND_S)
    assert wire.chunks > 0, "nobody uses this wire"
    wire.trouble = trouble
    try:
        went_on = others_go_on(swarm, victim)
    finally:
        wire.trouble = Trouble.NONE
    mark = len(victim.rounds)
    back = swarm.until(lambda: contributes(swarm, victim, mark), "its part again", BOUND_S)
    digests_by_head([peer.events() for peer in swarm.peers])
    say(f"wire of {victim.name} {trouble}: others' rounds after {went_on:.1f} s, back {back:.1f} s")


@pytest.mark.timeout(2 * START_S)
def test_all_end_on_one_chain(wired: tuple[Swarm, list[Wire]]) -> None:
    all_end_on_one_chain(wired[0], RUN)
