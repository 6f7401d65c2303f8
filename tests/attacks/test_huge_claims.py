"""Strangers in an open run whose leases claim 2^24 sequences each.

All peers once took the batch for complete: they trained no more, and called for attempts in vain.
"""

from dataclasses import replace

from atom.swarm.chain.commit import MAX_SEQUENCES, ChainRules, Voter, genesis
from atom.swarm.chain.messages import Prevote
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.training.replica.pacing import count_swarm, next_pass
from atom.training.round.events import Send, Tick, View
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundTerms
from tests.swarm.swarm_samples import a_lease

BATCH, MICRO_BATCH, MOST, SECONDS = 64, 4, 8, 60
KEYS = [Identity.create() for _ in range(3)]
FOUNDER = Voter(KEYS[0].peer_id, bytes(16))
HEAD = genesis(
    bytes(32), b"s" * 32, FOUNDER, ChainRules(BATCH, trusted=frozenset({KEYS[1].peer_id}))
)
TRUSTED, STRANGER = (
    a_lease(key.peer_id, head=HEAD.digest, round=0, sequences=0) for key in KEYS[1:]
)


def seen(*strangers: Lease, counted: int = 0) -> View:
    """Return the view of the founder, which has counted so much, and of the trusted peer."""
    fresh = {lease.peer_id: lease for lease in (TRUSTED, *strangers)}
    return View(fresh, sequences=counted, seen_at=10.0)


def crowd(count: int) -> list[Lease]:
    lies = replace(STRANGER, sequences=MAX_SEQUENCES)
    return [replace(lies, peer_id=Identity.create().peer_id) for _ in range(count)]


def machine() -> RoundMachine:
    return RoundMachine(FOUNDER, HEAD, b"s" * 32, RoundTerms(BATCH), KEYS[0].sign, 0.0)


def test_passes_go_on_as_without_the_strangers() -> None:
    passes = [
        next_pass(0, 5.0, count_swarm(machine(), view), BATCH, MICRO_BATCH, MOST)
        for view in (seen(), seen(*crowd(1)), seen(*crowd(20)))
    ]
    assert passes[0] > 0
    assert len(set(passes)) == 1


def test_no_attempt_is_called_for_until_known_peers_have_counted_the_batch() -> None:
    peer, view = machine(), seen(*crowd(20), counted=BATCH - 1)
    actions = [
        action for tick in range(10 * SECONDS) for action in peer.handle(Tick(view), tick / 10)
    ]
    assert actions == []
    called = [
        action
        for tick in range(100)
        for action in peer.handle(Tick(replace(view, sequences=BATCH)), SECONDS + tick / 10)
    ]
    assert called, "it would call otherwise"


def test_a_stranger_that_answers_attempts_counts_for_its_share_only() -> None:
    peer = machine()
    view = seen(*crowd(1), counted=1)
    (liar,) = view.fresh.keys() - {TRUSTED.peer_id}
    peer._coordinator.peers.has_answered(liar)
    assert count_swarm(peer, view).others_sequences <= BATCH // 3 + 1
    prevotes = [
        action
        for tick in range(10 * SECONDS)
        for action in peer.handle(Tick(view), tick / 10)
        if isinstance(action, Send) and isinstance(action.message, Prevote)
    ]
    assert prevotes == []
