"""Nothing of the device's code touches memory out of order, and no wait of it could be left out.

With every way in which sub-models stay, steps and pauses under passes, passes that are cancelled or
void, offloaded values, and parameters that are trained on the device.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from mutants import Mutant, mutants
from ordered_story import Case, Told
from played_gpu import Machine
from random_order import RandomOrder
from stream_order import Order
from test_arrangements import EVERY, STAYING, arrangement

from atom.swap.arrangement import Arrangement

NARROW, SOME = torch.bfloat16, frozenset({1, 3})


def offloading(model: str, *kept: int) -> Case:
    stay, every = frozenset(kept), range(len(Case(model, Arrangement()).program.sub_models))
    return Case(model, Arrangement(2, stay, stay, frozenset(every), least_offloaded_bytes=0))


TELLING = [
    Case("scaling", Arrangement(), sub_models=2),
    Case("scaling", Arrangement(2, frozenset({1})), NARROW),
    Case("scaling", Arrangement(2, EVERY, trained=EVERY)),
    Case("scaling", Arrangement(), observed=True),
    offloading("viewing"),
]
"""Between them they have all that a mutant may break."""
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
MUTANTS = list(mutants())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same(one: Told, other: Told) -> bool:
    return len(one) == len(other) and all(
        losses == others and torch.equal(numbers, expected)
        for (losses, numbers), (others, expected) in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_overtakes_what_it_depends_on(case: Case) -> None:
    order = Order()
    told = case.on_gpu(order)
    assert not order.races, "\n\n".join(map(str, order.races))
    assert not order.unready
    assert same(told, case.told)


@pytest.mark.parametrize("case", TELLING, ids=str)
def test_nothing_overtakes_it_on_a_cpu_either(case: Case) -> None:
    order = Order()
    told = case.on_cpu(order)
    assert not order.races, "\n\n".join(map(str, order.races))
    assert same(told, case.told)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_are_the_same_in_any_order_that_is_legal(case: Case) -> None:
    assert same(case.on_gpu(RandomOrder(CASES.index(case))), case.told)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_what_orders_accesses_is_missed_where_it_is_left_out(mutant: Mutant) -> None:
    plays = [Case.on_gpu, Case.on_cpu] if mutant.file == "device.py" else [Case.on_gpu]
    plays = [Case.on_cpu] if "CpuDevice" in mutant.function else plays
    told = [(case, case.told) for case in TELLING]
    harmless = str(mutant) in HARMLESS
    with mutant.in_place():
        found = any(
            goes_wrong(play, *each)
            for _ in range(1 if harmless else ATTEMPTS)
            for play in plays
            for each in told
        )
    assert found != harmless


def goes_wrong(play: Callable[[Case, Machine], Told], case: Case, expected: Told) -> bool:
    order = Order()
    try:
        told = play(case, order)
    except Exception:  # noqa: BLE001 - whatever comes of it
        return True
    return order.found or not same(told, expected)


def test_little_is_superfluous() -> None:
    assert len(MUTANTS) >= FEWEST_MUTANTS
    assert len(HARMLESS) <= (1 - LEAST_FOUND) * len(MUTANTS)
    assert HARMLESS.keys() <= set(map(str, MUTANTS))


def test_a_race_names_both_accesses_with_their_streams_and_where_they_were_issued() -> None:
    (mutant,) = (m for m in MUTANTS if str(m).endswith("_copy: stream.wait_event"))
    case, order = TELLING[1], Order()
    with mutant.in_place():
        case.on_gpu(order)
    said = "".join(map(str, order.races))
    assert "stream compute writes" in said
    assert "stream out reads" in said
    assert "issued by thread atom-gradients-out_0" in said
    assert "swap/streams.py" in said
