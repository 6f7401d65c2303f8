"""Whole histories of a swarm: drawn from a seed, played, and held against the promises.

swarm = history(17)  # draws and plays; a broken promise tells its story
drawn(17)  # what would be played, as data
"""

import random
from dataclasses import dataclass, replace

from simulation import HASTY, PATIENT, Setting, Swarm
from strikes import USUAL, Strike, Striker

HEALED_SECONDS = 80.0
"""Within this time after the last fault all living peers share a head, and rounds go on.

A peer that sees only half of its visible voters at a branch follows it when its own head is overdue
(`election.HOLD_OUT` times grace and promises: 65 s).
"""
ONE_IN, OVERLAPPED = 3, 1
"""The second of three seeds in a row has a rule that overlaps: passes go on under an exchange."""
ONE_IN_FOUR, EARNED = 4, 3
"""Joiners have to earn their tenure in the last of four seeds in a row."""


@dataclass(frozen=True)
class History:
    """A swarm and what happens to it. Played twice, it is the same twice."""

    seed: int
    setting: Setting
    strikes: tuple[Strike, ...]
    faults_end_s: float
    most_peers: int = 6

    def play(self) -> Swarm:
        """Raises: BrokenPromise, with the story."""
        swarm = Swarm(self.seed, self.setting)
        for strike in self.strikes:
            swarm.run(strike.at_s - swarm.agenda.now)
            Striker(swarm, strike, self.most_peers).deal()
        swarm.run(self.faults_end_s - swarm.agenda.now)
        self._heal(swarm)
        swarm.run_until_agreed(HEALED_SECONDS)
        return swarm

    def _heal(self, swarm: Swarm) -> None:
        dice = random.Random(self.seed)
        swarm.heal()
        for seat in swarm.seats:
            gone = seat.process is None and not seat.retired
            if gone and (not swarm.living or dice.random() < 0.5):
                swarm.restart(seat.name)
        _bring_back_one_who_belongs(swarm)


def _bring_back_one_who_belongs(swarm: Swarm) -> None:
    """Strangers to a head found no branch from it: without any of its voters and members the
    run rests until one of them returns. It may bring a better head along."""
    while True:
        head = max((process.chain.head for process in swarm.living), key=lambda h: h.rank)
        there = [p for p in swarm.living if p.chain.head == head and not p.leaving]
        if any(p.peer_id in head.known for p in there):
            return
        gone = [s for s in swarm.seats if s.peer_id in head.known and s.process is None]
        if not gone:
            break
        swarm.restart(gone[0].name)
    for process in swarm.living:
        process.stay()


def history(seed: int) -> Swarm:
    """One whole history: a swarm, its faults, and the agreement that has to follow them."""
    return drawn(seed).play()


def drawn(seed: int) -> History:
    """One in sixteen is of coming and going; the others are dealt whatever chance deals."""
    dice = random.Random(seed)
    history = _of_churn(seed, dice) if seed % 16 == 15 else _of_chance(seed, dice)
    overlaps, all_trusted = seed % ONE_IN == OVERLAPPED, seed % ONE_IN_FOUR != EARNED
    setting = replace(history.setting, overlaps=overlaps, all_trusted=all_trusted)
    return replace(history, setting=setting)


def _of_chance(seed: int, dice: random.Random) -> History:
    setting = Setting(
        peers=dice.choice([1, 2, 2, 3, 3, 3, 4, 5]),
        all_voters=dice.random() < 0.7,
        global_batch=dice.choice([8, 12, 16, 24]),
        pass_seconds=dice.choice([(0.1,), (0.2,), (0.1, 0.3), (0.3, 1.0), (0.3, 1.0, 3.0)]),
        ring_seconds=dice.choice([(0.05, 0.2), (0.1, 0.5), (0.1, 1.2)]),
        patience=dice.choice([PATIENT, HASTY]),
    )
    pause_s = dice.choice([0.7, 1.5, 3.0, 6.0, 6.0, 12.0])
    at_s, end_s = dice.choice([0.0, 5.0, 9.0]), dice.choice([30.0, 60.0, 120.0])
    strikes = []
    while (at_s := at_s + dice.expovariate(1 / pause_s)) < end_s:
        strikes.append(Strike(at_s, dice.choice(USUAL), dice.getrandbits(32)))
    return History(seed, setting, tuple(strikes), end_s)


def _of_churn(seed: int, dice: random.Random) -> History:
    """Ten peers. In about every round one of them goes, and another comes."""
    setting = Setting(
        peers=10,
        all_voters=dice.random() < 0.5,
        global_batch=40,
        pass_seconds=dice.choice([(0.2,), (0.2, 0.5)]),
        ring_seconds=(0.1, 0.5),
        patience=dice.choice([PATIENT, HASTY]),
    )
    round_s, end_s = dice.choice([2.0, 4.0]), 60.0
    strikes = []
    for index in range(int(end_s / round_s)):
        for kind in (dice.choice(["leave", "crash"]), dice.choice(["join", "join", "restart"])):
            at_s = (index + dice.random()) * round_s
            strikes.append(Strike(at_s, kind, dice.getrandbits(32)))
    strikes.sort(key=lambda strike: strike.at_s)
    return History(seed, setting, tuple(strikes), end_s, most_peers=12)
