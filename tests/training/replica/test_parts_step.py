"""Rounds of members that each hold some of the optimizer's state: over loopback, their bits are
those of an undivided state that steps on the same means."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.config.load import parse_run_text
from atom.daemon.fitting.device_choice import result_bytes
from atom.optim.clipping import gradient_norm
from atom.placement.choice import HostStep
from atom.placement.prediction import Parts, Work, exchange
from atom.swap.state_form import StateForm
from atom.swarm.exchange.allreduce import ExchangeBroken
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.exchange.held_plan import Holding, owners_of
from atom.swarm.exchange.stepping import Made
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.part_rows import LOADED, Row, rows_of
from atom.swarm.stream.frames import Pace
from atom.training.exchange import result_of
from atom.training.replica.parts_step import PartsStep
from atom.training.storage.parts_results import PartsResult
from tests.cli.good_run import GOOD_RUN
from tests.swarm.threaded_ring import SOON, sources
from tests.training.conftest import NewRoom
from tests.training.parts_room import ADAMW, FORMS, LAYOUT, terms_of


def ignored(means: Mapping[bytes, EncodedMean]) -> None: ...


class Dying(PartsStep):
    def __init__(self, *given: Any) -> None:
        *usual, self._left = given
        super().__init__(*usual)

    def make(self, part: int, mean: EncodedMean, whole: bool) -> tuple[Tensor, bytes]:
        if not self._left:
            raise MemoryError("no room")
        self._left -= 1
        return super().make(part, mean, whole)


class Broken(PartsStep):
    """Its memory is."""

    def make(self, part: int, mean: EncodedMean, whole: bool) -> tuple[Tensor, bytes]:
        made, row = super().make(part, mean, whole)
        self.loaded(part, made)[3] = float("nan")
        loaded, told = self.loaded(part, made), Row.of(row)
        return made, replace(told, loaded=state_digest({LOADED: loaded})).raw


class Confused(PartsStep):
    def __init__(self, *given: Any) -> None:
        *usual, self._digest = given
        super().__init__(*usual)

    def make(self, part: int, mean: EncodedMean, whole: bool) -> tuple[Tensor, bytes]:
        made, row = super().make(part, mean, whole)
        wrong = bytearray(row)
        wrong[self._digest * 32] ^= 1
        return made, bytes(wrong)


class Hurried(Pace):
    """Of a whole exchange alone."""

    def due_s(self, done_bytes: int) -> float:
        return 0.2 if done_bytes == 4 * LAYOUT.trained_elements else SOON


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("precision", "form", "codec"), FORMS)
def test_every_member_has_the_bits_of_an_undivided_state(
    new_room: NewRoom, precision: torch.dtype, form: StateForm, codec: str, members: int
) -> None:
    """Owners change from round to round, and one member had nothing to give in the last."""
    room = new_room(members, precision, form)
    coded = codec_named(codec)
    for step in (1, 2, 3):
        held, given = room.holding, list[Tensor | None](sources(members, LAYOUT.trained_elements))
        if step == 2:
            held = replace(held, owners=tuple(max(r for r, h in enumerate(held.holds) if p in h)
                                              for p in range(room.parts.count)))  # fmt: skip
        if step == 3 and members > 1:
            given[1] = None

        made = room.round(held, given, step, coded)
        assert all(map(room.has_the_bits, room.stores)), "nothing is changed before the commit"
        mean = room.mean([each for each, _ in made], coded)
        if codec == "float32":
            assert torch.equal(mean, in_order(held, given))
        assert {work.norm for _, work in made} == {gradient_norm(mean)}
        assert len({result_of(each, work).digest for each, work in made}) == 1
        room.commit(made, mean, step, coded)
        assert all(map(room.has_the_bits, room.stores))


def in_order(holding: Holding, given: list[Tensor | None]) -> Tensor:
    """Of each part its owner's numbers, then those of the ranks after it."""
    means = list[Tensor]()
    for owner, (start, stop) in zip(holding.owners, holding.ranges, strict=True):
        ranks = [*range(owner, len(given)), *range(owner)]
        addends = [given[rank] for rank in ranks]
        total = torch.zeros(stop - start)
        for addend in addends:
            total = total + (torch.zeros(1) if addend is None else addend[start:stop])
        means.append(total / 64)
    return torch.cat(means)


