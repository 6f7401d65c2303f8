"""Attack: a voter that leads and says `abort state-mismatch`, so that all fetch their state again.

A state has gigabytes, and the lie could be told in each round. The machines are real.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from atom.base.errors import Reason
from atom.swarm.chain.commit import Voter
from atom.swarm.chain.messages import Abort, Prepare, Promise
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.training.round.events import CatchUp, Phase, Tick, View
from atom.training.round.machine import RoundMachine
from tests.attacks.test_one_lying_voter import (
    BALLOT,
    HEAD,
    LIAR,
    STATE,
    VOTERS,
    hears,
    honest_machines,
    sent,
)
from tests.swarm.swarm_samples import a_lease

FALSE = b"f" * 32
CROWD = tuple(Voter(Identity.create().peer_id, bytes([n]) * 16) for n in range(20))


def shown(states: Mapping[Voter, bytes]) -> dict[str, Lease]:
    """Return leases at the head with these state digests."""
    return {
        voter.peer_id: a_lease(
            voter.peer_id,
            incarnation=voter.incarnation,
            head=HEAD.digest,
            round=HEAD.round,
            state_digest=state,
        )
        for voter, state in states.items()
    }


def told_each_round(machine: RoundMachine, states: Mapping[Voter, bytes]) -> list[CatchUp]:
    """Let the liar call and abort for ten minutes; return what the machine fetches."""
    fetches, calls, now = list[CatchUp](), 0, 0.0
    fresh = {peer: each for peer, each in shown(states).items() if peer != machine.me.peer_id}
    for number in range(1, 1201):
        now, ballot = now + 0.5, replace(BALLOT, attempt=number)
        actions = machine.handle(Tick(View(fresh=fresh)), now)
        actions += hears(machine, Prepare(HEAD.digest, ballot), now)
        calls += len(sent(actions, Promise))
        actions += hears(machine, Abort(HEAD.digest, ballot, Reason.STATE_MISMATCH), now)
        fetches += [action for action in actions if isinstance(action, CatchUp)]
    assert calls > 5, "the machine was in attempts of the liar"
    return fetches


LIES: Mapping[str, dict[Voter, bytes]] = {
    "its word alone": {},
    "its own lease": {LIAR: FALSE},
    "the leases of a crowd": dict.fromkeys((LIAR, *CROWD), FALSE),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("visible", [0, 1, 4], ids="{}-visible".format)
def test_no_state_is_fetched_again_on_the_word_of_one_voter(lie: str, visible: int) -> None:
    machine = next(iter(honest_machines().values()))
    honest = [voter for voter in VOTERS if voter not in (LIAR, machine.me)][:visible]
    states = dict.fromkeys(honest, STATE) | LIES[lie]
    assert told_each_round(machine, states) == []
    assert machine.phase is Phase.ACCUMULATING


def test_a_state_that_a_quorum_contradicts_is_fetched_from_voters() -> None:
    machine = next(iter(honest_machines().values()))
    states = dict.fromkeys([voter for voter in VOTERS if voter != machine.me], FALSE)
    machine.handle(Tick(View(fresh=shown(states | dict.fromkeys(CROWD, STATE)))), 0.5)
    hears(machine, Prepare(HEAD.digest, BALLOT), 1.0)
    actions = hears(machine, Abort(HEAD.digest, BALLOT, Reason.STATE_MISMATCH), 1.1)
    [fetch] = [action for action in actions if isinstance(action, CatchUp)]
    assert set(fetch.donors) == {voter.peer_id for voter in states}
