"""Nothing of the device's code touches memory out of order, and no wait of it could be left out.

With every way in which sub-models stay, steps and pauses under passes, passes that are cancelled or
void, offloaded values, and parameters that are trained on the device.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial

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
    Case("scaling", Arrangement(), devices=2),
    Case("scaling", Arrangement(2, SOME, SOME, EVERY, 0), NARROW, devices=2),
    Case("skipping", Arrangement(2, SOME, SOME, devices=2), NARROW, devices=2),
    Case("viewing", Arrangement(devices=2), devices=4),
]
HARMLESS = {
    "streams.py, StreamTimes.begin: stream.synchronize":
        "only times become wrong: test_streams.py counts it",
    "streams.py, CudaDevice.give_back: torch.cuda.synchronize":
        "called when nothing is under way; for those who do not drain",
    "streams.py, CudaDevice.computing: self._compute.wait_stream":
        "slot_memory has waited for constants; needed for later ones",
    "streams.py, CudaDevice.settle: self._loads.drain":
        "a schedule loads nothing that it does not compute on",
    "streams.py, CudaDevice.settle: self._compute.synchronize":
        "the losses have been read",
    "device.py, Lane.submit: self.wait":
        "the engine has waited; it keeps the failure of a job without a caller",
}  # fmt: skip
"""Why a run without it is sound."""
LEAST_FOUND, FEWEST_MUTANTS = 0.9, 50
ATTEMPTS = 5
"""Lanes are real threads: where one is late, a run may not show what another does."""
HARMFUL = [number for number, mutant in enumerate(mutants.EVERY) if str(mutant) not in HARMLESS]


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
    """Return a function that runs mutants, as `mutants.found_without`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        mutants.FORKS.set_forkserver_preload([mutants.__name__])
        yield partial(mutants.found_without, told=[case.told for case in TELLING])


@pytest.mark.parametrize("number", HARMFUL, ids=lambda number: str(mutants.EVERY[number]))
def test_what_orders_accesses_is_missed_where_it_is_left_out(
    number: int, found_without: Callable[[list[int]], str]
) -> None:
    assert any(found_without([number]) for _ in range(ATTEMPTS))


def test_what_is_harmless_is_so_even_together(found_without: Callable[[list[int]], str]) -> None:
    found = found_without([n for n in range(len(mutants.EVERY)) if n not in HARMFUL])
    assert not found, found


def test_little_is_superfluous() -> None:
    assert len(mutants.EVERY) >= FEWEST_MUTANTS
    assert len(HARMLESS) <= (1 - LEAST_FOUND) * len(mutants.EVERY)
    assert HARMLESS.keys() <= set(map(str, mutants.EVERY))


def test_a_race_names_both_accesses_with_their_streams_and_where_they_were_issued(
    found_without: Callable[[list[int]], str],
) -> None:
    (number,) = (n for n in HARMFUL if str(mutants.EVERY[n]).endswith("load: free.record"))
    said = found_without([number])
    assert "stream compute reads" in said
    assert "stream in writes" in said
    assert "issued by thread atom-load_0" in said
    assert "swap/streams.py" in said
