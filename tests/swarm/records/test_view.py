import json

from swarm_samples import HEAD, a_lease, a_manifest

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Branch
from atom.swarm.identity import Identity
from atom.swarm.records.lease import PeerState
from atom.swarm.records.view import preferred_head, view_swarm

OTHER = b"x" * 32
LEFT = (Branch(4, 1, b"n" * 8),)
MANIFEST = a_manifest(Identity.create())


def test_the_view_is_computed_at_the_preferred_head():
    leases = [
        a_lease("b", sequences=4, round=9, loss=2.5),
        a_lease("a", sequences=3, round=9, loss=None, state=PeerState.LEAVING),
        a_lease("c", sequences=50, round=12, head=OTHER, loss=1.0, branches=LEFT),
        a_lease("d", sequences=6, round=9, state=PeerState.LEFT),
    ]
    view = view_swarm(MANIFEST, leases, global_batch=12, unix_time=1_700_000_003.0)
    assert (view.round, view.accumulated, view.loss) == (9, 7, 2.5)
    assert view.head == HEAD.hex()
    assert view.tokens_per_s == 160.0
    assert [peer.peer_id for peer in view.peers] == ["a", "b", "c", "d"]


def test_speed_does_not_drop_while_a_commit_reaches_one_peer_after_the_other():
    leases = [
        a_lease("a", round=8),
        a_lease("b", round=7, head=OTHER),
        a_lease("c", round=6, head=OTHER),
        a_lease("d", round=8, head=OTHER, branches=LEFT),
        a_lease("e", round=7, head=OTHER, state=PeerState.LEFT),
    ]
    view = view_swarm(MANIFEST, leases, global_batch=12, unix_time=1_700_000_003.0)
    assert view.head == HEAD.hex()
    assert view.tokens_per_s == 160.0, "of a, and of b that is about to follow"


def test_attempts_in_vain_are_told_in_the_order_of_rounds():
    leases = [
        a_lease("b", ended_attempts=((4, Reason.RING_BROKEN), (7, Reason.EARLY))),
        a_lease("a", ended_attempts=((5, Reason.NO_QUORUM),)),
    ]
    shown = view_swarm(MANIFEST, leases, 12, 1_700_000_003.0).to_json()
    assert shown["void_attempts"] == [
        {"round": 4, "peer_id": "b", "reason": "ring-broken"},
        {"round": 5, "peer_id": "a", "reason": "no-quorum"},
        {"round": 7, "peer_id": "b", "reason": "early"},
    ]


def test_the_keys_of_the_status_command():
    lease = a_lease("a", sequences=3, sequences_per_s=1.23456)
    shown = view_swarm(MANIFEST, [lease], 12, 1_700_000_003.0).to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert {"run", "round", "global_batch", "accumulated", "loss", "peers"} <= set(shown)
    assert shown["run"] == "shakespeare"
    assert shown["peers"] == [
        {
            "peer_id": "a",
            "state": "accumulating",
            "round": 3,
            "mini_batches": 3,
            "rate": 1.235,
            "tokens_per_s": 80.0,
            "digest": "64" * 32,
            "lease_age_s": 2.5,
            "void_passes": 0,
            "void_cause": "",
        }
    ]


def test_equal_rounds_prefer_the_lower_digest_and_no_head_is_no_claim():
    assert preferred_head([a_lease("a", head=OTHER), a_lease("b", head=HEAD)]) == HEAD
    assert preferred_head([a_lease("a", head=b"", round=10**9), a_lease("b")]) == HEAD
    assert preferred_head([a_lease("a", head=b"")]) == b""


def test_an_empty_swarm_and_a_clock_that_runs_ahead():
    empty = view_swarm(MANIFEST, [], None, 0.0)
    assert (empty.round, empty.accumulated, empty.loss, empty.peers) == (0, 0, None, ())
    [peer] = view_swarm(MANIFEST, [a_lease("a")], 12, unix_time=0.0).peers
    assert peer.lease_age_s == 0.0
