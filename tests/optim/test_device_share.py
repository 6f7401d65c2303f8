"""A device's share of the step: which pieces, in what order, and what its failures leave behind."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from streamed_rig import LAYOUT, Beside, gradient

from atom.optim import step as step_module
from atom.optim.device_share import streamed
from atom.optim.step import Piece, PiecesLost, Step
from atom.optim.turns import Turns
from atom.swap.state_form import StateForm
from atom.swap.workbench import CpuWorkbench, Pair, copy_all

WAIT_S = 20.0
PIECE_ELEMENTS = 512
PARAMETERS = sum(spec.numel for spec in LAYOUT.specs)
FORMS = pytest.mark.parametrize("form", StateForm)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "PIECE_ELEMENTS", PIECE_ELEMENTS)


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=50),
    st.floats(0, 1),
    st.integers(1, 100),
    st.integers(100, 5000),
)
def test_a_share_is_spread_evenly(sizes: list[int], share: float, least: int, most: int) -> None:
    pieces, start = list[Piece](), 0
    for size in sizes:
        pieces.append(Piece(start, start + size, True))
        start += size
    chosen = streamed(pieces, share, least, most)
    assert chosen == sorted(set(chosen))
    assert all(least <= sizes[index] <= most for index in chosen)
    for end in range(len(sizes) + 1):
        taken = sum(sizes[index] for index in chosen if index < end)
        assert taken <= share * sum(sizes[:end]) + max(sizes) / 2 + 1e-6
        if all(least <= size <= most for size in sizes):
            assert taken >= share * sum(sizes[:end]) - max(sizes) / 2 - 1e-6


def test_elements_whose_numbers_end_at_two_to_the_32_are_the_hosts() -> None:
    border = 2**32
    pieces = [Piece(border - 200, border - 100, True), Piece(border - 100, border + 1, True)]
    assert streamed(pieces, 1.0, 1, 1000) == [0]


def test_threads_with_nothing_left_take_the_devices_pieces() -> None:
    turns = Turns(host=[0, 2], device=[1, 3, 4])
    assert [turns.host(), turns.device(), turns.host(), turns.host()] == [0, 1, 2, 3]
    assert [turns.device(), turns.device(), turns.host()] == [4, None, None]
    turns = Turns([0], [1])
    turns.close()
    assert [turns.host(), turns.device()] == [None, None]


@FORMS
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("threads", [0, 3])
def test_bits_do_not_depend_on_the_share(form: StateForm, share: float, threads: int) -> None:
    rig = Beside(form=form, share=share, threads=threads)
    for number in range(1, 4):
        rig.step(number)
        assert rig.equal
    assert not rig.told
    if threads == 0 and share == 1.0:
        assert rig.conveyor.updated_elements == 3 * PARAMETERS
    if share == 0.0:
        assert rig.conveyor.updated_elements == 0


def test_pieces_are_reported_in_order_whoever_updates_them() -> None:
    rig = Beside(share=0.5, threads=2)
    step = rig.adamw.begin(gradient(1), 1e-2, 1)
    for expected, index in enumerate(step.update_all()):
        assert index == expected
        assert step.is_done(index)
    assert step.finished


@FORMS
def test_a_gradient_in_sixteen_bits_counts_as_what_it_says(form: StateForm) -> None:
    rig = Beside(form=form)
    for adamw in (rig.adamw, rig.host):
        adamw.step(gradient(1).bfloat16(), 1e-2, 1, 0.7)
    assert rig.equal
    assert rig.conveyor.updated_elements == PARAMETERS


class Bench(CpuWorkbench):
    """Fails where it is told to: a method's name, and the number of the call."""

    def __init__(self, method: str = "", failing: Sequence[int] = ()) -> None:
        self.method, self.failing, self.calls = method, list(failing), 0

    def _count(self, method: str) -> None:
        if method == self.method:
            self.calls += 1
            if self.calls in self.failing:
                raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    def bring(self, place: int, pairs: Sequence[Pair], work: Callable[[], None]) -> None:
        def failing_work() -> None:
            self._count("work")
            work()

        self._count("bring")
        super().bring(place, pairs, failing_work)

    def wait_worked(self, place: int) -> None:
        self._count("wait_worked")

    def take_back(self, place: int, pairs: Sequence[Pair]) -> None:
        copy_all(pairs[:2])
        self._count("take_back")
        copy_all(pairs[2:])

    def wait_back(self, place: int) -> None:
        self._count("wait_back")


@FORMS
@pytest.mark.parametrize("method", ["bring", "work", "wait_worked", "take_back", "wait_back"])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_after_a_failure_of_the_device_the_host_finishes_the_step(
    form: StateForm, method: str, call: int
) -> None:
    bench = Bench(method, [call])
    rig = Beside(form=form, bench=bench, threads=1, share=0.7)
    rig.step(1)
    assert rig.equal
    assert not rig.adamw.torn
    failed, by_device = bool(rig.told), rig.conveyor.updated_elements
    assert failed or bench.calls < call, "the host was faster"
    rig.step(2)
    assert rig.equal
    assert len(rig.told) <= 1
    if failed:
        assert rig.conveyor.updated_elements == by_device, "it was asked again"


@pytest.mark.parametrize("method", ["bring", "work", "wait_worked", "take_back", "wait_back"])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_failure_is_told_once_and_no_piece_is_forgotten(method: str, call: int) -> None:
    rig, done, left = Beside(bench=Bench(method, [call])), list[int](), list[int]()
    beside = begun(rig)._beside
    assert beside is not None
    indices = iter(beside.indices)
    beside.work(lambda: next(indices, None), done.append, left.append)
    assert rig.told == ["CUDA out of memory."]
    assert sorted([*done, *left]) == list(beside.indices), "each once"
    before = {"bring": -2, "work": -2, "wait_worked": -1, "take_back": 0, "wait_back": 1}
    assert len(done) == max(0, call + before[method])


