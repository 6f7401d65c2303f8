"""A whole swarm in one process: one seed, one history. Machines are real, the world is not.

`Swarm` wires seats, network, directory and rings together. Its `Witness` sees every commit and
every state and holds them to what the protocol promises. When a promise is broken, the error tells
the story that led to it. Faults are dealt by `strikes`, whole histories of them by `histories`.
"""

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3
from simulated_peer import Process
from simulated_ring import Rings
from simulated_seat import Chain, Seat, identity
from simulated_story import Story
from simulated_witness import Witness
from simulated_world import CALM, Agenda, Directory, Network, lose_nothing

from atom.swarm.chain import commit
from atom.swarm.chain.commit import ChainRules, Voter, genesis
from atom.swarm.chain.messages import Message
from atom.swarm.exchange.choice import MOST_MEMBERS
from atom.training.round.round_state import RoundPatience, RoundTerms

PATIENT = RoundPatience()
HASTY = RoundPatience(
    prevote=0.3, promise=0.5, quiet=0.2, rank=0.05, holding=1.5, retry=0.1, grace=4.0
)
"""All peers want to lead and none waits: more rivalry in a minute than in a year of patience."""
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CROWD = "".join(map(chr, range(0x100, 0x180)))
"""Further names, for swarms that begin with more peers than there are letters."""
STORY_LINES = 400
CLOCKS_DIFFER_S = 2.0
"""Every machine's clock is wrong by up to this much."""
FIRST_KEY_OF_JOINERS = 24

commit.verify = functools.lru_cache(1 << 14)(commit.verify)
"""Results of signature checks are shared: all peers of a swarm are in this process."""


class BrokenPromise(AssertionError):
    """Promise of the protocol that a history did not keep, with its story."""

    def __init__(self, seed: int, promise: str, story: str) -> None:
        super().__init__(f"seed {seed}: {promise}\n{story}")


@dataclass(frozen=True)
class Setting:
    """Start of a history."""

    peers: int = 3
    all_voters: bool = True
    """Else only the first is a voter at genesis, as in a real run."""
    all_trusted: bool = True
    """Every peer has tenure from the start, joiners too; else only the voters at genesis have."""
    global_batch: int = 12
    pass_seconds: tuple[float, ...] = (1.0,)
    """Duration of a pass of the first peer, the second, …, and from the first again."""
    ring_seconds: tuple[float, float] = (0.1, 1.2)
    """The shortest and the longest ring."""
    branches: bool = True
    last_round: int | None = None
    patience: RoundPatience = PATIENT
    most_members: int = MOST_MEMBERS
    overlaps: bool = False
    """True if passes continue during an exchange, and untaken work counts for the next."""