@pytest.mark.parametrize(("when", "members"), [(0, 3), (1, 3), (3, 4)])
def test_an_owner_that_dies_is_replaced_by_a_copy_in_the_same_round(
    new_room: NewRoom, when: int, members: int
) -> None:
    """After it made so many parts, some of which others may have. Whoever keeps a mean has it, and
    nothing else is left of the attempt. The next one has the bits of those that are left."""
    room = new_room(members, torch.bfloat16, StateForm.SPLIT)
    coded = codec_named("bfloat16")
    given, dead = list[Tensor | None](sources(members, LAYOUT.trained_elements)), 1
    works = room.works(1, coded)
    works[dead] = Dying(ADAMW, room.stores[dead], coded, partial(terms_of, 1), ignored, when)
    ended = room.attempt(room.holding, given, works, coded)
    for rank, each in enumerate(ended):
        failure = each.exception(SOON)
        if rank != dead:
            assert isinstance(failure, ExchangeBroken)
            assert failure.suspect == room.swarm.order[dead]
            store = room.stores[rank]
            assert store.held is not None
            assert len(room.kept[rank]) == len(store.held.held)
    assert all(map(room.has_the_bits, room.stores))
    room.lose(dead)
    del given[dead]
    made = room.round(room.holding, given, 1, coded)
    room.commit(made, room.mean([each for each, _ in made], coded), 1, coded)
    assert all(map(room.has_the_bits, room.stores))


@pytest.mark.parametrize(("precision", "form", "codec"), FORMS)
def test_a_newcomer_gets_the_whole_of_a_part_in_the_exchange(
    new_room: NewRoom, precision: torch.dtype, form: StateForm, codec: str
) -> None:
    """And holds it from the next round on, whose mean it gets then."""
    room = new_room(3, precision, form)
    coded, part = codec_named(codec), 0
    newcomer = room.stores[2].held
    assert newcomer is not None
    assert part not in newcomer.held
    for step in (1, 2):
        none, holding = frozenset[int](), room.holding
        gets = (none, none, frozenset({part}) - newcomer.held)
        given = list[Tensor | None](sources(3, LAYOUT.trained_elements))
        made = room.round(replace(holding, gets=gets), given, step, coded)
        result = result_of(*made[2])
        assert (part in result.held, part in result.means) == (step == 1, step == 2)
        assert all(state_digest(each) == name for name, each in result.contents.items())
        room.commit(made, room.mean([each for each, _ in made], coded), step, coded)
        assert part in newcomer.held
        assert all(map(room.has_the_bits, room.stores))
    with pytest.raises(ValueError, match="does not fit"):
        newcomer.take(part, {name: each[1:] for name, each in newcomer.of(part).items()})


@pytest.mark.parametrize(("precision", "form", "codec"), FORMS[1:3])
def test_whoever_missed_a_round_gets_what_it_lacks_by_digest(
    new_room: NewRoom, precision: torch.dtype, form: StateForm, codec: str
) -> None:
    """From what others have of the result: as from their disks."""
    room = new_room(4, precision, form)
    coded, late = codec_named(codec), 3
    holding = room.holding
    held = [*holding.holds[:late], frozenset[int]()]
    owners = owners_of(held, room.ranges)
    assert owners is not None
    given: list[Tensor | None] = [*sources(3, LAYOUT.trained_elements), None]
    made = room.round(replace(holding, owners=owners), given, 1, coded)
    results = [result_of(each, work) for each, work in made[:late]]
    assert all(each.digest == results[0].digest for each in results)
    mine = PartsResult(rows_of(served(results, results[0].digest)))
    for part, digest in mine.lacking(holding.holds[late]).items():
        found = served(results, digest)
        assert state_digest(found) == digest
        mine = mine.with_content(part, digest, found)
    assert mine.lacking(holding.holds[late]) == {}
    made[late] = (
        Made(
            tuple(row.raw for row in mine.rows),
            mine.means,
            {p: t.view(torch.uint8) for p, t in mine.loaded.items()},
        ),
        made[late][1],
    )
    room.commit(made, room.mean([each for each, _ in made], coded), 1, coded)
    assert all(map(room.has_the_bits, room.stores))


def served(results: list[PartsResult], digest: bytes) -> Mapping[str, Tensor]:
    found = (each.contents.get(digest) for each in results)
    return next(content for content in found if content is not None)


@pytest.mark.parametrize(
    "arenas",
    [{}, {"rows": torch.zeros(95, dtype=torch.uint8)}, {"rows": torch.zeros(96)}],
)
def test_what_is_no_table_is_refused(arenas: dict[str, Tensor]) -> None:
    with pytest.raises(PeerRefused, match="malformed"):
        rows_of(arenas)


def test_what_is_no_part_of_a_result_is_refused() -> None:
    row = Row(b"m" * 32, b"l" * 32, b"h" * 32)
    for name in (row.mean, row.loaded):
        with pytest.raises(PeerRefused, match="malformed"):
            PartsResult((row,)).with_content(0, name, {"else": torch.zeros(4)})


def test_with_the_last_holder_a_part_is_gone(new_room: NewRoom) -> None:
    room = new_room(3, torch.float32, StateForm.EXACT)
    holds = [store.held.held for store in room.stores if store.held is not None]
    assert owners_of(holds[:2], room.ranges) is not None
    assert owners_of(holds[:1], room.ranges) is None


