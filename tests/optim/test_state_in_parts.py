"""State in parts: who holds some of it, and who only loads what others stepped, have the bits of an
undivided state."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout, ParameterSpec
from atom.optim import clipping, optimizer, state_in_parts
from atom.optim.adamw import AdamW, AdamW8Bit
from atom.optim.clipping import gradient_norm
from atom.optim.layerwise import LAMB, LARS
from atom.optim.muon import Muon
from atom.optim.optimizer import Optimizer, StateTensor, StepTerms, store_bytes
from atom.optim.state_in_parts import (
    divides,
    state_parts,
    step_aside,
)
from atom.optim.stepper import Stepper
from atom.swap.held_state import MOST_PARTS, StateParts
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from tests.manual_clock import ManualClock
from tests.one_step import allocate_store, take_step

LAYOUT = ParameterLayout.of(
    {"still": (5, 7), "first": (37, 53), "bias": (7,), "long": (3, 700), "last": (64,)},
    frozen={"still"},
)
ADAMW = AdamW(betas=(0.8, 0.9), weight_decay=0.2, seed=5)
FORMS = [
    (torch.float32, StateForm.EXACT), (torch.bfloat16, StateForm.EXACT),
    (torch.float16, StateForm.EXACT), (torch.bfloat16, StateForm.SPLIT),
    (torch.bfloat16, StateForm.HALF),
]  # fmt: skip
RATE, COEFFICIENT, BLOCK = 1e-2, 0.5, 256


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts end within parameters, stretches within parts, and parameters within stretches."""
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", BLOCK)
    monkeypatch.setattr(clipping, "LANES", 16)
    monkeypatch.setattr(state_in_parts, "BLOCK_ELEMENTS", BLOCK)
    for module in (optimizer, state_in_parts):
        monkeypatch.setattr(module, "PIECE_ELEMENTS", 112)


class Decided:
    """A part's mean where it is held, else what others made of it: as an exchange leaves it."""

    dtype = torch.float32

    def __init__(
        self, store: HostStore, mean: Tensor, made: Mapping[int, Mapping[str, Tensor]]
    ) -> None:
        assert store.held is not None
        self._held, self._mean, self._made = store.held, mean, made
        self._loaded = store.loaded

    def numel(self) -> int:
        return self._mean.numel()

    def __getitem__(self, elements: slice) -> Tensor:
        [(part, start, stop)] = self._held.parts.within(elements.start, elements.stop)
        if part in self._held.held:
            return self._mean[start:stop]
        first = self._held.parts.range(part)[0]
        return self._made[part][self._loaded][start - first : stop - first]


def in_parts(precision: torch.dtype, form: StateForm, held: set[int]) -> HostStore:
    store = allocate_store(ADAMW, LAYOUT, precision, form, parts=state_parts(LAYOUT))
    assert store.held is not None
    for part in held:
        store.held.hold(part)
    fill(store)
    return store


def fill(store: HostStore) -> None:
    for spec in LAYOUT.trained:
        generator = torch.Generator().manual_seed(spec.offset)
        store.write_weights(spec.name, torch.randn(spec.shape, generator=generator))


def stepped_aside(
    store: HostStore, part: int, mean: Tensor, terms: StepTerms
) -> Mapping[str, Tensor]:
    aside = {name: torch.empty_like(arena) for name, arena in store.arenas_of(part).items()}
    step_aside(ADAMW, store, part, mean, terms, aside)
    return aside


def mean_of(step: int) -> Tensor:
    return torch.randn(LAYOUT.trained_elements, generator=torch.Generator().manual_seed(step))


def has(store: HostStore, whole: HostStore) -> bool:
    """Whether all that is in `store` is what an undivided one has."""
    assert store.held is not None
    loaded = torch.equal(store.working, whole.working)
    ours = ((part, *store.held.parts.range(part)) for part in store.held.held)
    return loaded and all(
        torch.equal(arena, whole.state[name][start:stop])
        for part, start, stop in ours
        for name, arena in store.held.of(part).items()
    )


