"""Checks of the demo's claims. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from atom.cli.demo.peer import FINISHED, Event

State = tuple[str, str]
"""Head and digest of a replica, hexadecimal."""


@dataclass(frozen=True)
class PeerResult:
    """Result of one peer."""

    name: str
    peer_id: str
    fate: str
    rounds: int
    """Number of committed rounds that the peer contributed to."""
    states: Mapping[int, State]
    """State of its replica after each round that the peer committed or fetched."""

    @property
    def last_round(self) -> int:
        """Newest round of the replica; 0 without any state."""
        return max(self.states, default=0)

    @property
    def digest(self) -> str:
        """Digest of the replica after its last round; empty without any state."""
        return self.states.get(self.last_round, ("", ""))[1]


@dataclass(frozen=True)
class Check:
    """One claim, its result, and the figures behind the result."""

    claim: str
    passed: bool
    figures: str


def rounds_of(events: Iterable[Event]) -> list[Event]:
    """Return the events of committed rounds in order; of a repeated round, the later event."""
    last = {int(event["round"]): event for event in events if event.get("event") == "round"}
    return [last[number] for number in sorted(last)]


def sequences_of(event: Event, peer_id: str) -> int:
    """Return the number of sequences that a peer contributed to a round."""
    parts = zip(event["members"], event["contributed"], strict=True)
    return sum(sequences for member, sequences in parts if member == peer_id)


def sum_up(
    name: str, peer_id: str, fate: str, events: Sequence[Event], founder: Sequence[Event]
) -> PeerResult:
    """Return the result of one peer.

    Args:
        name: Name of the peer in the demo.
        peer_id: Peer id.
        fate: How the peer ended.
        events: Events of the peer, for the states of its replica.
        founder: Events of the founder, for the rounds that the peer contributed to.
    """
    rounds = sum(sequences_of(event, peer_id) > 0 for event in rounds_of(founder))
    return PeerResult(name, peer_id, fate, rounds, _states(events))


def judge(results: Sequence[PeerResult], losses: Sequence[float]) -> list[Check]:
    """Return the checks of all claims of the demo.

    Args:
        results: Result of each peer.
        losses: Loss of each committed round, in order.
    """
    return [_loss_fell(losses), _identical([each for each in results if each.fate == FINISHED])]


def _states(events: Sequence[Event]) -> dict[int, State]:
    """Return the state after each round, by the newest event of the round.

    A round has several events if its first branch was given up.
    """
    telling = ("started", "round", "caught-up", "left")
    return {
        int(event["round"]): (str(event.get("head", "")), str(event["digest"]))
        for event in events
        if event["event"] in telling and event.get("digest")
    }


def _loss_fell(losses: Sequence[float]) -> Check:
    claim = "the loss fell below half of its first value"
    if not losses:
        return Check(claim, False, "no round was committed")
    first, last = losses[0], losses[-1]
    passed = math.isfinite(last) and last < first / 2
    return Check(claim, passed, f"{first:.4f} → {last:.4f}")


def _identical(survivors: Sequence[PeerResult]) -> Check:
    """Check that the replicas are equal at the end, and after each round that several had."""
    claim = "all surviving replicas are bit-identical"
    if len(survivors) < 2:
        return Check(claim, False, f"{len(survivors)} survived: nothing to compare")
    seen = sorted((number, state) for each in survivors for number, state in each.states.items())
    for (number, state), (next_number, next_state) in pairwise(seen):
        if number == next_number and state != next_state:
            return Check(claim, False, f"replicas differ after round {number}")
    last = {result.last_round for result in survivors}
    if len(last) > 1 or last == {0}:
        where = ", ".join(f"{result.name} at round {result.last_round}" for result in survivors)
        return Check(claim, False, where)
    figures = f"{len(survivors)} after round {last.pop()}: {survivors[0].digest[:12]}"
    return Check(claim, True, figures)
