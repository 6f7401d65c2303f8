"""A whole swarm in one process: one seed, one history. Machines are real, the world is not.

`Swarm` wires seats, network, directory and rings together; `Witness` sees every commit and every
state and holds them against what the protocol promises; `Chaos` deals faults. When a promise is
broken, the error tells the story that led to it.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulated_peer import Chain, Process, Seat
from simulated_ring import Rings
from simulated_story import Story
from simulated_world import CALM, Agenda, Directory, Network, Weather, lose_nothing

from atom.swarm.chain import Commit, Head, Voter, genesis
from atom.swarm.identity import Identity
from atom.swarm.membership import certificate_problem
from atom.swarm.messages import (
    Abort,
    Accept,
    AcceptedVote,
    CommitNotice,
    Message,
    Prepare,
    Promise,
    Ring,
)
from atom.training.round import Patience, Terms

_WEIGHTY = (Prepare, Promise, Ring, Accept, AcceptedVote, CommitNotice, CommitNotice, Abort)
PATIENT = Patience()
HASTY = Patience(
    prevote=0.3, promise=0.5, votes=0.2, quiet=0.2, rank=0.05, holding=1.5, retry=0.1, grace=4.0
)
"""Everybody wants to lead, nobody waits: more rivalry in a minute than in a year of patience."""
NAMES = "ABCDEFGHIJKLMNOP"
STORY_LINES = 400
HEALED_SECONDS = 60.0
"""Within this time after the last fault all living peers share a head, and rounds go on."""


@lru_cache(maxsize=64)
def identity(number: int) -> Identity:
    """The same key for the same number, always."""
    seed = blake3(f"identity {number}".encode()).digest()
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))


class Witness:
    """Remembers what happened anywhere; no replica sees as much."""

    def __init__(self, start: Chain) -> None:
        self.heads: dict[bytes, Head] = {start.head.digest: start.head}
        self.states: dict[bytes, bytes] = {start.head.digest: start.state}
        self.ordinary: dict[bytes, bytes] = {}
        """Parent → digest of the one value that an ordinary quorum committed."""
        self.branches = 0

    def sees_commit(self, commit: Commit) -> None:
        parent = self.heads[commit.value.parent]
        assert certificate_problem(parent, commit) is None, "a commit without a certificate"
        head = parent.after(commit.value)
        self.branches += bool(commit.survivors) and head.digest not in self.heads
        self.heads[head.digest] = head
        if not commit.survivors:
            digest = commit.value.digest()
            first = self.ordinary.setdefault(parent.digest, digest)
            assert first == digest, "two ordinary commits on one parent"

    def sees_state(self, head: Head, state: bytes) -> None:
        first = self.states.setdefault(head.digest, state)
        assert first == state, "equal heads, different states"


@dataclass
class Setting:
    """What a history starts from."""

    peers: int = 3
    all_voters: bool = True
    """Else only the first is a voter at genesis, as in a real run."""
    global_batch: int = 12
    pass_seconds: Sequence[float] = (1.0,)
    branches: bool = True
    last_round: int | None = None
    through_bytes: bool = False
    patience: Patience = PATIENT


class Swarm:
    """See the module. Drive it with `run`, break it by hand or with `Chaos`."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        self.seed, self.setting = seed, setting or Setting()
        self.dice = random.Random(seed)
        self.agenda = Agenda()
        self.network = Network(self.agenda, self.dice, self.setting.through_bytes)
        self.directory = Directory(self.agenda, self.dice)
        self.rings = Rings(self.agenda, self.network, self.dice)
        self.terms = Terms(
            self.setting.global_batch,
            self.setting.last_round,
            self.setting.branches,
            self.setting.patience,
        )
        self._names: dict[str, str] = {}
        self._story = Story(self._names)
        self._numbers = itertools.count(1)
        self.seats: list[Seat] = []
        keys = self.dice.sample(range(24), self.setting.peers)
        incarnations = [self._incarnation() for _ in keys]
        voters = [Voter(identity(k).peer_id, i) for k, i in zip(keys, incarnations, strict=True)]
        first = genesis(b"m" * 32, b"s" * 32, voters[0])
        if self.setting.all_voters:
            first = replace(first, voters=tuple(sorted(voters)))
        self.start = Chain((first,), (b"s" * 32,))
        self.witness = Witness(self.start)
        for key, incarnation in zip(keys, incarnations, strict=True):
            self._begin(self._seat(key), incarnation)

    # ---- the cast

    def _seat(self, key: int) -> Seat:
        number = len(self.seats)
        paces = self.setting.pass_seconds
        seat = Seat(
            NAMES[number], identity(key), self.start, pass_seconds=paces[number % len(paces)]
        )
        self.seats.append(seat)
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
        return self._begin(self._seat(24 + len(self.seats)), self._incarnation())

    def restart(self, name: str) -> Process:
        """A dead peer comes back from its disk, as a new incarnation."""
        seat = self.seats[NAMES.index(name)]
        assert seat.process is None
        return self._begin(seat, self._incarnation())

    def __getitem__(self, name: str) -> Process:
        process = self.seats[NAMES.index(name)].process
        assert process is not None, f"{name} is dead"
        return process

    @property
    def living(self) -> list[Process]:
        return [seat.process for seat in self.seats if seat.process is not None]

    # ---- the world

    def deliver(self, sender: Voter, target: str, message: Message) -> bool:
        seat = next(seat for seat in self.seats if seat.peer_id == target)
        return seat.process is not None and seat.process.receive(sender, message)

    def process_of(self, peer_id: str) -> Process | None:
        return next((p for p in self.living if p.peer_id == peer_id), None)

    def reachable(self, here: str, there: str) -> Process | None:
        """The process of `there`, if `here` could fetch something from it now."""
        linked = self.network.passes(here, there) and self.network.passes(there, here)
        for process in self.living:
            if process.peer_id == there and linked and not process.stopped:
                return process
        return None

    def cut(self, *groups: str) -> None:
        """Partitions the network into groups of names; unnamed peers reach everybody."""
        for one, other in itertools.permutations(groups, 2):
            self.cut_one_way(one, other)

    def cut_one_way(self, sources: str, targets: str) -> None:
        for a, b in itertools.product(sources, targets):
            self.network.blocked.add((self._id(a), self._id(b)))

    def hide(self, *groups: str) -> None:
        """Partitions the directory the same way."""
        for one, other in itertools.permutations(groups, 2):
            for a, b in itertools.product(one, other):
                self.directory.hidden.add((self._id(a), self._id(b)))

    def heal(self) -> None:
        """No fault any more; the dead stay dead."""
        self.network.blocked.clear()
        self.network.drop = lose_nothing
        self.network.weather = self.directory.weather = CALM
        self.directory.dark.clear()
        self.directory.hidden.clear()
        for process in self.living:
            process.crash_after = None
            process.resume()

    def _id(self, name: str) -> str:
        return self.seats[NAMES.index(name)].peer_id

    # ---- time

    def run(self, seconds: float) -> None:
        try:
            self.agenda.run_until(self.agenda.now + seconds)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n{self.story()}") from error

    def run_until_agreed(self, within: float, rounds: int = 2) -> float:
        """Runs until all living peers share one head, and again `rounds` later.

        Returns the seconds it took. Raises: AssertionError with the story after `within`.
        """
        began = self.agenda.now
        self._run_until_round(0, began + within)
        self._run_until_round(self.living[0].chain.head.round + rounds, began + within)
        return self.agenda.now - began

    def _run_until_round(self, goal: int, deadline: float) -> None:
        while not self.agreed(goal):
            if self.agenda.now >= deadline:
                raise AssertionError(
                    f"seed {self.seed}: no agreement on round {goal} in time\n{self.story()}"
                )
            self.run(0.25)

    def agreed(self, goal: int) -> bool:
        """Whether all living peers have the same state, at round `goal` or later."""
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


