"""What can happen to a round, what is seen of the others, and what it can ask for. Frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Commit, Head, MemberCount, Voter
from atom.swarm.chain.messages import Message
from atom.swarm.records.lease import Lease, Reached


class Phase(StrEnum):
    """What this member is doing for the round of its head."""

    ACCUMULATING = "accumulating"
    PROMISED = "promised"
    """Counting is frozen; waiting for the ring's composition."""
    REDUCING = "reducing"
    HOLDING = "holding"
    """Has the averaged gradient; waiting for the vote and the commit."""
    STEPPING = "stepping"
    SYNCING = "syncing"
    """The state is behind, beside or unknown: no part in any round."""


BETWEEN_STATES = (Phase.STEPPING, Phase.SYNCING)
"""Nothing is decided: the state itself is being written."""


@dataclass(frozen=True)
class View:
    """What the directory shows right now. A hint for triggers and patience, never a vote."""

    fresh: Mapping[str, Lease] = field(default_factory=dict)
    """Fresh leases of the *other* peers."""
    lapsed_seconds: Mapping[Voter, float] = field(default_factory=dict)
    """Per voter of our head without a fresh lease: for how long, by our own clock."""
    dead: frozenset[Voter] = frozenset()
    """Voters confirmed gone: they said goodbye, or their peer runs a newer incarnation."""
    sequences: int = 0
    """Our own count."""
    pass_seconds: float = 0.0
    """Our own longest recent accumulation pass."""
    quarantined: frozenset[str] = frozenset()
    """Peers that did what no honest one does: in no exchange, and nothing is fetched from them."""
    mine: Lease | None = None
    """Our own lease, as the directory shows it; None: not yet, or not clearly ours."""
    seen_at: float = float("-inf")
    """When the directory was read last, by our own clock."""

    @property
    def leases(self) -> Mapping[str, Lease]:
        """With ours, if it is shown."""
        return {**self.fresh, self.mine.peer_id: self.mine} if self.mine else self.fresh

    @property
    def hidden(self) -> set[str]:
        """Who says that nobody can dial it: two such peers cannot speak to each other."""
        return {peer for peer, lease in self.leases.items() if lease.reached is Reached.NO}


# ---- events


@dataclass(frozen=True)
class Tick:
    view: View


@dataclass(frozen=True)
class Received:
    """A message from an authenticated peer; `incarnation` is what it said in its handshake."""

    sender: str
    incarnation: bytes
    message: Message


@dataclass(frozen=True)
class Frozen:
    """What is offered for this ballot stands still: it is of these sequences."""

    ballot: Ballot
    sequences: int
    loss_sum: float


@dataclass(frozen=True)
class ExchangeFinished:
    ballot: Ballot
    digest: bytes
    norm: float


@dataclass(frozen=True)
class ExchangeFailed:
    ballot: Ballot
    suspect: str
    """Peer id of the peer that was seen here to fail; "" if none was, or another saw it."""
    reason: str


@dataclass(frozen=True)
class ResultFetched:
    """What came of `FetchResult`."""

    digest: bytes
    is_here: bool
    """It is in memory; else nobody gave it in time."""


@dataclass(frozen=True)
class ChainFetched:
    """What came of `FetchChain`."""

    donor: str
    head: Head | None
    """Where its chain leads, every certificate of it checked; None: it served none that holds."""


@dataclass(frozen=True)
class Stepped:
    """The commit of `head` is applied; the state now has this digest."""

    head: bytes
    state_digest: bytes


@dataclass(frozen=True)
class CaughtUp:
    """The state was brought to `head`, or left there. An empty digest: there is no usable state at
    all."""

    head: Head
    state_digest: bytes
    failed: tuple[str, ...] = ()
    """Donors of which none could help: asked again only after a while, training goes on."""


@dataclass(frozen=True)
class Unreachable:
    """A message could not be delivered: nobody listens at any known address."""

    peer_id: str


@dataclass(frozen=True)
class LeaveRequested:
    pass


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
    to: str
    message: Message


@dataclass(frozen=True)
class Freeze:
    """Cut off what is counted at the next pass boundary, then report `Frozen(ballot, …)`. Before
    anything else the exchange that is under way ends: it must never read what moves. So it does
    with `Thaw` and `Apply`."""

    ballot: Ballot
    goes_on: bool = True
    """Passes for the round after this one are of use. If they would change what was cut off, they
    wait all the same."""


@dataclass(frozen=True)
class Thaw:
    """Nothing is offered any more: all that is counted counts for the next attempt."""


@dataclass(frozen=True)
class StartExchange:
    parent: bytes
    ballot: Ballot
    members: tuple[MemberCount, ...]
    shares: tuple[int, ...] = ()
    keep: frozenset[bytes] | None = None
    """Before it: of results in memory nothing else is waited for here. None: all of them stay."""


@dataclass(frozen=True)
class FetchResult:
    digest: bytes
    holders: tuple[str, ...]
    committed: bool
    """Else to vote for it, within the time that its attempt has."""
    keep: frozenset[bytes] | None = None
    """As in `StartExchange`. Never while an exchange runs: its result may be there already."""


@dataclass(frozen=True)
class FetchChain:
    """Fetch and check the chain that this peer serves, beside the training."""

    donor: str
    claimed_round: int
    """Round of the head that its lease claims: not much more is fetched."""


@dataclass(frozen=True)
class Apply:
    """The round is decided: step with the held result; what it has taken counts no more."""

    commit: Commit
    head: Head
    """The head after the step."""


@dataclass(frozen=True)
class CatchUp:
    """Bring the state to the chain these donors serve, then report `CaughtUp`."""

    donors: tuple[str, ...]
    reason: str
    discard: bool = False
    """Our own state is not to be trusted, even where its head is right."""


@dataclass(frozen=True)
class Offence:
    """A peer did what no honest one does: to be quarantined for a while."""

    peer_id: str
    reason: Reason


@dataclass(frozen=True)
class Report:
    """Something worth a line in the event log."""

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
