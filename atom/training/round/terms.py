"""What a round needs to know of the run, and how patient it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds. Decides when to try, never what is true."""

    prevote: float = 1.0
    promise: float = 1.0
    """At least; more when the slowest peer's accumulation pass takes longer."""
    testimony: float = 0.5
    """After the first word of a broken exchange, for a member that saw who failed."""
    votes: float = 1.0
    """Wait for all living voters; then a quorum suffices."""
    quiet: float = 3.0
    """Silence after which another coordinator takes over."""
    rank: float = 1.0
    holding: float = 5.0
    behind: float = 1.5
    """A better head must be visible this long: its commit notice may be under way."""
    behind_bystander: float = 0.3
    """The same for who had no part in the round: a joiner must not stay a round behind."""
    thaw_gap: float = 2.0
    """A gap between ticks that means we were frozen ourselves: stop leading, look first."""
    thaw_rest: float = 4.0
    retry: float = 0.5
    shun: float = 20.0
    unhelpful: float = 5.0
    """A better head that could not be fetched is left alone this long; whoever claims it may lie,
    or be out of our reach."""
    grace: float = 12.0


@dataclass(frozen=True)
class Terms:
    """The run's numbers. `branches` False: never go on without a quorum of silent voters."""

    global_batch: int
    """Sequences per round, over all peers."""
    last_round: int | None = None
    branches: bool = True
    patience: Patience = Patience()
    average_bytes: int = 0
    """Of one average on the wire: how much the speed of links counts beside their length."""
    ring_possible: bool = True
    """Whether the run's codec may be encoded again at every hop of a ring."""
