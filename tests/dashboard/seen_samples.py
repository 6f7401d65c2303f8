"""Swarms to look at."""

from dataclasses import replace
from typing import Any

from atom.dashboard.feed import Seen
from atom.swarm.chain.commit import Head
from atom.swarm.chain.ledger import Ledger, Round, Share
from atom.swarm.records.view import PeerView, SwarmView

_PEER = PeerView(
    peer_id="12D3KooWpeer",
    state="accumulating",
    round=7,
    mini_batches=5,
    rate=1.25,
    tokens_per_s=80.0,
    digest="ab" * 32,
    lease_age_s=0.4,
)


def a_peer(**changes: Any) -> PeerView:
    return replace(_PEER, **changes)


def a_view(*peers: PeerView, **changes: Any) -> SwarmView:
    view = SwarmView(
        run="shakespeare",
        round=7,
        global_batch=12,
        accumulated=5,
        loss=2.5,
        head="cd" * 32,
        tokens_per_s=80.0,
        peers=peers or (_PEER,),
    )
    return replace(view, **changes)


def a_ledger() -> Ledger:
    """Three rounds of two peers; the second went on without a quorum."""
    rounds = (
        Round(1, 3.0, 10, 1, 0, 0),
        Round(2, 2.5, 10, 1, 2, 1),
        Round(3, 2.0, 10, 2, 0, 0),
    )
    shares = {"12D3KooWbob": Share(10, 1, 3, 3), "12D3KooWann": Share(20, 3, 1, 3)}
    return Ledger(Head(b"h" * 32, 3, 30, 0, (), ()), rounds, shares)


def seen(view: SwarmView, rounds: int | None = None, problem: str = "") -> Seen:
    return Seen(view, rounds, ((6, 2.75), (7, 2.5)), problem)
