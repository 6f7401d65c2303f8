"""The faults of a simulated swarm, as data: when, which, and the seed of its dice.

A strike draws everything else (who, how long, which message) from dice of its own. So a history
can be told again without some of its strikes, and the others stay what they were.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from simulated_peer import Process
from simulated_seat import Seat
from simulated_world import Weather, lose_nothing
from simulation import Swarm

from atom.swarm.chain import messages
from atom.swarm.chain.messages import Message

_WEIGHTY = (
    messages.Prepare,
    messages.Promise,
    messages.Ring,
    messages.Accept,
    messages.AcceptedVote,
    messages.CommitNotice,
    messages.CommitNotice,
    messages.Abort,
)
FREEZES_S = (0.5, 2.5, 6.0, 14.0)


@dataclass(frozen=True)
class Strike:
    at_s: float
    """Since the history began."""
    kind: str
    """A method of `Striker`."""
    seed: int


class Striker:
    """One strike. Without a process to hit, nothing happens."""

    def __init__(self, swarm: Swarm, strike: Strike, most_peers: int) -> None:
        self._swarm = swarm
        self._kind = strike.kind
        self._dice = random.Random(strike.seed)
        self._most_peers = most_peers

    def deal(self) -> None:
        getattr(self, self._kind)()

    # ---- processes

    def crash(self) -> None:
        self._hit(Process.die)

    def crash_soon(self) -> None:
        self._hit_soon(Process.die)

    def freeze(self) -> None:
        self._hit(self._freeze)

    def freeze_soon(self) -> None:
        self._hit_soon(self._freeze)

    def restart(self) -> None:
        if (seat := self._dead()) is not None:
            self._swarm.restart(seat.name)

    def restart_with_an_old_disk(self) -> None:
        if (seat := self._dead()) is not None and seat.backups:
            seat.disk = self._dice.choice(seat.backups)
            self._note(f"{seat.name} finds the disk of round {seat.disk.head.round}")
            self._swarm.restart(seat.name)

    def join(self) -> None:
        if len(self._swarm.living) < self._most_peers and self._swarm.has_seats:
            self._swarm.join()

    def leave(self) -> None:
        staying = [p for p in self._swarm.living if not p.leaving and not p.stopped]
        if len(staying) > 1:
            self._dice.choice(staying).leave()

    def crash_while_saying(self) -> None:
        """The worst moments: between two copies of the same important message."""
        kind, copies = self._dice.choice(_WEIGHTY), self._dice.randrange(3)
        self._note(f"who sends {copies + 1} {kind.__name__} dies")

        def fatal(source: str, target: str, message: Message) -> bool:
            nonlocal copies
            if not isinstance(message, kind):
                return False
            copies -= 1
            process = self._swarm.process_of(source)
            if copies < 0 and process is not None:
                self._swarm.network.drop = lose_nothing
                process.die()
            return copies < 0

        self._swarm.network.drop = fatal

    # ---- the network

    def swallow(self) -> None:
        kind, victim = self._dice.choice(_WEIGHTY), self._dice.choice(self._swarm.seats)
        self._note(f"{kind.__name__} to {victim.name} is lost")
        self._swarm.network.drop = lambda source, target, message: (
            isinstance(message, kind) and target == victim.peer_id
        )

    def partition(self) -> None:
        names = [seat.name for seat in self._swarm.seats]
        self._dice.shuffle(names)
        at = self._dice.randrange(1, len(names)) if len(names) > 1 else 1
        one, other = "".join(names[:at]), "".join(names[at:])
        self._note(f"cut {one} | {other}")
        self._swarm.cut(one, other)
        if self._dice.random() < 0.6:
            self._swarm.hide(one, other)

    def deafen(self) -> None:
        one, other = self._dice.choices([seat.name for seat in self._swarm.seats], k=2)
        if one != other:
            self._note(f"{one} cannot reach {other}")
            self._swarm.cut_one_way(one, other)

    def isolate(self) -> None:
        names = [seat.name for seat in self._swarm.seats]
        one = self._dice.choice(names)
        self._note(f"{one} is alone")
        self._swarm.cut(one, "".join(name for name in names if name != one))

    def narrow(self) -> None:
        one = self._dice.choice([seat.name for seat in self._swarm.seats])
        self._note(f"of and to {one} only messages pass")
        self._swarm.narrow(one)

    def storm(self) -> None:
        weather = Weather(
            loss=self._dice.choice([0.0, 0.05, 0.3]),
            duplicates=self._dice.choice([0.0, 0.2]),
            delay=self._dice.choice([(0.002, 0.05), (0.01, 1.0)]),
            slow=self._dice.choice([0.0, 0.1]),
            lease_loss=self._dice.choice([0.0, 0.3]),
            lease_delay=self._dice.choice([(0.05, 0.6), (0.1, 5.0)]),
        )
        self._note(f"{weather}")
        self._swarm.network.weather = self._swarm.directory.weather = weather

    def mend(self) -> None:
        self._swarm.mend()

    # ---- the directory

    def darken(self) -> None:
        self._hit(lambda process: self._swarm.directory.dark.add(process.peer_id))

    def hide(self) -> None:
        one, other = self._dice.choices([seat.name for seat in self._swarm.seats], k=2)
        self._note(f"{other} no longer sees the leases of {one}")
        self._swarm.hide(one, other)

    # ---- small things

    def _hit(self, act: Callable[[Process], None]) -> None:
        if self._swarm.living:
            act(self._dice.choice(self._swarm.living))

    def _hit_soon(self, act: Callable[[Process], None]) -> None:
        def interrupt(process: Process) -> None:
            soon = process.acts + self._dice.randrange(60)
            process.interruption = soon, lambda: act(process)

        self._hit(interrupt)

    def _dead(self) -> Seat | None:
        dead = [seat for seat in self._swarm.seats if seat.process is None and not seat.retired]
        return self._dice.choice(dead) if dead else None

    def _freeze(self, process: Process) -> None:
        if not process.stopped:
            process.suspend()
            keep = self._dice.random() < 0.7
            self._swarm.agenda.after(self._dice.choice(FREEZES_S), lambda: process.resume(keep))

    def _note(self, text: str) -> None:
        self._swarm.note(text)


USUAL = (
    "crash", "crash", "crash_soon", "crash_soon", "restart", "restart", "restart",
    "restart_with_an_old_disk", "freeze", "freeze_soon", "partition", "deafen", "isolate", "narrow",
    "mend", "mend", "mend", "darken", "hide", "storm", "join", "leave", "swallow", "swallow",
    "crash_while_saying", "crash_while_saying",
)  # fmt: skip
"""Kinds of strikes that chance draws from; frequent ones are listed twice."""
