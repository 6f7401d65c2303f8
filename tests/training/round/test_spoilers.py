"""One voter of four that spoils each round and leaves no proof: rounds go on, and no branch gives
it the run. Real machines, virtual time."""

import functools
from dataclasses import replace

import pytest
import simulated_ring
from simulated_peer import CarryOut, Process, leads_nothing
from simulation import Swarm, begun

from atom.base.errors import Reason
from atom.swarm.chain.commit import canonical_digest, signed_by
from atom.swarm.chain.messages import Nack, Promise, Suspect
from atom.swarm.chain.succession import PROMISE_DOMAIN, promise_payload
from atom.swarm.records.lease import Lease, PeerState
from atom.training.round.events import Action, ExchangeFinished, Send, StartExchange

SECONDS = 180.0


def gives_each_member_other_bytes(swarm: Swarm, liar: Process, patch: pytest.MonkeyPatch) -> None:
    finish = simulated_ring.Rings._finish

    def spoilt(rings: simulated_ring.Rings, runner: object, ring: object, start: object) -> None:
        members = [member.peer_id for member in start.members]
        shares = start.shares or [1] * len(members)
        owners = {peer for peer, share in zip(members, shares, strict=True) if share}
        process = runner.process
        if liar.peer_id not in owners or process is liar or runner.state != "running":
            finish(rings, runner, ring, start)
            return
        runner.state = "done"
        true = simulated_ring._averaged(ring, start.parent)
        result = replace(true, digest=canonical_digest("other", [true.digest, process.peer_id]))
        process.end_ring(start, ExchangeFinished(start.ballot, result.digest, result.norm), result)

    patch.setattr(simulated_ring.Rings, "_finish", spoilt)


def claims_the_batch(swarm: Swarm, liar: Process, refuses: bool) -> None:
    """Show the whole batch in each lease, and promise nothing, or refuse to."""
    liar.paused = True
    publish = liar._lookout._directory.publish

    def claim(lease: Lease, now: float) -> None:
        if lease.peer_id == liar.peer_id:
            batch = swarm.terms.global_batch
            lease = replace(lease, sequences=batch, state=PeerState.ACCUMULATING)
        publish(lease, now)

    def habit(honest: CarryOut, action: Action) -> None:
        if isinstance(action, Send) and isinstance(action.message, Promise):
            said = action.message
            ballot, state, leaving = said.ballot, said.state_digest, said.leaving
            payload = promise_payload(said.parent, ballot, 0, 0.0, state, leaving)
            signature = liar.seat.identity.sign(PROMISE_DOMAIN, signed_by(liar.me, payload))
            nothing = replace(said, sequences=0, loss_sum=0.0, signature=signature)
            refusal = Nack(said.parent, ballot, None, Reason.BUSY)
            action = Send(action.to, refusal if refuses else nothing)
        honest(action)

    liar._lookout._directory.publish = claim  # type: ignore[method-assign]
    liar.act_as(habit)
    liar.act_as(leads_nothing)


def reports_each_exchange(swarm: Swarm, liar: Process) -> None:
    """Say at the beginning of each exchange that it broke, and name no peer."""

    def habit(honest: CarryOut, action: Action) -> None:
        honest(action)
        if isinstance(action, StartExchange):
            word = Suspect(action.parent, action.ballot, "")
            honest(Send(action.ballot.coordinator, word))

    liar.act_as(habit)
    liar.act_as(leads_nothing)


def started() -> Swarm:
    return begun(1, 4, rounds=2, global_batch=16, ring_seconds=(2.0, 3.0))


@functools.cache
def calm() -> int:
    return started().rounds_in(SECONDS)


@pytest.mark.parametrize("habit", ["bytes", "claims", "refuses", "reports"])
def test_rounds_go_on_beside_a_spoiler(habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, swarm = calm(), started()
    liar = swarm["D"]
    if habit == "bytes":
        gives_each_member_other_bytes(swarm, liar, monkeypatch)
    elif habit == "reports":
        reports_each_exchange(swarm, liar)
    else:
        claims_the_batch(swarm, liar, refuses=habit == "refuses")
    assert swarm.rounds_in(SECONDS) >= 0.6 * usual
    assert not swarm["A"].chain.head.branches