@pytest.mark.parametrize("stage", ["averaged", "make"])
def test_a_member_whose_own_work_hangs_is_named(
    new_room: NewRoom, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """As on a disk that answers no more: the others do not wait for it for ever."""
    room = new_room(3, torch.float32, StateForm.EXACT)
    coded, given = codec_named("float32"), sources(3, LAYOUT.trained_elements)
    works, over = room.works(1, coded), threading.Event()
    work = getattr(works[1], stage)
    monkeypatch.setattr(works[1], stage, lambda *args: (over.wait(SOON), work(*args))[1])
    ended = room.attempt(room.holding, [*given], works, coded, {1: Hurried()})
    failures = [ended[rank].exception(SOON / 2) for rank in (0, 2)]
    over.set()
    for failure in (*failures, ended[1].exception(SOON)):
        assert isinstance(failure, ExchangeBroken)
        assert (failure.suspect, failure.reason) == (room.swarm.order[1], Reason.TOO_SLOW)


@pytest.mark.parametrize("digest", [0, 1])
def test_who_says_something_else_than_it_made_is_named(new_room: NewRoom, digest: int) -> None:
    """By those that have what it says it of."""
    room = new_room(3, torch.float32, StateForm.EXACT)
    coded, given = codec_named("float32"), sources(3, LAYOUT.trained_elements)
    works = room.works(1, coded)
    works[2] = Confused(ADAMW, room.stores[2], coded, partial(terms_of, 1), ignored, digest)
    for rank, each in enumerate(room.attempt(room.holding, [*given], works, coded)):
        failure = each.exception(SOON)
        assert isinstance(failure, ExchangeBroken)
        if rank != 2:
            assert failure.suspect == room.swarm.order[2]
            assert failure.reason is Reason.HASH_MISMATCH
    assert all(map(room.has_the_bits, room.stores))


@pytest.mark.parametrize(("precision", "form", "codec"), FORMS)
def test_weights_that_are_not_finite_are_refused(
    new_room: NewRoom, precision: torch.dtype, form: StateForm, codec: str
) -> None:
    """All peers would load them."""
    room = new_room(3, precision, form)
    coded, given = codec_named(codec), sources(3, LAYOUT.trained_elements)
    works = room.works(1, coded)
    works[2] = Broken(ADAMW, room.stores[2], coded, partial(terms_of, 1), ignored)
    ended = [each.exception(SOON) for each in room.attempt(room.holding, [*given], works, coded)]
    for failure in ended[:2]:
        assert isinstance(failure, ExchangeBroken)
        assert (failure.suspect, failure.reason) == (room.swarm.order[2], Reason.NOT_FINITE)


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize(("precision", "form", "codec"), FORMS[1:3])
def test_bytes_are_as_reckoned(
    new_room: NewRoom, precision: torch.dtype, form: StateForm, codec: str, members: int
) -> None:
    """As `atom plan` foretells them: sent by all members together, and kept by each. Of two, each
    holds all: kept is foretold as if it were alone, and made all weights."""
    room = new_room(members, precision, form)
    coded = codec_named(codec)
    before = sum(each.bandwidth.sent_bytes for each in room.swarm.transports)
    made = room.round(room.holding, [*sources(members, LAYOUT.trained_elements)], 1, coded)
    sent = sum(each.bandwidth.sent_bytes for each in room.swarm.transports) - before
    parts = Parts(holders=2, weight_bytes=precision.itemsize, made_per_s=1.0)
    work = Work(
        parameters=room.parts.elements,
        round_sequences=1,
        micro_batch_sequences=1,
        sequence_tokens=1,
        peers=members,
        inner_sequences=None,
        step=HostStep(1.0, 1.0),
        network_bytes_per_s=1.0,
        gradient_element_bytes=coded.element_bytes,
        steps_beside=True,
        parts=parts,
    )
    assert sent == pytest.approx(members * exchange(work)[0], rel=0.05)
    model = f'[model]\nprecision = "{str(precision).removeprefix("torch.")}"'
    text = GOOD_RUN.replace("[model]", model)
    run = parse_run_text(f'{text}[swarm]\ncodec = "{codec}"\n[update]\noptimizer_state = "parts"')
    for rank, (each, its) in enumerate(made):
        contents = result_of(each, its).contents.values()
        kept = sum(arena.nbytes for content in contents for arena in content.values())
        held = len(room.holding.holds[rank])
        as_alone = LAYOUT.trained_elements // 2 * precision.itemsize if members == 2 else 0
        assert kept + as_alone == pytest.approx(result_bytes(run, LAYOUT, held), rel=0.1)