@pytest.mark.parametrize("members", [2, 3, 4, 5])
@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_all_members_have_the_bits_of_an_undivided_state(
    precision: torch.dtype, form: StateForm, members: int
) -> None:
    """Two hold each part. Owners change from step to step."""
    whole, count = allocate_store(ADAMW, LAYOUT, precision, form), state_parts(LAYOUT).count
    fill(whole)
    assert members < count
    holders = {part: (part % members, (part + 1) % members) for part in range(count)}
    stores = [
        in_parts(precision, form, {part for part, held_by in holders.items() if rank in held_by})
        for rank in range(members)
    ]
    assert all(has(store, whole) for store in stores)
    for step in (1, 2, 3):
        mean, terms = mean_of(step), StepTerms(step, RATE, COEFFICIENT)
        made = {
            part: stepped_aside(stores[held_by[step % 2]], part, mean, terms)
            for part, held_by in holders.items()
        }
        assert all(has(store, whole) for store in stores), "what was made aside is nowhere else"
        take_step(ADAMW, whole, mean, RATE, step, COEFFICIENT)
        for store in stores:
            stepper = Stepper(store, ADAMW, ManualClock())
            stepper.begin(Decided(store, mean, made), RATE, step, COEFFICIENT)
            stepper.wait()
        assert all(has(store, whole) for store in stores)
        for part, (start, stop) in ((p, state_parts(LAYOUT).range(p)) for p in made):
            assert torch.equal(made[part][whole.loaded], whole.working[start:stop])
            assert all(
                torch.equal(arena, whole.state[name][start:stop])
                for name, arena in made[part].items()
                if name in whole.state
            )


@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_master_weights_are_those_that_are_held(precision: torch.dtype, form: StateForm) -> None:
    whole, store = allocate_store(ADAMW, LAYOUT, precision, form), in_parts(precision, form, {0, 1})
    fill(whole)
    for spec in LAYOUT.specs:
        held = max(0, min(spec.numel, state_parts(LAYOUT).range(1)[1] - spec.offset))
        here, there = store.weights(spec.name).view(-1), whole.weights(spec.name).view(-1)
        loaded = whole.layout.view(whole.working, spec.name).view(-1).float()
        assert torch.equal(here[:held], there[:held])
        assert torch.equal(here[held:], loaded[held:])
    before = store.working.clone()
    store.round_master()
    assert torch.equal(store.working, before)
    store.clear_state()
    assert store.held is not None
    assert not any(arena.any() for part in (0, 1) for arena in store.held.of(part).values())


def test_a_parts_sums_of_squares_make_the_whole_norm() -> None:
    mean, parts = mean_of(1), state_parts(LAYOUT)
    known = dict[int, float]()
    for start, stop in map(parts.range, range(parts.count)):
        squares = clipping.block_squares(mean, range(start, stop, BLOCK))
        known |= squares
    nowhere = torch.full_like(mean, float("nan"))
    assert gradient_norm(nowhere, known) == gradient_norm(mean)


@pytest.mark.parametrize("elements", [1, 16, 255, 256, 257, 256 * 60, 256 * 60 + 1, 256 * 1000 + 8])
def test_parts_are_whole_blocks_and_alike(elements: int) -> None:
    parts = StateParts(elements, BLOCK)
    ranges = [parts.range(part) for part in range(parts.count)]
    assert [0, *(stop for _, stop in ranges)] == [*(start for start, _ in ranges), elements]
    assert all(start % BLOCK == 0 for start, _ in ranges)
    blocks = [-(-(stop - start) // BLOCK) for start, stop in ranges]
    assert parts.count == min(MOST_PARTS, sum(blocks))
    assert max(blocks) - min(blocks) <= 1
    assert list(parts.within(0, elements)) == [(n, *each) for n, each in enumerate(ranges)]


@pytest.mark.parametrize(
    ("members", "holders", "share"),
    [(8, 2, 1 / 4), (4, 2, 1 / 2), (2, 2, 1), (1, 2, 1), (60, 1, 1 / 60), (7, 2, 18 / 60)],
)
def test_a_member_holds_its_share(members: int, holders: int, share: float) -> None:
    parts = StateParts(BLOCK * MOST_PARTS * 3, BLOCK)
    elements = parts.most_elements(parts.most_held(members, holders))
    assert elements == share * parts.elements


@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_memory_is_as_reckoned(precision: torch.dtype, form: StateForm) -> None:
    """All parts held: as much as an undivided state."""
    parts = state_parts(LAYOUT)
    store = in_parts(precision, form, set(range(parts.count)))
    assert store.held is not None
    held = sum(a.nbytes for part in range(parts.count) for a in store.held.of(part).values())
    each_bytes = sum(dtype.itemsize for dtype in store.held.dtypes.values())
    assert held == each_bytes * parts.most_elements(parts.count)
    allocated = held + store.working.nbytes + store.gradients.nbytes
    assert allocated == store_bytes(ADAMW, LAYOUT, precision, form)
    store.held.drop(0)
    assert not store.held.of(0)


class Stateless(AdamW):
    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        return {}


@pytest.mark.parametrize(
    ("optimizer", "fits"),
    [
        (AdamW(), True),
        (Stateless(), False),
        (AdamW8Bit(), False),
        (LAMB(), False),
        (LARS(), False),
        (Muon(), False),
    ],
)  # fmt: skip
def test_whose_state_can_be_divided(optimizer: Optimizer, fits: bool) -> None:
    assert divides(optimizer, LAYOUT, StateForm.EXACT) == fits
