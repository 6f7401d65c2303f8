"""What becomes of the parts of the optimizer's state that a peer holds, before a round's step and
after it (`docs/decisions/state-in-parts.md`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from atom.swarm.chain.commit import Value, Voter
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.part_rows import LOADED, Row
from atom.training.replica.replica import Replica
from atom.training.round.holders import Parts, parts_in, still_held
from atom.training.storage.parts_results import PartsResult


@dataclass(frozen=True)
class Damage:
    """Parts that are not what the round's commit says."""

    held: frozenset[int]
    """Of these the rest of the state; they are held no more."""
    loaded: frozenset[int]
    """Of these what is loaded: to be fetched."""


def ready_for(replica: Replica, result: PartsResult, value: Value) -> Mapping[int, bytes]:
    """Before the step: what began anew is held by all; a part whose mean is nowhere is held no
    more. Returns what the step lacks of the result, by part the digest.

    Raises: StepFailed; MemoryError.
    """
    replica.finish_step()
    for part in parts_in(value.renewed):
        replica.parts.renew(part)
    for part in replica.parts.held.held & result.lacking(replica.parts.held.held).keys():
        replica.parts.held.drop(part)
    return result.lacking(replica.parts.held.held)


def settle(replica: Replica, result: PartsResult, value: Value, me: Voter) -> Damage:
    """After the step, before anybody hears of it: sees whether all is what the commit says, and
    gives up what others are to hold. Raises: StepFailed."""
    damage = _damage(replica, result)
    holds = {m.peer_id: parts_in(m.holds | value.renewed) for m in value.contributions}
    told = {each.peer_id: parts_in(each.parts) for each in value.holders_next}
    kept = (
        replica.parts.held.held - damage.held - _given_up(replica.parts.held.held, told, holds, me)
    )
    for part in replica.parts.held.held - kept:
        replica.parts.held.drop(part)
    return damage


def _damage(replica: Replica, result: PartsResult) -> Damage:
    held, loaded = set[int](), set[int]()
    for part, row in enumerate(map(Row.of, result.rows)):
        weights, rest = replica.parts.state(part)
        if state_digest({LOADED: weights}) != row.loaded:
            loaded.add(part)
        if part in replica.parts.held.held and state_digest(rest) != row.held:
            held.add(part)
    return Damage(frozenset(held), frozenset(loaded))


def _given_up(
    held: Parts, told: Mapping[str, Parts], holds: Mapping[str, Parts], me: Voter
) -> frozenset[int]:
    """Whoever was not in the round, but has its means, is asked like the others."""
    ours = {**holds, me.peer_id: held}
    return frozenset(held - still_held(me.peer_id, told, ours))
