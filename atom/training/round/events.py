"""Events, views and actions of a round. Frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from atom.base.errors import Reason
from atom.swarm.chain.commit import Ballot, Commit, Head, MemberCount, Voter
from atom.swarm.chain.messages import Message
from atom.swarm.records.lease import HowReached, Lease, Reached


class Phase(StrEnum):
    """Activity of this member in the round of its head."""

    ACCUMULATING = "accumulating"
    PROMISED = "promised"
    """Counting is frozen; waiting for the ring's composition."""
    REDUCING = "reducing"
    HOLDING = "holding"
    """Has the averaged gradient; waiting for the vote and the commit."""
    STEPPING = "stepping"
    SYNCING = "syncing"
    """The state is old, of another chain, or unknown; this member takes part in no round."""


BETWEEN_STATES = (Phase.STEPPING, Phase.SYNCING)
"""Phases in which this replica decides nothing: the state itself is being written."""


@dataclass(frozen=True)
class View:
    """Snapshot of the directory: a hint for triggers and time limits, never a vote."""

    fresh: Mapping[str, Lease] = field(default_factory=dict)
    """Fresh leases of the *other* peers, by peer id."""
    lapsed_seconds: Mapping[Voter, float] = field(default_factory=dict)
    """Seconds of silence of each voter of our head without a fresh lease, by our own clock."""
    dead: frozenset[Voter] = frozenset()
    """Voters confirmed gone: they said goodbye, or their peer runs a newer incarnation."""
    sequences: int = 0
    """Sequences that we have counted."""
    pass_seconds: float = 0.0
    """Usual duration of our passes in seconds, by which other peers decide how long to wait."""
    quarantined: frozenset[str] = frozenset()
    """Peers that did what no honest peer does; they are in no exchange, and never donors."""
    mine: Lease | None = None
    """Our own lease, as the directory shows it; None if it shows none that is clearly ours."""
    seen_at: float = float("-inf")
    """Time of the last reading of the directory, by our own clock."""

    @property
    def leases(self) -> Mapping[str, Lease]:
        """Fresh leases, with our own if the directory shows it."""
        return {**self.fresh, self.mine.peer_id: self.mine} if self.mine else self.fresh

    @property
    def undialled(self) -> set[str]:
        """Peers that report that they cannot be dialled."""
        return {peer for peer, lease in self.leases.items() if lease.reached is Reached.NO}

    @property
    def unsteady(self) -> set[str]:
        """Peers that can neither be dialled nor punched: such a peer cannot connect to another peer
        that cannot be dialled."""
        steady = HowReached.PUNCHED
        return {peer for peer in self.undialled if self.leases[peer].reach is not steady}


# ---- events


@dataclass(frozen=True)
class Tick:
    """Passing of time, with the newest view of the directory."""

    view: View


@dataclass(frozen=True)
class Received:
    """Message from an authenticated peer, in the incarnation that its handshake named."""

    sender: str
    incarnation: bytes
    message: Message


@dataclass(frozen=True)
class Frozen:
    """Report that our contribution to a ballot no longer changes, with its sequences."""

    ballot: Ballot
    sequences: int
    loss_sum: float


@dataclass(frozen=True)
class ExchangeFinished:
    """Success of an exchange here: digest and L2 norm of its result."""

    ballot: Ballot
    digest: bytes
    norm: float


@dataclass(frozen=True)
class ExchangeFailed:
    """Failure of an exchange here."""

    ballot: Ballot
    suspect: str
    """Peer that failed here; empty if no peer did, or only another member saw it."""
    reason: str


@dataclass(frozen=True)
class ResultFetched:
    """Outcome of `FetchResult`."""

    digest: bytes
    in_memory: bool
    """True if it is in memory; False if no holder delivered it in time."""
    norm: float = 0.0
    """L2 norm of the result, computed here."""


