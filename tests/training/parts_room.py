"""Peers on loopback that each hold some of the optimizer's state, and an undivided state beside
them."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim import clipping, state_in_parts
from atom.optim.adamw import AdamW
from atom.optim.clipping import clip_coefficient
from atom.optim.optimizer import StepTerms
from atom.optim.state_in_parts import state_parts
from atom.optim.stepper import Stepper
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from atom.swarm.exchange.allreduce import Sums
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.exchange.held_plan import Holding, owners_of
from atom.swarm.exchange.stepping import Made, average_and_make
from atom.swarm.stream.frames import Pace
from atom.training.exchange import result_of
from atom.training.replica.parts_step import PartsStep
from tests.manual_clock import ManualClock
from tests.one_step import allocate_store, take_step
from tests.swarm.threaded_ring import QUICK, SILENCE_S, SOON, Swarm

LAYOUT = ParameterLayout.of(
    {"table": (300, 128), "bias": (77,), "matrix": (200, 256), "last": (5,)}
)
ADAMW, RATE, CLIP = AdamW(seed=3), 1e-2, 0.1
FORMS = [
    (torch.float32, StateForm.EXACT, "float32"),
    (torch.bfloat16, StateForm.EXACT, "float32"),
    (torch.bfloat16, StateForm.SPLIT, "bfloat16"),
    (torch.bfloat16, StateForm.HALF, "bfloat16"),
]


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 2048)
    monkeypatch.setattr(clipping, "LANES", 128)
    monkeypatch.setattr(state_in_parts, "BLOCK_ELEMENTS", 2048)


def filled(store: HostStore) -> HostStore:
    for spec in LAYOUT.trained:
        generator = torch.Generator().manual_seed(spec.offset)
        store.write_weights(spec.name, torch.randn(spec.shape, generator=generator))
    return store


class Room:
    """Peers and their stores. Two hold each part, unless one of them cannot."""

    def __init__(self, members: int, precision: torch.dtype, form: StateForm) -> None:
        self.swarm, self.parts = Swarm(members), state_parts(LAYOUT)
        self.ranges = tuple(map(self.parts.range, range(self.parts.count)))
        self.whole = filled(allocate_store(ADAMW, LAYOUT, precision, form))
        self.stores = [self._store(rank, precision, form) for rank in range(members)]
        self.kept = [dict[bytes, EncodedMean]() for _ in self.stores]
        """The means that each kept, by digest, whatever became of its exchange."""

    def _store(self, rank: int, precision: torch.dtype, form: StateForm) -> HostStore:
        store = allocate_store(ADAMW, LAYOUT, precision, form, parts=self.parts)
        assert store.held is not None
        for part in range(self.parts.count):
            if rank in (part % len(self.swarm.order), (part + 1) % len(self.swarm.order)):
                store.held.hold(part)
        return filled(store)

    @property
    def holding(self) -> Holding:
        holds = tuple(store.held.held for store in self.stores if store.held is not None)
        owners = owners_of(holds, self.ranges)
        assert owners is not None
        return Holding(self.ranges, owners, holds, (frozenset(),) * len(holds))

    def works(self, step: int, codec: Codec) -> list[PartsStep]:
        given = codec, partial(terms_of, step)
        kept = zip(self.stores, self.kept, strict=True)
        return [PartsStep(ADAMW, store, *given, means.update) for store, means in kept]

    def attempt(
        self,
        holding: Holding,
        given: list[Tensor | None],
        works: list[PartsStep],
        codec: Codec,
        paces: Mapping[int, Pace] = MappingProxyType({}),
    ) -> list["Future[Made]"]:
        """An exchange of all. `paces`: of some members, by rank."""
        self.swarm.shares = holding.shares

        def member(rank: int) -> Made:
            """Raises: ExchangeBroken."""
            pace = paces.get(rank, QUICK)
            changes = {"progress_timeout_s": SILENCE_S * 4, "pace": pace, "codec": codec}
            terms = replace(self.swarm.terms(rank, **changes), holding=holding)
            source = given[rank]
            ours = None if source is None else Sums(source)
            return average_and_make(ours, works[rank], terms, self.swarm.open(rank))

        return [self.swarm.pool.submit(member, rank) for rank in range(len(works))]

    def round(
        self, holding: Holding, given: list[Tensor | None], step: int, codec: Codec
    ) -> list[tuple[Made, PartsStep]]:
        works = self.works(step, codec)
        ended = self.attempt(holding, given, works, codec)
        return [(each.result(SOON), work) for each, work in zip(ended, works, strict=True)]

    def commit(
        self, made: list[tuple[Made, PartsStep]], mean: Tensor, step: int, codec: Codec
    ) -> None:
        """All take the step, an undivided state as well."""
        terms = terms_of(step, made[0][1].norm)
        take_step(ADAMW, self.whole, mean, RATE, step, terms.coefficient)
        for rank, (each, work) in enumerate(made):
            self.install(rank, each, work, step, codec)

    def lose(self, rank: int) -> None:
        del self.stores[rank], self.kept[rank]
        self.swarm.transports.pop(rank).close()
        order = self.swarm.order
        self.swarm.order = order[:rank] + order[rank + 1 :]
        self.swarm.ballot = replace(self.swarm.ballot, attempt=2)

    def install(self, rank: int, made: Made, work: PartsStep, step: int, codec: Codec) -> None:
        terms = terms_of(step, work.norm)
        stepper = Stepper(self.stores[rank], ADAMW, ManualClock())
        held = self.stores[rank].held
        assert held is not None
        result = result_of(made, work)
        decided = result.numbers(codec, self.parts, held.held)
        stepper.begin(decided, terms.learning_rate, step, terms.coefficient)
        stepper.wait()
        for part, arenas in result.held.items():
            held.take(part, arenas)

    def mean(self, made: list[Made], codec: Codec) -> Tensor:
        """As the members have it together."""
        means = {part: mean for each in made for part, mean in each.means.items()}
        sizes = [stop - start for start, stop in self.ranges]
        return torch.cat([means[p].numbers(codec, size)[:] for p, size in enumerate(sizes)])

    def has_the_bits(self, store: HostStore) -> bool:
        assert store.held is not None
        return torch.equal(store.working, self.whole.working) and all(
            torch.equal(arena, self.whole.state[name][slice(*self.ranges[part])])
            for part in store.held.held
            for name, arena in store.held.of(part).items()
        )


def terms_of(step: int, norm: float) -> StepTerms:
    return StepTerms(step, RATE, clip_coefficient(norm, CLIP))
