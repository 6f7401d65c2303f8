"""Swarms to look at."""

from dataclasses import replace
from typing import Any

from atom.extras.dashboard.feed import Seen
from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import Ledger, Round, Share
from atom.swarm.records.lease import Lease
from atom.swarm.records.view import SwarmView
from tests.swarm.swarm_samples import a_lease

_PEER = a_lease("12D3KooWpeer", round=7, state_digest=b"\xab" * 32)


def a_peer(**changes: Any) -> Lease:
    return replace(_PEER, **changes)


def a_view(*peers: Lease, **changes: Any) -> SwarmView:
    view = SwarmView(
        run="shakespeare",
        round=7,
        global_batch=12,
        accumulated=5,
        loss=2.5,
        head="cd" * 32,
        tokens_per_s=80.0,
        peers=peers or (_PEER,),
        unix_time=_PEER.issued_at + 0.4,
    )
    return replace(view, **changes)


def no_ledger() -> Ledger:
    return Ledger(Head(b"h" * 32, 0, 0, 0, (), ()))


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
    return Seen(view, rounds, a_ledger(), problem)
