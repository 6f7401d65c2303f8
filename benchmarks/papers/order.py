"""Row `order`: devices of a group that wait for messages, or for each other.

AxoNN, fig. 5 to 8. A visit is a sub-model's forward or backward on a micro-batch. Driven by
messages, a device begins its next visit when its inputs are there; in step, when all others have
ended their visits as well. Both are computed, with even and with varied durations; the first is
also measured, on devices that sleep (`devices/sleeping.py`), where loads take no time.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch

from atom.graph.ir import Program
from atom.models.gpt3 import GPT3Config
from atom.swap.schedule import Arrangement, Backward, Forward, Shape, device_of, training_pass
from benchmarks.devices import sleeping as devices
from benchmarks.devices.torch_sides import Work
from benchmarks.papers.result import Result, result

GROUPS, MICRO_BATCHES, VARY = (1, 2, 4), 16, 0.3
MODEL = GPT3Config(8, 4, 256, sequence_tokens=8, vocabulary_size=512)
BLOCK_S, PASSES = 0.02, 2
PAPER = "49.4 to 54.8 % of peak, DeepSpeed 39 to 42 % (AxoNN)"

Visit = Forward | Backward
Seconds = Callable[[Visit], float]


def order(_: argparse.Namespace) -> Iterator[Result]:
    """Yield the idle share of each group."""
    work = Work(MODEL, False, BLOCK_S, MICRO_BATCHES, 1)
    for group in GROUPS:
        program, measured = _measured(work, group)
        visits, even = visits_of(program, group, MICRO_BATCHES), _seconds(program, work.element_s)
        told = dict[str, float]()
        for how, seconds in (("even", even), (f"varied by {VARY:.0%}", _varied(even))):
            told[f"{how}, messages"] = idle(visits, seconds, by_messages(visits, seconds))
            told[f"{how}, in step"] = idle(visits, seconds, in_step(visits, seconds))
        words = ", ".join(f"{how} {share:.1%}" for how, share in told.items())
        case = f"{group} devices of a group, {MICRO_BATCHES} micro-batches: idle share"
        words = f"{words}; measured, messages {measured:.1%}"
        yield result(case, words, PAPER, idle=told, idle_measured=measured)


def visits_of(program: Program, group: int, micro_batches: int) -> list[list[Visit]]:
    """Return the visits of each device of a group in a pass, in order."""
    parts = program.sub_models
    owners = device_of([program.layout.elements(part) for part in parts], group)
    own = [tuple(s for s, owner in enumerate(owners) if owner == n) for n in range(group)]
    rest = len(parts), micro_batches, Arrangement(devices=group), ()
    passes = [training_pass(Shape(*rest, each)) for each in own]
    return [[event for event in each if isinstance(event, Visit)] for each in passes]


def awaited(visit: Visit, last: int) -> Visit | None:
    """Return the visit that must end before, in a chain of sub-models that ends with `last`."""
    s, c = visit.sub_model, visit.micro_batch
    if isinstance(visit, Forward):
        return Forward(s - 1, c) if s else None
    return Forward(s, c) if s == last else Backward(s + 1, c)


def by_messages(visits: Sequence[Sequence[Visit]], seconds: Seconds) -> float:
    """Return the end of the last visit if devices wait for messages only."""
    last, ended = _last(visits), dict[Visit | None, float]({None: 0.0})
    ready, places = [0.0] * len(visits), [0] * len(visits)
    while True:
        able = [n for n, visit in _next(visits, places) if awaited(visit, last) in ended]
        if not able:
            assert places == [*map(len, visits)], "no two devices wait for each other"
            return max(ready)
        for n in able:
            visit = visits[n][places[n]]
            ready[n] = max(ready[n], ended[awaited(visit, last)]) + seconds(visit)
            ended[visit] = ready[n]
            places[n] += 1


def in_step(visits: Sequence[Sequence[Visit]], seconds: Seconds) -> float:
    """Return the end of the last visit if all visits begin together and wait for the slowest."""
    last, ended, now = _last(visits), set[Visit | None]({None}), 0.0
    places = [0] * len(visits)
    while able := [(n, v) for n, v in _next(visits, places) if awaited(v, last) in ended]:
        now += max(seconds(visit) for _, visit in able)
        for n, visit in able:
            ended.add(visit)
            places[n] += 1
    return now


def idle(visits: Sequence[Sequence[Visit]], seconds: Seconds, until_s: float) -> float:
    """Return the share of all devices' time without a visit."""
    return 1 - sum(seconds(visit) for each in visits for visit in each) / (len(visits) * until_s)


def _next(visits: Sequence[Sequence[Visit]], places: Sequence[int]) -> list[tuple[int, Visit]]:
    both = enumerate(zip(visits, places, strict=True))
    return [(n, each[place]) for n, (each, place) in both if place < len(each)]


def _last(visits: Sequence[Sequence[Visit]]) -> int:
    return max(visit.sub_model for each in visits for visit in each)


def _seconds(program: Program, element_s: float) -> Seconds:
    """Return durations as of `SleepingDevice`: all but the last sub-model recompute the forward."""
    parts = program.sub_models
    elements = [program.layout.elements(part).values() for part in parts]

    def seconds(visit: Visit) -> float:
        again = isinstance(visit, Backward) and visit.sub_model < len(parts) - 1
        times = 1 if isinstance(visit, Forward) else 2 + again
        return times * element_s * sum(elements[visit.sub_model])

    return seconds


def _varied(even: Seconds) -> Seconds:
    """Return durations that vary by visit, the same at each call."""

    @cache
    def share(visit: Visit) -> float:
        return random.Random(repr(visit)).uniform(1 - VARY, 1 + VARY)

    return lambda visit: even(visit) * share(visit)


def _measured(work: Work, group: int) -> tuple[Program, float]:
    """Return the program, and the idle share of passes on devices that sleep."""
    torch.set_num_threads(1)
    batches = devices.batches_of(work)
    sleeping = [devices.SleepingDevice(work.element_s, float("inf")) for _ in range(group)]
    with devices.closed(sleeping):
        program, replica = devices.made(work, sleeping, group, MICRO_BATCHES)
        replica.run_pass(batches)
        before, began = sum(each.computed_s for each in sleeping), time.perf_counter()
        for _ in range(PASSES):
            replica.run_pass(batches)
        passed_s = time.perf_counter() - began
        computed_s = sum(each.computed_s for each in sleeping) - before
    return program, 1 - computed_s / (group * passed_s)
