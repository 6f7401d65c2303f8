"""What would help most: the same plan, with one thing at a time made better. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from atom.base.errors import DeviceError
from atom.graph.chain import Chain, Machine
from atom.plan.choice import Choice
from atom.plan.choosing import choose
from atom.plan.memory import Limits
from atom.plan.prediction import Surroundings, Work, predict

WORTH_SAYING = 0.02
"""Gains below this share are noise."""


@dataclass(frozen=True)
class Advice:
    change: str
    gain: float
    """Of the swarm's tokens per second over whole rounds: 0.25 is a quarter more."""


@dataclass(frozen=True)
class Situation:
    """Everything a prediction depends on."""

    chain: Chain
    machine: Machine
    limits: Limits
    work: Work
    surroundings: Surroundings
    layer_ends: tuple[int, ...] = ()


def advise(now: Situation, choice: Choice) -> tuple[Advice, ...]:
    """The changes that would gain something, best first. `choice` is the one for `now`."""
    before = _speed(now, choice)
    found = []
    for change, better in _changes(now):
        try:
            after = _speed(better, _rechoose(now, better, choice))
        except DeviceError:
            continue
        if after / before - 1 >= WORTH_SAYING:
            found.append(Advice(change, after / before - 1))
    return tuple(sorted(found, key=lambda advice: -advice.gain))


def _changes(now: Situation) -> Iterator[tuple[str, Situation]]:
    surroundings, machine, limits, work = now.surroundings, now.machine, now.limits, now.work
    if work.peers > 1:
        network = replace(surroundings, network_bytes_per_s=2 * surroundings.network_bytes_per_s)
        yield "twice the network bandwidth", replace(now, surroundings=network)
    host = replace(surroundings, optimizer_elements_per_s=2 * surroundings.optimizer_elements_per_s)
    yield "host memory twice as fast (the optimizer step)", replace(now, surroundings=host)
    link = Machine(2 * machine.load_bytes_per_s, 2 * machine.gradient_bytes_per_s)
    yield "twice the link between host and device", replace(now, machine=link)
    memory = replace(limits, device_bytes=2 * limits.device_bytes)
    yield "twice the device memory", replace(now, limits=memory)
    yield "a device that computes twice as fast", replace(now, chain=_twice_as_fast(now.chain))
    batch = replace(work, round_sequences=2 * work.round_sequences)
    yield "a global batch twice as large (the run's owner decides)", replace(now, work=batch)


def _twice_as_fast(chain: Chain) -> Chain:
    operations = tuple(
        replace(o, forward_s=o.forward_s / 2, backward_s=o.backward_s / 2) for o in chain.operations
    )
    remembering = chain.remembering and _twice_as_fast(chain.remembering)
    return replace(chain, operations=operations, remembering=remembering)


def _rechoose(now: Situation, then: Situation, choice: Choice) -> Choice:
    """A change outside the device leaves the choice as it is."""
    if (then.chain, then.machine, then.limits) == (now.chain, now.machine, now.limits):
        return choice
    return choose(then.chain, then.machine, then.limits, then.layer_ends)


def _speed(situation: Situation, choice: Choice) -> float:
    return predict(choice, situation.work, situation.surroundings).swarm_tokens_per_s
