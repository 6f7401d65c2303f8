"""The all-reduce of simulated peers: it ends well only if all took part in the same one to the end.

Members finish one by one, so any of them may hold a result that others never get.
"""

import random
from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from simulated_world import Agenda, Network

from atom.swarm.chain.commit import MemberCount, canonical_digest
from atom.swarm.exchange.plans import connected
from atom.training.round.events import ExchangeFailed, ExchangeFinished, StartExchange

if TYPE_CHECKING:
    from simulated_peer import Process

STALL_SECONDS = 1.3
HELD_UP_SECONDS = 6.0

Work = tuple[str, bytes, int]
"""One accumulation pass: (peer id, incarnation, number). Counted at most once per chain."""


@dataclass(frozen=True)
class Result:
    """An averaged gradient: what went in, under the parent it was computed on."""

    parent: bytes
    digest: bytes
    norm: float
    works: frozenset[Work]


def kept(results: dict[bytes, Result], digests: Set[bytes], head: bytes) -> dict[bytes, Result]:
    """Return the results to keep: these, and results of earlier heads, which are on disk."""
    return {d: r for d, r in results.items() if d in digests or r.parent != head}


@dataclass
class Runner:
    """One process in one ring."""

    process: "Process"
    works: tuple[Work, ...]
    """Works of the process when its exchange began."""
    state: str = "running"


@dataclass
class _Ring:
    members: tuple[MemberCount, ...]
    runners: dict[str, Runner] = field(default_factory=dict)
    result: Result | None = None
    """Sum of all runners' work, once the exchange is complete."""

    @property
    def complete(self) -> bool:
        return len(self.runners) == len(self.members)


class Trouble(StrEnum):
    """Fault of a member in every exchange that it is in. Its messages pass."""

    FROZEN = "falls silent"
    CUT_OFF = "sees a peer fail as that one sees it"
    SLOW = "holds everybody up"


class Rings:
    """All rings of one swarm, by parent and ballot."""

    def __init__(
        self, agenda: Agenda, network: Network, dice: random.Random, seconds: tuple[float, float]
    ) -> None:
        self._agenda = agenda
        self._network = network
        self._dice = dice
        self._seconds = seconds
        self._rings: dict[tuple[bytes, object], _Ring] = {}
        self.troubled: dict[str, Trouble] = {}
        """Faults of members, by peer id."""

    def join(self, runner: Runner, start: StartExchange) -> None:
        """Adds the runner. Asserts what a ring's bytes cannot protect themselves against."""
        ring = self._rings.setdefault((start.parent, start.ballot), _Ring(start.members))
        assert ring.members == start.members, "two compositions for one ballot"
        assert len(start.shares) in (0, len(start.members))
        me = runner.process.me
        assert me.peer_id not in ring.runners, "one ballot's ring started twice"
        mine = [m.incarnation for m in start.members if m.peer_id == me.peer_id]
        assert mine == [me.incarnation], "somebody else's place"
        ring.runners[me.peer_id] = runner
        runner.process.later(STALL_SECONDS, lambda: self._check_start(runner, ring, start))
        bad = [member.peer_id for member in start.members if member.peer_id in self.troubled]
        if ring.complete and bad and len(start.members) > 1:
            self._spoil(ring, start, self._dice.choice(bad))
        elif ring.complete:
            base = self._dice.uniform(*self._seconds)
            for member in ring.runners.values():
                delay = base + self._dice.uniform(0.0, 0.5)
                member.process.later(delay, partial(self._finish, member, ring, start))

    def _spoil(self, ring: _Ring, start: StartExchange, bad: str) -> None:
        """Peers connected with the bad member see its failure; in a ring that is too slow as a
        whole no peer does."""
        trouble, beside = self.troubled[bad], _beside(start, bad)
        slow_ring = trouble is Trouble.SLOW and not start.shares
        seen = frozenset[str]() if slow_ring else beside
        words = {member.peer_id: bad if member.peer_id in seen else "" for member in start.members}
        if trouble is Trouble.CUT_OFF:
            words[bad] = self._dice.choice(sorted(beside))
        elif trouble is Trouble.FROZEN:
            del words[bad]
        seconds = HELD_UP_SECONDS if trouble is Trouble.SLOW else 0.3
        for peer_id, suspect in words.items():
            runner = ring.runners[peer_id]
            delay = seconds + self._dice.uniform(0.0, 0.2)
            runner.process.later(delay, partial(self._fail, runner, start, suspect))

    def stop(self, peer_id: str, start: StartExchange) -> None:
        runner = self._rings[start.parent, start.ballot].runners[peer_id]
        if runner.state == "running":
            runner.state = "stopped"

    def _check_start(self, runner: Runner, ring: _Ring, start: StartExchange) -> None:
        if runner.state == "running" and not ring.complete:
            absent = [m.peer_id for m in ring.members if m.peer_id not in ring.runners]
            self._fail(runner, start, self._dice.choice(absent))

    def _finish(self, runner: Runner, ring: _Ring, start: StartExchange) -> None:
        if runner.state != "running":
            return
        assert runner.works == runner.process.gradients.offered, "the offer moved under a ring"
        beside = _beside(start, runner.process.peer_id)
        culprits = [
            peer_id
            for peer_id, other in ring.runners.items()
            if not self._serves(other, runner, peer_id in beside)
        ]
        if culprits:
            delay = self._dice.choice([0.3, STALL_SECONDS])
            suspect = self._dice.choice([*culprits, *culprits, ""])
            runner.process.later(delay, lambda: self._fail(runner, start, suspect))
            return
        runner.state = "done"
        result = ring.result = ring.result or _averaged(ring, start.parent)
        finished = ExchangeFinished(start.ballot, result.digest, result.norm)
        runner.process.end_ring(start, finished, result)

    def _serves(self, other: Runner, runner: Runner, connected: bool) -> bool:
        there = other.process
        linked = self._network.carries(runner.process.peer_id, there.peer_id)
        runs = there.alive and not there.stopped and other.state in ("running", "done")
        return runs and (linked or not connected)

    def _fail(self, runner: Runner, start: StartExchange, suspect: str) -> None:
        if runner.state == "running":
            runner.state = "failed"
            failed = ExchangeFailed(start.ballot, suspect, "no progress")
            runner.process.end_ring(start, failed)


def _averaged(ring: _Ring, parent: bytes) -> Result:
    works = frozenset(work for runner in ring.runners.values() for work in runner.works)
    digest = canonical_digest("sum", [parent, ring.members, sorted(works)])
    return Result(parent, digest, 1.0 + digest[0] / 256, works)


def _beside(start: StartExchange, peer_id: str) -> frozenset[str]:
    """Return the members that a member connects with: its neighbours, or owners, or all."""
    order = [member.peer_id for member in start.members]
    at = order.index(peer_id)
    if start.shares:
        return frozenset(order[rank] for rank in connected(start.shares, at))
    return frozenset({order[at - 1], order[(at + 1) % len(order)]} - {peer_id})
