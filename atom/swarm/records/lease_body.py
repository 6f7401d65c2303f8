"""The content of a lease's record, from a lease and back. Who signed it is `codec`'s."""

import math
import re
from collections.abc import Sequence

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.branches import SHOWN, Branch
from atom.swarm.identity import MAX_PEER_ID_CHARACTERS
from atom.swarm.records.fields import check_digest, incarnation_of, texts_of
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.link import LEAST_BYTES_PER_S, LONGEST_ROUND_TRIP_S, Link
from atom.swarm.records.reachability import Reached
from atom.wire.records_pb2 import BranchBody, EndedAttempt, LeaseBody, LinkBody

MAX_ADDRESSES = 8
MAX_ADDRESS_CHARACTERS = 128
MAX_LINES = 4
MAX_LINKS = 16
MAX_ENDED_ATTEMPTS = 4
MAX_RATE = 1e15
"""Of every rate and time: far beyond any machine, and the sum of all peers' is still a number."""
MAX_LOSS = 1e6
"""Nats per token."""
_NAME_BYTES = 8
_CAUSE = re.compile(r"[a-z-]{1,32}")
_MAX_COUNT = 2**63 - 1
_REASONS = frozenset(reason.value for reason in Reason)


def to_body(lease: Lease, run: str, owner: str, expires_at: float) -> LeaseBody:
    """What is signed."""
    body = LeaseBody(
        run=run,
        owner=owner,
        peer_id=lease.peer_id,
        expires_at=expires_at,
        incarnation=lease.incarnation,
        serial=lease.serial,
        issued_at=lease.issued_at,
        state=lease.state.value,
        head=lease.head,
        round=lease.round,
        work=lease.work,
        sequences=lease.sequences,
        rounds_joined=lease.rounds_joined,
        sequences_committed=lease.sequences_committed,
        sequences_per_s=lease.sequences_per_s,
        tokens_per_s=lease.tokens_per_s,
        pass_seconds=lease.pass_seconds,
        loss=_shown_loss(lease.loss),
        state_digest=lease.state_digest,
        addresses=lease.addresses,
        reached=lease.reached.value,
        relays=lease.relays,
        lines=lease.lines,
        branches_before=lease.branches_before,
        void_passes=lease.void_passes,
        void_cause=lease.void_cause,
    )
    for branch in lease.branches:
        body.branches.add(round=branch.round, backing=branch.backing, name=branch.name)
    for name, link in lease.links:
        rate = link.bytes_per_s if link.bytes_per_s <= MAX_RATE else 0.0
        body.links.add(peer=name, round_trip_s=link.round_trip_s, bytes_per_s=rate)
    for number, reason in lease.ended_attempts:
        body.ended_attempts.add(round=number, reason=reason.value)
    return body


def _shown_loss(loss: float | None) -> float | None:
    """A loss that the others would refuse, such as one a single member made up, is not shown: it
    must not keep them from this peer."""
    return loss if loss is not None and abs(loss) <= MAX_LOSS else None


def from_body(body: LeaseBody) -> Lease:
    """Raises: PeerRefused: a field out of its bounds, not finite, malformed."""
    _check_counts(body)
    check_digest("head", body.head, empty_allowed=True)
    check_digest("state_digest", body.state_digest, empty_allowed=True)
    return Lease(
        peer_id=body.peer_id,
        incarnation=incarnation_of(body.incarnation),
        serial=body.serial,
        issued_at=body.issued_at,
        state=_state(body.state),
        head=body.head,
        round=body.round,
        work=body.work,
        sequences=body.sequences,
        rounds_joined=body.rounds_joined,
        sequences_committed=body.sequences_committed,
        sequences_per_s=body.sequences_per_s,
        tokens_per_s=body.tokens_per_s,
        pass_seconds=body.pass_seconds,
        loss=body.loss if body.HasField("loss") else None,
        state_digest=body.state_digest,
        addresses=texts_of("addresses", body.addresses, MAX_ADDRESSES, MAX_ADDRESS_CHARACTERS),
        reached=_reached(body.reached),
        relays=body.relays,
        lines=texts_of("lines", body.lines, MAX_LINES, MAX_PEER_ID_CHARACTERS),
        links=_links(body.links),
        ended_attempts=_ended_attempts(body.ended_attempts),
        branches=_branches(body.branches),
        branches_before=body.branches_before,
        void_passes=body.void_passes,
        void_cause=body.void_cause if _CAUSE.fullmatch(body.void_cause) else "",
    )


