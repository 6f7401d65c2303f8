"""Five voters, a head, and the leases that a directory shows of them."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from atom.swarm.chain.commit import Head, Voter, standing
from atom.swarm.records.lease import Lease, PeerState
from atom.training.round.events import View

A, B, C, D, E = VOTERS = tuple(
    standing([Voter(name, name.encode() * 16) for name in ("a", "b", "c", "d", "e")])
)
"""Five voters in the order of standing for an empty salt."""


def head_of(*voters: Voter) -> Head:
    """Return a head with these voters; the first one breaks ties."""
    return Head(b"h" * 32, 4, 96, 96, voters, ())


def lease(voter: Voter, head: bytes = b"h" * 32, **changes: Any) -> Lease:
    shown = Lease(
        voter.peer_id, voter.incarnation, 1, 0.0, PeerState.ACCUMULATING, head, 4, 8,
        0.0, 0.0, 1.0, None, b"", (),
    )  # fmt: skip
    return replace(shown, **changes)


def view(
    *fresh: Lease, silent: dict[Voter, float] | None = None, dead: Collection[Voter] = ()
) -> View:
    return View({item.peer_id: item for item in fresh}, silent or {}, frozenset(dead))