@pytest.mark.parametrize("method", ["take_back", "wait_back"])
def test_what_cannot_be_written_back_is_lost_and_says_so(method: str) -> None:
    rig = Beside(bench=Bench(method, range(3, 100)))
    with pytest.raises(PiecesLost, match="out of memory"):
        rig.adamw.step(gradient(1), 1e-2, 1)
    assert rig.adamw.torn
    assert rig.told == ["CUDA out of memory."]
    with pytest.raises(PiecesLost, match="half-made"):
        rig.adamw.step(gradient(1), 1e-2, 1)
    for name, arena in rig.store.state.items():  # as from another peer
        arena.copy_(rig.whole.state[name])
    rig.store.round_master()
    rig.adamw.discard_unfinished()
    assert not rig.adamw.torn
    rig.step(1)
    assert rig.equal


def deaf(why: str) -> None:
    raise BrokenPipeError(why)


class Late(Bench):
    """What is taken back arrives when it is waited for, or never."""

    def __init__(self, method: str, failing: Sequence[int]) -> None:
        super().__init__(method, failing)
        self.late = dict[int, Sequence[Pair]]()

    def take_back(self, place: int, pairs: Sequence[Pair]) -> None:
        self.late[place] = pairs

    def wait_back(self, place: int) -> None:
        copy_all(self.late.pop(place))


@FORMS
def test_a_step_whose_device_fails_while_nobody_can_be_told_may_be_repeated(
    form: StateForm,
) -> None:
    bench = Late("work", [4])
    rig = Beside(form=form, bench=bench)

    rig.conveyor._told = deaf
    with pytest.raises(BrokenPipeError):
        rig.adamw.step(gradient(1), 1e-2, 1)
    assert not bench.late, "still being written"
    rig.step(1)
    assert rig.equal


class Dead(Bench):
    """Fails, and cannot be waited for either."""

    def rest(self) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")


@pytest.mark.parametrize("told", [deaf, str], ids=["deaf", "told"])
def test_what_is_lost_stays_lost_whatever_else_fails(told: Callable[[str], None]) -> None:
    rig = Beside(bench=Dead("take_back", range(3, 100)))
    rig.conveyor._told = told
    for _ in range(2):
        with pytest.raises(PiecesLost):
            rig.adamw.step(gradient(1), 1e-2, 1)


class Stuck(CpuWorkbench):
    """Brings nothing before it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def bring(self, place: int, pairs: Sequence[Pair], work: Callable[[], None]) -> None:
        self.asked.set()
        assert self.let_go.wait(WAIT_S)
        super().bring(place, pairs, work)


def begun(rig: Beside) -> Step:
    return rig.adamw.begin(gradient(1), 1e-2, 1)


def test_a_slow_device_holds_up_one_piece_only() -> None:
    bench = Stuck()
    rig = Beside(share=0.5, bench=bench, threads=1)
    step = begun(rig)
    update, others_done, calls = step._update_piece, threading.Event(), count(1)

    def counted(piece: Piece, done: int) -> None:
        assert bench.asked.wait(WAIT_S)
        update(piece, done)
        if next(calls) == len(step.pieces) - 1:
            others_done.set()

    step._update_piece = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as listener:
        seen = listener.submit(list, step.update_all())
        assert others_done.wait(WAIT_S), "the host waits for the device"
        bench.let_go.set()
        assert seen.result(WAIT_S) == list(range(len(step.pieces)))
    rig.adamw.finish()
    rig.host.step(gradient(1), 1e-2, 1)
    assert rig.equal
    assert rig.conveyor.updated_elements > 0


def test_a_device_that_fails_when_nobody_is_beside_it_does_not_stop_the_step() -> None:
    rig = Beside(bench=Bench("work", [3]), threads=0)
    rig.step(1)
    assert rig.equal
    assert rig.told


def test_who_stops_listening_may_go_on_later() -> None:
    rig = Beside(share=0.5, threads=2)
    updates = begun(rig).update_all()
    assert next(updates) == 0
    updates.close()
    assert rig.adamw.torn
    rig.step(1)
    assert rig.equal


class GivenBack(CpuWorkbench):
    """Somebody wants the device in the middle of a step: once the n-th piece was brought."""

    def __init__(self, after: int) -> None:
        self.left, self.give_back = after, lambda: None
        self.giving: list[threading.Thread] = []

    def bring(self, place: int, pairs: Sequence[Pair], work: Callable[[], None]) -> None:
        super().bring(place, pairs, work)
        self.left -= 1
        if self.left == 0:
            self.giving.append(threading.Thread(target=self.give_back))
            self.giving[0].start()


@FORMS
@pytest.mark.parametrize("after", [1, 3])
def test_a_device_that_is_given_back_leaves_the_rest_to_the_host(
    form: StateForm, after: int
) -> None:
    bench = GivenBack(after)
    rig = Beside(form=form, bench=bench)
    bench.give_back = rig.conveyor.give_back
    for number in (1, 2):
        rig.step(number)
        assert rig.equal
    bench.giving[0].join(WAIT_S)
    there = rig.conveyor.updated_elements
    assert there < 2 * PARAMETERS
    rig.conveyor.take_again()
    rig.step(3)
    assert rig.equal
    assert rig.conveyor.updated_elements == there + PARAMETERS
    assert not rig.told
