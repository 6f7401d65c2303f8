"""Real daemons that take steps of their own, by four bits a number: the same faults, once each.

The long form is all of `test_faults.py` under `ATOM_CHAOS_RULE=local-steps` (see the Makefile).
"""

from collections.abc import Iterator

import pytest
from swarm_history import all_end_on_one_chain, contributes
from swarm_of_processes import LOCAL_STEPS, START_S, Swarm, endless, gather, swarm_in
from test_faults import (
    BOUND_S,
    GRACE_S,
    Fault,
    frozen,
    killed,
    others_go_on,
    pick,
    restarted_with_damaged_files,
)

RUN = "steps"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    run = endless(RUN, GRACE_S, 10, rule=LOCAL_STEPS)
    with swarm_in(tmp_path_factory.mktemp("of"), run, ("ada", "bob", "cyd")) as swarm:
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        yield swarm


@pytest.mark.timeout(4 * START_S)
@pytest.mark.parametrize("fault", [killed, frozen, restarted_with_damaged_files])
def test_during_a_round(three: Swarm, fault: Fault) -> None:
    victim = pick(three, 0, fault.__name__)
    with fault(three, victim, 0):
        others_go_on(three, victim)
        mark = len(victim.rounds)
    three.until(lambda: contributes(three, victim, mark), "its part in a round", BOUND_S)
    assert victim.exit_code is None, victim.story()


@pytest.mark.timeout(2 * START_S)
def test_all_end_on_one_chain(three: Swarm) -> None:
    assert three.founder.rounds[-1]["loss"] < three.founder.rounds[0]["loss"]
    all_end_on_one_chain(three, RUN)
