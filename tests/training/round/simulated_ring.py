"""The all-reduce of simulated peers: it ends well only if all took part in the same one to the end.

Members finish one by one, so any of them may hold a result that others never get.
"""

import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

from simulated_stall import stalled
from simulated_world import Agenda, Network

from atom.swarm.chain.commit import Contribution, canonical_digest
from atom.swarm.chain.ring_standing import RingStanding
from atom.swarm.exchange.composition import carried_by, seats_of, well_composed
from atom.swarm.exchange.geometry import RingPlan
from atom.training.round.events import RingFailed, RingFinished, StartRing

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
    """Of what was averaged at `head` only these: what was committed before it is on disk."""
    return {d: r for d, r in results.items() if d in digests or r.parent != head}


@dataclass
class Runner:
    """One process in one ring. Functions, so that the ring knows nothing else of a process."""

    peer_id: str
    incarnation: bytes
    works: tuple[Work, ...]
    running: Callable[[], bool]
    """Whether the process exists and is not suspended."""
    later: Callable[[float, Callable[[], None]], None]
    """The process's own time: stands still while it is suspended, ends when it dies."""
    report: Callable[[RingFinished | RingFailed, Result | None], None]
    frozen_works: Callable[[], tuple[Work, ...]]
    state: str = "running"


@dataclass
class _Ring:
    members: tuple[Contribution, ...]
    runners: dict[str, Runner] = field(default_factory=dict)
    result: Result | None = None
    """Of all its runners' work, once it is complete."""

    @property
    def complete(self) -> bool:
        return len(self.runners) == len(self.members)


class Liar(StrEnum):
    """What a bad member does in every ring that it is in."""

    HOLDS_UP = "says that it waits, and never goes on"
    ACCUSES = "says that a neighbour failed it"
    BETRAYS = "says to all that the coordinator failed it"
    SHRUGS = "hangs up and blames nobody"
    LEAVES = "hangs up and says nothing"


class Rings:
    """All rings of one swarm, by parent and ballot."""

    def __init__(
        self,
        agenda: Agenda,
        network: Network,
        dice: random.Random,
        seconds: tuple[float, float],
    ) -> None:
        self._agenda = agenda
        self._network = network
        self._dice = dice
        self._seconds = seconds
        self._rings: dict[tuple[bytes, object], _Ring] = {}
        self.liars: dict[str, Liar] = {}
        """By peer id."""

    def join(self, runner: Runner, start: StartRing) -> None:
        """Adds the runner. Asserts what a ring's bytes cannot protect themselves against."""
        ring = self._rings.setdefault((start.parent, start.ballot), _Ring(start.members))
        assert ring.members == start.members, "two compositions for one ballot"
        assert well_composed(start.members, start.one_shot)
        assert runner.peer_id not in ring.runners, "one ballot's ring started twice"
        mine = [m for m in start.members if m.peer_id == runner.peer_id]
        assert [m.incarnation for m in mine] == [runner.incarnation], "somebody else's place"
        ring.runners[runner.peer_id] = runner
        runner.later(STALL_SECONDS, lambda: self._check_start(runner, ring, start))
        liars = [member.peer_id for member in start.members if member.peer_id in self.liars]
        if ring.complete and liars and len(start.members) > 1:
            self._spoil(ring, start, self._dice.choice(liars))
        elif ring.complete:
            base = self._dice.uniform(*self._seconds)
            for member in ring.runners.values():
                delay = base + self._dice.uniform(0.0, 0.5)
                member.later(delay, lambda m=member: self._finish(m, ring, start))

    def _spoil(self, ring: _Ring, start: StartRing, liar: str) -> None:
        order, carried = seats_of(start.members), carried_by(start.members)
        style = self.liars[liar]
        if liar in carried:
            self._spoil_as_leaf(ring, start, liar)
            return
        if style is Liar.HOLDS_UP:
            words, seconds = _held_up(order, liar, self._dice), HELD_UP_SECONDS
        else:
            words, seconds = _told(order, liar), 0.3
        words |= {
            leaf: ("", words[carrier][1], carrier, None) if carrier != liar
            else (liar, "too-slow" if style is Liar.HOLDS_UP else "ring-broken", "", None)
            for leaf, carrier in carried.items()
        }  # fmt: skip
        beside = sorted(_beside(start, liar))
        leader = start.ballot.coordinator
        if style is Liar.BETRAYS and leader != liar:
            words = {  # whoever saw the liar itself has heard it from there
                peer: (leader, said[1], liar if said[0] == liar else said[2], said[3])
                for peer, said in words.items()
            }
        if style in (Liar.ACCUSES, Liar.BETRAYS):
            words[liar] = (self._dice.choice(beside), "timeout", "", None)
        elif style is Liar.SHRUGS:
            words[liar] = ("", "ring-broken", "", None)
        self._say_all(ring, start, words, seconds)

    def _spoil_as_leaf(self, ring: _Ring, start: StartRing, leaf: str) -> None:
        """Whatever it does, its carrier sees it, and the others hear of it."""
        carrier = carried_by(start.members)[leaf]
        order = seats_of(start.members)
        holds_up = self.liars[leaf] is Liar.HOLDS_UP
        words = {
            peer: (leaf, reason, teller, None)
            for peer, (_, reason, teller, _) in _told(order, carrier).items()
        }
        words[carrier] = (leaf, "too-slow" if holds_up else "ring-broken", "", None)
        for other, its_carrier in carried_by(start.members).items():
            words[other] = (leaf, "ring-broken", its_carrier, None)
        if self.liars[leaf] is Liar.ACCUSES:
            words[leaf] = (carrier, "timeout", "", None)
        elif self.liars[leaf] is Liar.LEAVES:
            del words[leaf]
        else:
            words[leaf] = ("", "ring-broken", "", None)
        self._say_all(ring, start, words, HELD_UP_SECONDS if holds_up else 0.3)

    def _say_all(
        self, ring: _Ring, start: StartRing, words: Mapping[str, "_Said"], seconds: float
    ) -> None:
        for peer_id, said in words.items():
            runner = ring.runners[peer_id]
            delay = seconds + self._dice.uniform(0.0, 0.2)
            runner.later(delay, lambda r=runner, said=said: self._say(r, start, said))

    def _say(self, runner: Runner, start: StartRing, said: "_Said") -> None:
        if runner.state == "running":
            runner.state = "failed"
            runner.report(RingFailed(start.ballot, *said), None)

    def stop(self, peer_id: str, start: StartRing) -> None:
        runner = self._rings[start.parent, start.ballot].runners[peer_id]
        if runner.state == "running":
            runner.state = "stopped"

    def _check_start(self, runner: Runner, ring: _Ring, start: StartRing) -> None:
        if runner.state == "running" and not ring.complete:
            absent = [m.peer_id for m in ring.members if m.peer_id not in ring.runners]
            self._fail(runner, start, self._dice.choice(absent))

    def _finish(self, runner: Runner, ring: _Ring, start: StartRing) -> None:
        if runner.state != "running":
            return
        assert runner.works == runner.frozen_works(), "gradients moved under a ring"
        beside, carried = _beside(start, runner.peer_id), carried_by(start.members)
        culprits = [
            peer_id
            for peer_id, other in ring.runners.items()
            if not self._serves(other, runner, peer_id in beside)
            and not (peer_id in carried and self._dice.random() < 0.5)  # its sums are through
        ]
        if culprits:
            delay = self._dice.choice([0.3, STALL_SECONDS])
            suspect = self._dice.choice([*culprits, *culprits, ""])
            runner.later(delay, lambda: self._fail(runner, start, suspect))
            return
        runner.state = "done"
        result = ring.result = ring.result or _averaged(ring, start.parent)
        runner.report(RingFinished(start.ballot, result.digest, result.norm), result)

    def _serves(self, other: Runner, runner: Runner, connected: bool) -> bool:
        linked = self._network.carries(runner.peer_id, other.peer_id)
        well = linked or not connected
        return other.state in ("running", "done") and other.running() and well

    def _fail(self, runner: Runner, start: StartRing, suspect: str) -> None:
        if runner.state == "running":
            runner.state = "failed"
            runner.report(RingFailed(start.ballot, suspect, "no progress"), None)