def _check_counts(body: LeaseBody) -> None:
    counts = (
        body.serial, body.round, body.work, body.sequences,
        body.rounds_joined, body.sequences_committed, body.branches_before, body.void_passes,
    )  # fmt: skip
    if max(counts) > _MAX_COUNT:
        raise PeerRefused(Reason.MALFORMED, "a count beyond 63 bits")
    rates = (body.issued_at, body.sequences_per_s, body.tokens_per_s, body.pass_seconds)
    if not all(map(math.isfinite, (*rates, body.loss, body.expires_at))):
        raise PeerRefused(Reason.NOT_FINITE, "a lease with a number that is not finite")
    if min(rates) < 0 or max(rates) > MAX_RATE:
        raise PeerRefused(Reason.MALFORMED, "a rate or time that nobody has")
    if abs(body.loss) > MAX_LOSS:
        raise PeerRefused(Reason.MALFORMED, "a loss that no model has")


def _state(text: str) -> PeerState:
    try:
        return PeerState(text)
    except ValueError:
        raise PeerRefused(Reason.MALFORMED, f"unknown state {text[:20]!r}") from None


def _links(found: Sequence[LinkBody]) -> tuple[tuple[bytes, Link], ...]:
    if len(found) > MAX_LINKS:
        raise PeerRefused(Reason.TOO_LARGE, f"{len(found)} links")
    for link in found:
        figures = (link.round_trip_s, link.bytes_per_s)
        if not all(map(math.isfinite, figures)):
            raise PeerRefused(Reason.NOT_FINITE, "a link")
        if len(link.peer) != _NAME_BYTES or not _measurable(*figures):
            raise PeerRefused(Reason.MALFORMED, "a link")
    return tuple(
        (link.peer, Link(link.round_trip_s, link.bytes_per_s or math.inf)) for link in found
    )


def _measurable(round_trip_s: float, bytes_per_s: float) -> bool:
    """No rate at all is one: nothing was slow."""
    in_time = 0 <= round_trip_s <= LONGEST_ROUND_TRIP_S
    return in_time and (bytes_per_s == 0 or LEAST_BYTES_PER_S <= bytes_per_s <= MAX_RATE)


def _ended_attempts(found: Sequence[EndedAttempt]) -> tuple[tuple[int, Reason], ...]:
    if len(found) > MAX_ENDED_ATTEMPTS:
        raise PeerRefused(Reason.TOO_LARGE, f"{len(found)} ended attempts")
    if any(each.round > _MAX_COUNT for each in found):
        raise PeerRefused(Reason.MALFORMED, "a round beyond 63 bits")
    return tuple((each.round, Reason(each.reason)) for each in found if each.reason in _REASONS)


def _branches(found: Sequence[BranchBody]) -> tuple[Branch, ...]:
    if len(found) > SHOWN:
        raise PeerRefused(Reason.TOO_LARGE, f"{len(found)} branches")
    if any(branch.round > _MAX_COUNT or len(branch.name) != _NAME_BYTES for branch in found):
        raise PeerRefused(Reason.MALFORMED, "a branch")
    return tuple(Branch(branch.round, branch.backing, branch.name) for branch in found)


def _reached(text: str) -> Reached:
    try:
        return Reached(text)
    except ValueError:
        raise PeerRefused(Reason.MALFORMED, f"unknown reach {text[:20]!r}") from None
