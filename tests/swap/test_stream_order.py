"""Nothing of the device's code touches memory out of order, and no wait of it could be left out.

With every way in which sub-models stay, steps and pauses under passes, passes that are cancelled or
void, offloaded values, and parameters that are trained on the device.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import mutants
import pytest
import torch
from ordered_story import EVERY, NARROW, TELLING, Case, offloading
from random_order import RandomOrder
from stream_order import Order
from test_arrangements import STAYING, arrangement

from atom.swap.arrangement import Arrangement

SOME = frozenset({1, 3})
CASES = [
    *TELLING,
    *(
        Case("scaling", arrangement(2 + n % 2, *staying), (torch.float32, NARROW)[n // 2 % 2])
        for n, staying in enumerate(STAYING)
    ),
    *(
        Case("scaling", Arrangement(2, EVERY, kept, trained=trained))
        for kept, trained in [(EVERY, EVERY), (SOME, SOME), (frozenset(), SOME)]
    ),
    offloading("skipping"),
    offloading("viewing", 2, 4),
]
HARMLESS = {
    "streams.py, StreamTimes.begin: stream.synchronize":
        "only times become wrong: test_streams.py counts it",
    "streams.py, CudaDevice.give_back: torch.cuda.synchronize":
        "called when nothing is under way; for those who do not drain",
    "streams.py, CudaDevice.computing: self._compute.wait_stream":
        "slot_memory has waited for constants; for who makes some later",
    "streams.py, CudaDevice.settle: self._loads.drain":
        "a schedule loads nothing that it does not compute on",
    "streams.py, CudaDevice.settle: self._compute.synchronize":
        "the losses have been read",
    "device.py, Lane.submit: self.wait":
        "the engine has waited; it keeps the failure of a job that nobody asked for",
}  # fmt: skip
"""Why a run without it is sound."""
LEAST_FOUND, FEWEST_MUTANTS = 0.9, 50
ATTEMPTS = 5
"""Lanes are real threads: where one is late, a run may not show what another does."""
MUTANTS = list(mutants.mutants())
HARMFUL = [number for number, mutant in enumerate(MUTANTS) if str(mutant) not in HARMLESS]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_overtakes_what_it_depends_on(case: Case) -> None:
    races = list[object]()
    told = case.on_gpu(Order(races.append))
    assert not races, "\n\n".join(map(str, races))
    assert told == case.told


@pytest.mark.parametrize("case", TELLING, ids=str)
def test_nothing_overtakes_it_on_a_cpu_either(case: Case) -> None:
    races = list[object]()
    told = case.on_cpu(Order(races.append))
    assert not races, "\n\n".join(map(str, races))
    assert told == case.told


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_are_the_same_in_any_order_that_is_legal(case: Case) -> None:
    assert case.on_gpu(RandomOrder(CASES.index(case))) == case.told


@pytest.fixture(scope="module")
def found_without() -> Iterator[Callable[[list[int]], str]]:
    """What goes wrong without the mutants of these numbers, in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    with subprocess.Popen(
        [sys.executable, mutants.__file__], env=environment, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(numbers: list[int]) -> str:
            print(json.dumps(numbers), file=process.stdin)
            return str(json.loads(process.stdout.readline()))

        yield ask


@pytest.mark.parametrize("number", HARMFUL, ids=lambda number: str(MUTANTS[number]))
def test_what_orders_accesses_is_missed_where_it_is_left_out(
    number: int, found_without: Callable[[list[int]], str]
) -> None:
    assert any(found_without([number]) for _ in range(ATTEMPTS))


def test_what_is_harmless_is_so_even_together(found_without: Callable[[list[int]], str]) -> None:
    found = found_without([number for number in range(len(MUTANTS)) if number not in HARMFUL])
    assert not found, found


def test_little_is_superfluous() -> None:
    assert len(MUTANTS) >= FEWEST_MUTANTS
    assert len(HARMLESS) <= (1 - LEAST_FOUND) * len(MUTANTS)
    assert HARMLESS.keys() <= set(map(str, MUTANTS))


def test_a_race_names_both_accesses_with_their_streams_and_where_they_were_issued(
    found_without: Callable[[list[int]], str],
) -> None:
    (number,) = (n for n in HARMFUL if str(MUTANTS[n]).endswith("load: free.record"))
    said = found_without([number])
    assert "stream compute reads" in said
    assert "stream in writes" in said
    assert "issued by thread atom-load_0" in said
    assert "swap/streams.py" in said