def _averaged(ring: _Ring, parent: bytes) -> Result:
    works = frozenset(work for runner in ring.runners.values() for work in runner.works)
    digest = canonical_digest("sum", [parent, ring.members, sorted(works)])
    return Result(parent, digest, 1.0 + digest[0] / 256, works)


def _beside(start: StartRing, peer_id: str) -> set[str]:
    """With whom it has connections: its neighbours and its leaf, its carrier, or everybody."""
    order, carried = seats_of(start.members), carried_by(start.members)
    if start.one_shot:
        return set(order)
    if peer_id in carried:
        return {carried[peer_id]}
    at = order.index(peer_id)
    leaves = {leaf for leaf, carrier in carried.items() if carrier == peer_id}
    return {order[at - 1], order[(at + 1) % len(order)]} | leaves


_Said = tuple[str, str, str, RingStanding | None]
"""Whom it suspects, why, who told it, how far it got."""


def _held_up(order: Sequence[str], liar: str, dice: random.Random) -> dict[str, _Said]:
    """Everybody's words once nothing moves; the liar has its own view of that."""
    elements = 16 * 4 * len(order)
    plan = RingPlan(elements, len(order), elements, 16)
    rank, sends = order.index(liar), dice.randrange(4)
    places = stalled(plan, rank, sends)
    places[rank] = stalled(plan, (rank - 1) % len(order), sends)[rank]  # as if its left did it
    return {
        peer_id: ("", "too-slow", "", place) for peer_id, place in zip(order, places, strict=True)
    }


def _told(order: Sequence[str], liar: str) -> dict[str, _Said]:
    """What the others hear when the liar hangs up: each from the neighbour on the liar's side."""
    at, size = order.index(liar), len(order)
    words = {}
    for step in range(1, size):
        peer_id = order[(at + step) % size]
        teller = (
            order[(at + step - 1) % size] if step <= size // 2 else order[(at + step + 1) % size]
        )
        words[peer_id] = ("", "ring-broken", teller, None)
    return words