@dataclass(frozen=True)
class ChainFetched:
    """Outcome of `FetchChain`."""

    donor: str
    head: Head | None
    """Head that its verified chain leads to; None if the chain did not verify."""
    forks: tuple[Head, ...] = ()
    """Heads on the chain, from ours on, from which branches depart."""


@dataclass(frozen=True)
class Stepped:
    """Success of a step: the commit of `head` is applied, and the state now has this digest."""

    head: bytes
    state_digest: bytes


@dataclass(frozen=True)
class CaughtUp:
    """Outcome of `CatchUp`: the state is at `head`; an empty digest: there is no usable state."""

    head: Head
    state_digest: bytes
    failed: tuple[str, ...] = ()
    """Donors that could not help; they are asked again only after a while."""


@dataclass(frozen=True)
class Unreachable:
    """Failed delivery of a message: no process listens at any known address of the peer."""

    peer_id: str


@dataclass(frozen=True)
class LeaveRequested:
    """Request of the owner to leave the run in order."""


Event = (
    Tick
    | Received
    | Frozen
    | ExchangeFinished
    | ExchangeFailed
    | ResultFetched
    | ChainFetched
    | Stepped
    | CaughtUp
    | Unreachable
    | LeaveRequested
)

# ---- actions


@dataclass(frozen=True)
class Send:
    """Send a message to a peer."""

    to: str
    message: Message


@dataclass(frozen=True)
class Freeze:
    """Freeze the contribution at the next pass boundary, then report `Frozen(ballot, …)`.

    First of all, a running exchange is stopped, because it must never read changing gradients;
    `Thaw` and `Apply` stop it, too.
    """

    ballot: Ballot
    goes_on: bool = True
    """True if passes for the following round may go on.

    They still wait if they would change the frozen contribution.
    """


@dataclass(frozen=True)
class Thaw:
    """Withdraw the offer: all counted sequences count for the next attempt."""


@dataclass(frozen=True)
class StartExchange:
    """Start the exchange of a ballot, then report `ExchangeFinished` or `ExchangeFailed`."""

    parent: bytes
    ballot: Ballot
    members: tuple[MemberCount, ...]
    shares: tuple[int, ...] = ()
    keep: frozenset[bytes] | None = None
    """Results that stay in memory; all others are dropped first. None: all results stay."""


@dataclass(frozen=True)
class FetchResult:
    """Fetch the result of an exchange from its holders, then report `ResultFetched`."""

    digest: bytes
    holders: tuple[str, ...]
    committed: bool
    """True if the round is decided; False to vote for it, within the time of its attempt."""
    keep: frozenset[bytes] | None = None
    """Results that stay in memory, as in `StartExchange`.

    None while an exchange runs, because its result may already be in memory.
    """


@dataclass(frozen=True)
class FetchChain:
    """Fetch and verify the chain of a peer while training continues."""

    donor: str
    claimed_round: int
    """Round of the head that its lease claims: not much more is fetched."""


@dataclass(frozen=True)
class Apply:
    """Step with the held result of a decided round; the averaged sequences no longer count."""

    commit: Commit


@dataclass(frozen=True)
class CatchUp:
    """Bring the state to a head of the chain that these donors serve, then report `CaughtUp`."""

    donors: tuple[str, ...]
    reason: str
    discard: bool = False
    """True if our own state must not be trusted, even if its head is right."""
    forks: frozenset[bytes] | None = None
    """Digests of the heads from which the chain may branch; None: from any."""


@dataclass(frozen=True)
class Offence:
    """Act that no honest peer commits; the peer is quarantined for a while."""

    peer_id: str
    reason: Reason


@dataclass(frozen=True)
class Report:
    """Line for the event log."""

    kind: str
    fields: Mapping[str, Any]


Action = (
    Send
    | Freeze
    | Thaw
    | StartExchange
    | FetchResult
    | FetchChain
    | Apply
    | CatchUp
    | Offence
    | Report
)
