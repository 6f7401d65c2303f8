"""Bounds of a search: the peers, and how often each event may happen."""

from dataclasses import dataclass

from .state import ALIVE, Budget, Peer, State


@dataclass(frozen=True)
class Bounds:
    """One configuration. All voters and joiners begin alive at genesis."""

    name: str
    peers: int
    starts: int
    """Ordinary attempts, over all peers and rounds."""
    joiners: int = 0
    """The last so many of the peers are no voters at genesis."""
    rounds: int = 1
    branches: int = 0
    """Branch attempts."""
    crashes: int = 0
    restarts: int = 0
    leaves: int = 0
    branches_by_silence: bool = True
    """`survivors = "branch"`, else only confirmed death founds a branch."""
    states: int = 0
    """Least number of states."""
    liveness: bool = True
    """True if every state is checked for its outlook."""

    @property
    def voters(self) -> tuple[tuple[int, int], ...]:
        return tuple((p, 0) for p in range(self.peers - self.joiners))

    def start(self) -> State:
        peer = Peer(ALIVE, 0, 0, 0, 0, (), False)
        budget = Budget(self.starts, self.branches, self.crashes, self.restarts, self.leaves)
        return State((peer,) * self.peers, (), budget)


SHORT = (
    Bounds("3 peers, 2 attempts, a crash", 3, 2, crashes=1, states=26_000),
    Bounds("3 peers, 2 rounds", 3, 2, rounds=2, states=14_000),
    Bounds("3 peers, an attempt, a branch", 3, 1, branches=1, states=9_900),
    Bounds("3 peers, an attempt, a crash, a restart", 3, 1, crashes=1, restarts=1, states=1_480),
    Bounds("3 peers, an attempt, one leaves", 3, 1, leaves=1, states=1_000),
    Bounds("2 peers, 2 attempts, 2 rounds, a restart", 2, 2, rounds=2, crashes=1, restarts=1,
           states=2_500),
    Bounds("4 peers, one joins, an attempt, a crash", 4, 1, joiners=1, crashes=1, states=2_900),
)  # fmt: skip
"""Searches of the tests, which take seconds each."""
LONG = (
    *SHORT,
    Bounds("2 peers, 3 attempts, 2 rounds, a restart", 2, 3, rounds=2, crashes=1, restarts=1),
    Bounds("3 peers, 3 attempts", 3, 3),
    Bounds("3 peers, 3 attempts, a crash", 3, 3, crashes=1),
    Bounds("3 peers, 2 attempts, one leaves", 3, 2, leaves=1),
    Bounds("3 peers, 2 attempts, 2 rounds, a crash, a restart", 3, 2, rounds=2, crashes=1,
           restarts=1),
    Bounds("3 peers, an attempt, a branch, a crash, a restart", 3, 1, branches=1, crashes=1,
           restarts=1),
    Bounds("3 peers, an attempt, 2 branches, 2 rounds: they part and meet again", 3, 1, rounds=2,
           branches=2),
    Bounds("3 peers, 2 attempts, a branch", 3, 2, branches=1),
    Bounds("3 peers, one joins and votes, 3 attempts, 2 rounds", 3, 3, joiners=1, rounds=2),
    Bounds("4 peers, one joins, 2 attempts", 4, 2, joiners=1),
    Bounds("3 peers, 2 attempts, a branch by confirmed death only, a crash, a restart", 3, 2,
           branches=1, branches_by_silence=False, crashes=1, restarts=1),
    Bounds("3 peers, one joins and votes, 2 attempts, 2 rounds, a crash, a restart", 3, 2,
           joiners=1, rounds=2, crashes=1, restarts=1),
)  # fmt: skip
"""Searches of `make model`."""
