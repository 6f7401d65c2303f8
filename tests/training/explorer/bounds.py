"""How far a search looks: the peers there are, and how often each thing may happen."""

from dataclasses import dataclass
from typing import NamedTuple


class Budget(NamedTuple):
    """How often each of these may still happen, over all peers."""

    ballots: int
    """Ordinary ballots and branch attempts."""
    ticks: int
    """Ticks at which no ballot begins, but for deadlines of a peer's own ballot."""
    lies: int
    """Messages of the liar that change something."""
    crashes: int
    restarts: int
    leaves: int
    losses: int
    """Exchanges that break, and results and chains that cannot be fetched."""
    chases: int
    """Catch-ups with another peer's chain."""


@dataclass(frozen=True)
class Bounds:
    """One configuration. All peers are voters at the first head."""

    name: str
    peers: int
    ballots: int
    ticks: int = 0
    lies: int = 0
    """More than 0: the voter with number `liar` has no machine and lies."""
    liar: int = 0
    """0: the liar breaks ties."""
    crashes: int = 0
    restarts: int = 0
    faulty: str = "ABCDE"
    """Names of the peers that may crash."""
    leaves: int = 0
    losses: int = 0
    chases: int = 0
    rounds: int = 1
    """First round at whose head no ballot begins."""
    branches: bool = False
    """Voters may be silent for the grace time, in any combination."""
    sees: tuple[str, ...] = ()
    """Names of the peers that each peer sees; empty: all see all."""
    refusals: bool = False
    """Refusals and aborts are delivered, too. They only say when to try again."""
    values: tuple[str, ...] = ()
    """Values that the liar proposes, by name (`liar.VALUES`)."""
    lying_ballots: int = 1
    """Ballots that the liar begins."""
    splits: bool = False
    """The liar has each half of the others average apart, with itself."""
    depth: int = 1000
    states: int = 0
    """The search finds at least so many: a smaller search would prove less."""

    @property
    def budget(self) -> Budget:
        return Budget(*(getattr(self, name) for name in Budget._fields))


LINE = ("B", "AC", "B")
"""A and C do not see each other."""
SHORT = (
    Bounds("3 peers, a ballot, a crash, a loss", 3, 1, crashes=1, losses=1, states=6_000),
    Bounds("3 peers in a line, 2 ballots, 2 rounds", 3, 2, rounds=2, sees=LINE, states=17_000),
    Bounds("2 peers, 2 ballots, branches, a catch-up", 2, 2, branches=True, chases=1, states=1_400),
    Bounds("3 peers, a ballot, branches", 3, 1, branches=True, states=5_000),
    Bounds("3 peers, a ballot, one leaves", 3, 1, leaves=1, states=4_800),
    Bounds("3 peers, a ballot, refusals", 3, 1, refusals=True),
    Bounds("2 peers, 2 ballots, 2 rounds, a restart", 2, 2, crashes=1, restarts=1, rounds=2),
    Bounds("4 peers, a ballot", 4, 1, states=4_800),
)
"""Bounds of the tests: seconds each."""

LONG = (
    *SHORT,
    Bounds("3 peers, 2 ballots", 3, 2),
    Bounds("3 peers, 2 ballots, a tick", 3, 2, ticks=1),
    Bounds("3 peers, 2 ballots, 2 rounds", 3, 2, rounds=2),
    Bounds("3 peers, 2 ballots, branches", 3, 2, branches=True),
    Bounds("3 peers, 2 ballots, refusals", 3, 2, refusals=True),
    Bounds("3 peers, 2 ballots, 2 ticks, a crash, a loss", 3, 2, ticks=2, crashes=1, losses=1),
    Bounds("3 peers, 3 ballots, a tick", 3, 3, ticks=1),
    Bounds("3 peers, 2 ballots, 2 rounds, a crash, a restart", 3, 2, rounds=2, crashes=1,
           restarts=1),
    Bounds("3 peers, 3 ballots, branches, 2 rounds, a catch-up", 3, 3, rounds=2, branches=True,
           chases=1),
    Bounds("4 peers, 2 ballots", 4, 2),
    Bounds("5 peers, a ballot, a crash", 5, 1, crashes=1),
)  # fmt: skip
"""Bounds of `python -m tests.training.explorer`, each searched as far as its time lasts."""

COMMON = ("all that promised", "another result")
"""Values that each liar proposes."""
LYING = tuple(
    Bounds(f"{peers} peers, {'ABCDE'[liar]} lies", peers, 1, lies=4, liar=liar, lying_ballots=2,
           values=COMMON)
    for peers in (3, 4, 5)
    for liar in (0, peers - 1)
)  # fmt: skip
"""One liar among honest peers that lead, too."""