class Swarm:
    """Simulated swarm: drive it with `run`, break it by hand or with `Striker`."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        self.seed, self.setting = seed, setting or Setting()
        self.dice = random.Random(seed)
        self.agenda = Agenda()
        self.network = Network(self.agenda, self.dice)
        self.directory = Directory(self.agenda, self.dice)
        self.rings = Rings(self.agenda, self.network, self.dice, self.setting.ring_seconds)
        self.terms = RoundTerms(
            self.setting.global_batch,
            self.setting.last_round,
            self.setting.branches,
            self.setting.patience,
            most_members=self.setting.most_members,
        )
        self._names: dict[str, str] = {}
        self._story = Story(self._names)
        self._numbers = itertools.count(1)
        self.seats: list[Seat] = []
        self._seat_of: dict[str, Seat] = {}
        keys = self.dice.sample(range(max(24, self.setting.peers)), self.setting.peers)
        incarnations = [self._incarnation() for _ in keys]
        voters = [Voter(identity(k).peer_id, i) for k, i in zip(keys, incarnations, strict=True)]
        first = genesis(b"m" * 32, b"s" * 32, voters[0], self._rules(keys))
        if self.setting.all_voters:
            first = replace(first, voters=tuple(sorted(voters)))
        self.start = Chain((first,), (b"s" * 32,))
        self.witness = Witness(self.start, self.setting.global_batch)
        for key, incarnation in zip(keys, incarnations, strict=True):
            self._begin(self._seat(key), incarnation)

    # ---- the cast

    def _rules(self, keys: list[int]) -> ChainRules:
        """Return the rules of the chain: they name the peers that have tenure from the start."""
        setting = self.setting
        first = FIRST_KEY_OF_JOINERS + len(keys)
        joiners = range(first, FIRST_KEY_OF_JOINERS + len(NAMES))
        trusted = [*keys, *joiners] if setting.all_trusted else keys * setting.all_voters
        ids = frozenset(identity(key).peer_id for key in trusted)
        return ChainRules(setting.global_batch, setting.last_round, trusted=ids)

    def _seat(self, key: int) -> Seat:
        number = len(self.seats)
        paces = self.setting.pass_seconds
        seat = Seat(
            (NAMES + CROWD)[number],
            identity(key),
            self.start,
            clock_offset_s=self.dice.uniform(-CLOCKS_DIFFER_S, CLOCKS_DIFFER_S),
            pass_seconds=paces[number % len(paces)],
        )
        self.seats.append(seat)
        self._seat_of[seat.peer_id] = seat
        self._names[seat.peer_id] = seat.name
        self.directory.add_reader(seat.peer_id)
        return seat

    def _incarnation(self) -> bytes:
        return blake3(f"{self.seed} {next(self._numbers)}".encode()).digest(length=16)

    def _begin(self, seat: Seat, incarnation: bytes) -> Process:
        process = seat.process = Process(self, seat, incarnation)
        self.tell(process, f"begins at round {process.chain.head.round}")
        process.start()
        return process

    def join(self) -> Process:
        """A new peer, at genesis."""
        number = FIRST_KEY_OF_JOINERS + len(self.seats)
        return self._begin(self._seat(number), self._incarnation())

    def restart(self, name: str) -> Process:
        """A dead peer comes back from its disk, as a new incarnation."""
        seat = self.seats[NAMES.index(name)]
        assert seat.process is None
        return self._begin(seat, self._incarnation())

    def __getitem__(self, name: str) -> Process:
        process = self.seats[(NAMES + CROWD).index(name)].process
        assert process is not None, f"{name} is dead"
        return process

    @property
    def has_seats(self) -> bool:
        """True if one more peer may join: every peer has a letter."""
        return len(self.seats) < len(NAMES)

    @property
    def living(self) -> list[Process]:
        return [seat.process for seat in self.seats if seat.process is not None]

    # ---- the world

    def deliver(self, sender: Voter, target: str, message: Message) -> bool:
        process = self._seat_of[target].process
        return process is not None and process.receive(sender, message)

    def process_of(self, peer_id: str) -> Process | None:
        seat = self._seat_of.get(peer_id)
        return None if seat is None else seat.process

    def reachable(self, here: str, there: str) -> Process | None:
        """The process of `there`, if `here` could fetch something from it now."""
        linked = self.network.carries(here, there)
        process = self.process_of(there)
        return process if process is not None and linked and not process.stopped else None

    def silent(self, here: str, there: str) -> bool:
        """Return True if `here` would wait for an answer of `there` in vain, without a refusal."""
        linked = self.network.passes(here, there) and self.network.passes(there, here)
        process = self.process_of(there)
        return process is not None and (process.stopped or not linked)

    def cut(self, *groups: str) -> None:
        """Partition the network into groups of names; unnamed peers reach all."""
        for one, other in itertools.permutations(groups, 2):
            self.cut_one_way(one, other)

    def cut_one_way(self, sources: str, targets: str) -> None:
        for a, b in itertools.product(sources, targets):
            self.network.blocked.add((self._id(a), self._id(b)))

    def narrow(self, one: str, others: str = NAMES) -> None:
        """Let only messages through between `one` and `others`; refuse all other connections."""
        for seat in self.seats:
            if seat.name in others and seat.name != one:
                self.network.narrow.add((self._id(one), seat.peer_id))

    def hide(self, *groups: str) -> None:
        """Partitions the directory the same way."""
        for one, other in itertools.permutations(groups, 2):
            for a, b in itertools.product(one, other):
                self.directory.hidden.add((self._id(a), self._id(b)))

    def mend(self) -> None:
        self.note("all lines are restored")
        self.network.blocked.clear()
        self.network.narrow.clear()
        self.network.drop = lose_nothing
        self.network.weather = self.directory.weather = CALM
        self.directory.dark.clear()
        self.directory.hidden.clear()

    def heal(self) -> None:
        """End all faults; the dead stay dead."""
        self.mend()
        for process in self.living:
            process.interruption = None
            process.resume()

    def _id(self, name: str) -> str:
        return self.seats[(NAMES + CROWD).index(name)].peer_id

    # ---- time

    def run(self, seconds: float) -> None:
        with self._told():
            self.agenda.run_until(self.agenda.now + seconds)

    def run_until_agreed(self, within: float, rounds: int = 2) -> float:
        """Runs until all living peers share one head, and again `rounds` later.

        Returns the seconds it took. Raises: AssertionError with the story after `within`.
        """
        began = self.agenda.now
        self._run_until_round(0, began + within)
        self._run_until_round(self.living[0].chain.head.round + rounds, began + within)
        with self._told():
            self.witness.sees_the_end(self.living[0].chain)
        return self.agenda.now - began

    def rounds_in(self, seconds: float, name: str = "A") -> int:
        """Let time pass; return the number of rounds by which a peer went on."""
        before = self[name].chain.head.round
        self.run(seconds)
        return self[name].chain.head.round - before

    def run_until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        deadline = self.agenda.now + within
        while not condition():
            with self._told():
                assert self.agenda.now < deadline, "it never happened"
            self.run(0.05)

    def _run_until_round(self, goal: int, deadline: float) -> None:
        while not self.agreed(goal):
            with self._told():
                assert self.agenda.now < deadline, f"no agreement on round {goal} in time"
            self.run(0.25)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A broken promise comes with the story that led to it, once."""
        try:
            yield
        except BrokenPromise:
            raise
        except AssertionError as error:
            raise BrokenPromise(self.seed, str(error), self.story()) from error

    def agreed(self, goal: int) -> bool:
        """Return True if all living peers have one state, at round `goal` or later."""
        tips = {process.chain.head.digest for process in self.living}
        return len(tips) == 1 and self.living[0].chain.head.round >= goal

    # ---- the story

    def tell(self, process: Process, what: object) -> None:
        self._story.add(self.agenda.now, process.seat.name, what)

    def note(self, text: str) -> None:
        self._story.add(self.agenda.now, "-", text)

    def story(self, lines: int | None = None) -> str:
        tips = [
            f"at the end {p.seat.name}: round {p.chain.head.round}, {p.machine.phase}"
            for p in self.living
        ]
        return "\n".join([self._story.text(lines or STORY_LINES), *tips])


def begun(seed: int, peers: int, rounds: int = 1, **setting: Any) -> Swarm:
    """Return a swarm whose peers have decided some rounds. `setting`: fields of `Setting`."""
    swarm = Swarm(seed, Setting(peers, **setting))
    swarm.run_until_agreed(60.0, rounds)
    return swarm
