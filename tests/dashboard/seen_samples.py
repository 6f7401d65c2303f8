"""Swarms to look at."""

from dataclasses import replace
from typing import Any

from atom.dashboard.feed import Seen
from atom.swarm.view import PeerView, SwarmView

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


def seen(view: SwarmView, rounds: int | None = None, problem: str = "") -> Seen:
    return Seen(view, rounds, ((6, 2.75), (7, 2.5)), problem)