@dataclass
class Chaos:
    """Deals faults from a seed until `seconds` have passed, then heals what can be healed."""

    swarm: Swarm
    seconds: float = 30.0
    most_peers: int = 6
    pause_seconds: float = 3.0
    """Mean time between two faults."""
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.swarm.seed + 1_000_003)

    def run(self) -> None:
        swarm, end = self.swarm, self.swarm.agenda.now + self.seconds
        while swarm.agenda.now < end:
            swarm.run(min(self.dice.expovariate(1 / self.pause_seconds), end - swarm.agenda.now))
            self._strike()
        self._note("the faults end")
        swarm.heal()
        dead = [seat.name for seat in swarm.seats if seat.process is None]
        for name in dead:
            if not swarm.living or self.dice.random() < 0.5:
                swarm.restart(name)
        self._bring_back_one_who_belongs()

    def _bring_back_one_who_belongs(self) -> None:
        """Strangers to a head found no branch from it: without any of its voters and members the
        run rests until one of them returns."""
        swarm = self.swarm
        chains = [process.chain for process in swarm.living]
        head = max(
            (chain.head for chain in chains), key=lambda h: (h.work, -int(h.digest.hex(), 16))
        )
        belong = {voter.peer_id for voter in head.voters} | set(head.members)
        if any(p.peer_id in belong and not p.leaving for p in swarm.living):
            return
        for seat in swarm.seats:
            if seat.peer_id in belong and seat.process is None:
                swarm.restart(seat.name)
                return
        for process in swarm.living:
            process.stay()

    def _strike(self) -> None:
        faults = [
            self._crash, self._crash, self._crash_soon, self._crash_soon, self._restart,
            self._restart, self._suspend, self._partition, self._deafen, self._isolate,
            self._mend, self._mend, self._darken, self._hide, self._storm, self._join,
            self._leave, self._swallow, self._swallow, self._crash_after_sending,
            self._crash_after_sending,
        ]  # fmt: skip
        self.dice.choice(faults)()

    def _someone(self) -> Process | None:
        return self.dice.choice(self.swarm.living) if self.swarm.living else None

    def _crash(self) -> None:
        if (process := self._someone()) is not None:
            process.die()

    def _crash_soon(self) -> None:
        if (process := self._someone()) is not None:
            process.crash_after = self.dice.randrange(60)

    def _crash_after_sending(self) -> None:
        """The worst moments: between two copies of the same important message."""
        kind, copies = self.dice.choice(_WEIGHTY), self.dice.randrange(3)
        self._note(f"who sends {copies + 1} {kind.__name__} dies")

        def fatal(source: str, target: str, message: Message) -> bool:
            nonlocal copies
            if not isinstance(message, kind):
                return False
            copies -= 1
            process = self.swarm.process_of(source)
            if copies < 0 and process is not None:
                self.swarm.network.drop = lose_nothing
                process.die()
            return copies < 0

        self.swarm.network.drop = fatal

    def _swallow(self) -> None:
        kind, victim = self.dice.choice(_WEIGHTY), self.dice.choice(self.swarm.seats)
        self._note(f"{kind.__name__} to {victim.name} is lost")
        self.swarm.network.drop = lambda source, target, message: (
            isinstance(message, kind) and target == victim.peer_id
        )

    def _restart(self) -> None:
        dead = [seat.name for seat in self.swarm.seats if seat.process is None]
        if dead:
            self.swarm.restart(self.dice.choice(dead))

    def _suspend(self) -> None:
        if (process := self._someone()) is not None and not process.stopped:
            process.suspend()
            keep = self.dice.random() < 0.7
            duration = self.dice.choice([0.5, 2.5, 6.0, 14.0])
            self.swarm.agenda.after(duration, lambda: process.resume(keep))

    def _partition(self) -> None:
        names = [seat.name for seat in self.swarm.seats]
        self.dice.shuffle(names)
        at = self.dice.randrange(1, len(names)) if len(names) > 1 else 1
        one, other = "".join(names[:at]), "".join(names[at:])
        self._note(f"cut {one} | {other}")
        self.swarm.cut(one, other)
        if self.dice.random() < 0.6:
            self.swarm.hide(one, other)

    def _deafen(self) -> None:
        one, other = self.dice.choices([seat.name for seat in self.swarm.seats], k=2)
        if one != other:
            self._note(f"{one} cannot reach {other}")
            self.swarm.cut_one_way(one, other)

    def _isolate(self) -> None:
        names = [seat.name for seat in self.swarm.seats]
        one = self.dice.choice(names)
        self._note(f"{one} is alone")
        self.swarm.cut(one, "".join(set(names) - {one}))

    def _mend(self) -> None:
        self._note("all lines mended")
        self.swarm.network.blocked.clear()
        self.swarm.network.drop = lose_nothing
        self.swarm.directory.hidden.clear()
        self.swarm.directory.dark.clear()
        self.swarm.network.weather = self.swarm.directory.weather = CALM

    def _darken(self) -> None:
        if (process := self._someone()) is not None:
            self._note(f"{process.seat.name} loses the directory")
            self.swarm.directory.dark.add(process.peer_id)

    def _hide(self) -> None:
        one, other = self.dice.choices([seat.name for seat in self.swarm.seats], k=2)
        self._note(f"{other} no longer sees the leases of {one}")
        self.swarm.hide(one, other)

    def _storm(self) -> None:
        weather = Weather(
            loss=self.dice.choice([0.0, 0.05, 0.3]),
            duplicates=self.dice.choice([0.0, 0.2]),
            delay=self.dice.choice([(0.002, 0.05), (0.01, 1.0)]),
            slow=self.dice.choice([0.0, 0.1]),
            lease_loss=self.dice.choice([0.0, 0.3]),
            lease_delay=self.dice.choice([(0.05, 0.6), (0.1, 5.0)]),
        )
        self._note(f"{weather}")
        self.swarm.network.weather = self.swarm.directory.weather = weather

    def _join(self) -> None:
        if len(self.swarm.seats) < self.most_peers:
            self.swarm.join()

    def _leave(self) -> None:
        staying = [p for p in self.swarm.living if not p.leaving and not p.stopped]
        if len(staying) > 1:
            self.dice.choice(staying).leave()

    def _note(self, text: str) -> None:
        self.swarm.note(text)


def history(seed: int) -> Swarm:
    """One whole history: a swarm, its faults, and the agreement that has to follow them."""
    dice = random.Random(seed)
    setting = Setting(
        peers=dice.choice([1, 2, 2, 3, 3, 4, 5]),
        all_voters=dice.random() < 0.7,
        global_batch=dice.choice([8, 12, 16, 24]),
        pass_seconds=dice.choice([(1.0,), (0.4,), (0.5, 1.5), (0.3, 1.0, 3.0)]),
        patience=dice.choice([PATIENT, HASTY]),
    )
    swarm = Swarm(seed, setting)
    swarm.run(dice.choice([0.0, 5.0, 9.0]))
    Chaos(swarm, dice.choice([15.0, 30.0]), pause_seconds=dice.choice([0.7, 1.5, 3.0])).run()
    swarm.run_until_agreed(HEALED_SECONDS)
    return swarm
