"""Actions of a round on a replica with 64 numbers, on a real worker's thread; the next round is
counted while a step ends and its digest is taken."""

import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import torch

from atom.base.errors import PeerRefused, Reason
from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import Commit, MemberCount
from atom.swarm.chain.commit_chain import Chain, record_of
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.training import round_executor
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.worker import Pause
from atom.training.round import events
from atom.training.round.events import Event
from atom.training.round.round_state import RoundPatience
from atom.training.storage import run_storage as storage_module
from atom.training.storage.run_storage import list_snapshots
from tests.swarm.means import encoded
from tests.training.conftest import NewStage
from tests.training.executor_stage import BALLOT, ME, Stage, kinds, snapshots
from tests.training.worker_scene import ELEMENTS, WAIT_S, ShouldStop

STRANGER = Identity.create().peer_id
BEHIND = events.CatchUp(("a",), "behind")
ODD = events.CatchUp(("a",), "state-mismatch", discard=True)
WANTED = events.FetchResult(b"r" * 32, ("a",), True)
NOT_HERE = events.ResultFetched(b"r" * 32, in_memory=False)


class Halted:
    """Something on another thread that is under way until the test lets it go on."""

    def __init__(self) -> None:
        self.under_way, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> None:
        self.under_way.set()
        assert self.may_end.wait(WAIT_S)

    def wait(self) -> None:
        assert self.under_way.wait(WAIT_S)


# ---- counting


def test_a_freeze_is_answered_at_the_end_of_the_pass_and_holds_until_thawed(stage: Stage) -> None:
    in_pass = stage.replica.during_pass = Halted()
    stage.worker.release("starting")
    in_pass.wait()
    stage.executor.carry_out(events.Freeze(BALLOT))
    assert stage.posted.empty(), "in the middle of a pass nothing is counted yet"
    in_pass.may_end.set()
    assert stage.next_event() == events.Frozen(BALLOT, 8, 16.0)
    assert stage.shared.sequences_at(stage.start.digest) == 8
    assert stage.shared.sequences_at(b"the next head") == 0, "another round's"
    stage.on_worker(stage.replica.reset_gradients)
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
    stage.passed.clear()
    stage.executor.carry_out(events.Thaw())
    assert stage.passed.wait(WAIT_S)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_rule_that_overlaps_trains_on_under_the_exchange(stage: Stage, goes_on: bool) -> None:
    stage.replica.overlaps = True
    stage.train()
    stage.passed.clear()
    assert stage.freeze(goes_on=goes_on) == events.Frozen(BALLOT, 8, 16.0)
    if goes_on:
        assert stage.passed.wait(WAIT_S)
    assert stage.on_worker(lambda: stage.replica.sequences) == (16 if goes_on else 8)
    stage.executor.carry_out(events.Thaw())
    stage.on_worker()
    assert not stage.worker.wanted(), "all of it counts for the next attempt, which is due"
    again, offers = replace(BALLOT, attempt=2), 1 + goes_on
    assert stage.freeze(again, goes_on) == events.Frozen(again, 8 * offers, 16.0 * offers)
    stage.on_worker()
    assert not stage.worker.wanted(), "a share beyond the first offer, however many there are"


def test_what_no_round_has_taken_counts_for_the_next(stage: Stage) -> None:
    stage.replica.overlaps = True
    stage.train()
    stage.passed.clear()
    assert stage.freeze() == events.Frozen(BALLOT, 8, 16.0)
    assert stage.passed.wait(WAIT_S)
    stage.step(stage.commit(stage.hold(1.0), 8))
    assert stage.replica.ours == 8
    assert stage.shared.sequences_at(stage.journal.head.digest) == 8
    assert stage.loader.goes_on[-1], "its samples do not come again"
    assert stage.executor.stats.sequences_committed == 8
    assert stage.executor.stats.sequences_dropped == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_count_for_nothing(stage: Stage, bad: float) -> None:
    stage.train()
    stage.on_worker(lambda: stage.replica.gradients.index_fill_(0, torch.tensor([5]), bad))
    assert stage.freeze() == events.Frozen(BALLOT, 0, 0.0)
    assert stage.events.events == [{"event": "gradients-dropped", "reason": "not-finite"}]
    assert not stage.replica.gradients.any()


def test_gradients_that_were_lost_on_their_way_count_no_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.train()

    def lost() -> Contribution:
        monkeypatch.undo()
        stage.replica.drop_contribution()
        raise PassVoided(Cause.DEVICE, "scripted", sequences_lost=8)

    monkeypatch.setattr(stage.replica, "contribution", lost)
    assert stage.freeze() == events.Frozen(BALLOT, 0, 0.0)
    (told,) = stage.events.events
    assert (told["reason"], told["sequences_lost"]) == ("device-failed", 8)


# ---- a step


def test_a_round_alone_from_ring_to_step(stage: Stage) -> None:
    stage.train()
    frozen = stage.freeze()
    assert isinstance(frozen, events.Frozen)
    part = MemberCount(ME.peer_id, ME.incarnation, frozen.sequences, frozen.loss_sum)
    assert ME.peer_id not in stage.transport.known
    stage.executor.carry_out(events.StartExchange(stage.start.digest, BALLOT, (part,)))
    assert ME.peer_id in stage.transport.known, "the door keeps places for who is in the ring"
    finished = stage.next_event()
    assert isinstance(finished, events.ExchangeFinished)
    stage.transport.known.in_ring(())
    stage.step(stage.commit(finished.digest))
    assert ME.peer_id in stage.transport.known, "and for whom the head knows"
    assert torch.equal(stage.replica.arenas["master"], torch.full((ELEMENTS,), -1.0))
    assert stage.stored() == [finished.digest]


@pytest.mark.parametrize("action", ["freeze", "thaw", "step"])
def test_before_anything_moves_the_exchange_under_way_ends(stage: Stage, action: str) -> None:
    """The caller waits until the exchange reads no more; only then the worker gets its command."""
    told: list[str] = []
    stage.executor.exchange.stop = lambda: told.append("ended")  # type: ignore[method-assign]
    submit = stage.worker.submit
    stage.worker.submit = lambda command: (told.append("worker"), submit(command))  # type: ignore
    commit = stage.commit(stage.hold(1.0))
    step = events.Apply(commit)
    stage.executor.carry_out(
        {"freeze": events.Freeze(BALLOT), "thaw": events.Thaw(), "step": step}[action]
    )
    assert told[:2] == ["ended", "worker"]
    if action != "thaw":
        stage.next_event()


@pytest.mark.parametrize("missed", [False, True])
def test_what_a_contribution_lacked_is_known_of_its_own_round_alone(
    stage: Stage, missed: bool
) -> None:
    """A ballot may come again in the next one: the same coordinator's first attempt."""

    def decided() -> Commit:
        commit = stage.commit(stage.hold(0.25))
        return replace(commit, value=replace(commit.value, origin=BALLOT))

    def replay(commit: Commit) -> int:
        stage.shared.replay([commit], lambda digest: None)
        return stage.shared.sequences_at(stage.journal.head.digest)

    stage.train()
    stage.on_worker(stage.shared.offer)
    stage.shared.give(stage.start.digest, BALLOT)
    commit = decided()
    if missed:
        assert stage.on_worker(lambda: replay(commit)) == 0  # a pass may begin right after it
    else:
        stage.step(commit)
    assert stage.replica.knew_lost
    stage.step(decided())
    assert not stage.replica.knew_lost


def test_a_step_is_written_down_and_told(stage: Stage) -> None:
    """The result may be on our own disk only."""
    stage.train()
    result = stage.hold(0.25)
    commit = stage.commit(result, sequences=6)
    head = stage.start.after(commit.value)
    stepped = stage.step(commit)
    assert stepped == events.Stepped(head.digest, state_digest(stage.replica.arenas))
    assert stage.replica.ours == 6
    assert stage.journal.head == head
    assert stage.blobs.chunk("chain/0", 0, 0) == record_of(commit)
    assert stage.serves(f"result/{result.hex()}")
    assert not stage.replica.gradients.any()
    assert stage.shared.head.digest == stage.loader.dealt[-1] == head.digest
    stage.clock.advance(4.0)
    stage.transport.bandwidth.carried(sent=300, received=200)
    stage.step(stage.commit(stage.hold(0.2), 10, STRANGER))
    assert stage.replica.ours == 0
    stats, told = stage.executor.stats, stage.told("round")
    assert (stats.rounds_joined, stats.sequences_committed, stats.sequences_dropped) == (1, 6, 2)
    assert [event["loss"] for event in told] == [4.0, 2.4]
    assert [event["sequences"] for event in told] == [6, 10]
    assert [event["tokens_per_s"] for event in told] == [0.0, 10 * 16 / 4.0]
    assert "utilisation" not in told[0], "nobody saw it begin"
    use = [told[1][key] for key in ("utilisation", "sent_bytes", "received_bytes")]
    assert use == [0, 300, 200], "no pass"
    assert told[0]["digest"] == stepped.state_digest.hex()


def test_a_held_result_is_served_before_its_round_is_decided(stage: Stage) -> None:
    """No file is written for a result that may never be committed, and no file is overwritten while
    a reader may use it."""
    committed, other, unwanted = (stage.hold(value) for value in (0.25, 0.5, 0.75))
    chunk = bytes(stage.blobs.chunk(f"result/{committed.hex()}", 1, 0))
    assert chunk == torch.full((ELEMENTS,), 0.25).numpy().tobytes()
    assert stage.stored() == []
    arenas = [weakref.ref(stage.results.get(digest)) for digest in (committed, other)]
    stage.recovery.on_fetch = lambda digest: stage.hold(1.0)
    wanted = state_digest(encoded(torch.full((ELEMENTS,), 1.0)).arenas)
    stage.executor.carry_out(
        events.FetchResult(wanted, ("a",), True, frozenset({committed, other}))
    )
    assert stage.next_event() == events.ResultFetched(wanted, in_memory=True, norm=8.0)
    served = [stage.serves(f"result/{each.hex()}") for each in (committed, other, unwanted)]
    assert served == [True, True, False]
    stage.step(stage.commit(committed))
    assert [arena() for arena in arenas] == [None, None]
    assert not stage.serves(f"result/{other.hex()}")
    assert bytes(stage.blobs.chunk(f"result/{committed.hex()}", 1, 0)) == chunk, "from disk"


def test_snapshots_and_validations_are_due_by_the_schedule(new_stage: NewStage) -> None:
    stage, names = new_stage(snapshots=2, validations=3, last=3), []
    for number in range(1, 4):
        names.append(stage.hold(float(number)))
        stage.step(stage.commit(names[-1]))
    assert snapshots(stage) == [3, 2], "and one at the end"
    assert stage.stored() == [names[2]], "the older snapshot covers the others"
    assert [event.get("validation_loss") for event in stage.told("round")] == [None, None, 5.0]
    stage.worker.release("standing still")
    stage.on_worker()
    trains = stage.on_worker(lambda: stage.worker.wanted() or stage.replica.sequences > 0)
    assert not trains, "after the last round nothing is"


def test_whoever_is_paused_or_has_no_memory_validates_another_time(new_stage: NewStage) -> None:
    """Rounds are stepped on the host alone during that time."""
    stage = new_stage(validations=1)
    gate = stage.worker.gate

    def pause(should_stop: ShouldStop) -> None:
        gate.pause(Pause.OWNER, "by its owner", 0.0)

    def run_out(should_stop: ShouldStop) -> None:
        raise PassVoided(Cause.MEMORY, "scripted")

    def find_it_taken(should_stop: ShouldStop) -> None:
        raise DeviceTaken("scripted")

    for number, meanwhile in enumerate((pause, run_out, find_it_taken), 1):
        stage.replica.during_evaluation = meanwhile
        stage.step(stage.commit(stage.hold(float(number))))
        gate.resume(Pause.OWNER)
    assert kinds(stage) == ["round", "pass-voided", "round", "round"]
    assert not any("validation_loss" in event for event in stage.told("round"))


def test_the_last_rounds_validation_is_seen_to_its_end(new_stage: NewStage) -> None:
    """The end of the round closes the worker before the validation ends."""
    stage, validating = new_stage(validations=1, last=1), threading.Event()

    def until_closing(should_stop: ShouldStop) -> None:
        validating.set()
        assert stage.worker._closing.wait(WAIT_S)

    stage.replica.during_evaluation = until_closing
    stage.apply(stage.commit(stage.hold(1.0)))
    assert validating.wait(WAIT_S)
    stage.close()
    assert [event["validation_loss"] for event in stage.told("round")] == [5.0]


# ---- what is a peer's own


def test_what_is_its_own_is_saved_every_so_often_and_a_start_goes_on_with_it(stage: Stage) -> None:
    path = stage.snapshots / "own.safetensors"
    stage.replica.own = {"moments": torch.ones(3)}
    stage.step(stage.commit(stage.hold(1.0)))
    assert not path.exists()
    stage.clock.advance(1800.0)
    stage.step(stage.commit(stage.hold(2.0)))
    head, incarnation, arenas = stage.storage.own() or (b"", b"", {})
    assert (head, incarnation) == (stage.journal.head.digest, ME.incarnation)
    assert arenas["moments"].tolist() == [1.0] * 3
    assert path.name not in bytes(stage.blobs.chunk("snapshots", 0, 0)).decode("latin")

    former = MemberCount(ME.peer_id, b"f" * 16, 5, 15.0)
    stage.storage.save_own(stage.replica.own, former.incarnation)
    stage.on_worker(stage.executor.begin)
    assert stage.replica.adopted is not None
    assert stage.replica.adopted[1], "the head is the same"
    stage.replica.own = {}
    commit = stage.commit(stage.hold(3.0))
    stage.step(replace(commit, value=replace(commit.value, contributions=(former,))))
    assert stage.replica.ours == 5, "what that process has offered is ours"
    stage.on_worker(stage.executor.begin)
    assert not stage.replica.adopted[1]

    stage.replica.own = {"moments": torch.zeros(3)}
    stage.close()
    *_, arenas = stage.storage.own() or (arenas,)
    assert not arenas["moments"].any(), "saved at the end"
    path.write_bytes(b"damaged")
    assert stage.storage.own() is None


# ---- under a step


def test_counting_and_validation_go_on_under_the_step(new_stage: NewStage) -> None:
    """Counting and validation wait for the step by themselves, load by load."""
    stage = new_stage(validations=1)
    stage.train()
    stage.passed.clear()
    stage.replica.may_step.clear()
    head = stage.apply(stage.commit(stage.hold(0.25)))
    assert stage.passed.wait(WAIT_S)
    assert stage.on_worker(lambda: stage.replica.sequences) == 8
    assert stage.posted.empty(), "there is no state to tell of yet"
    stage.replica.may_step.set()
    assert stage.next_event() == events.Stepped(head.digest, state_digest(stage.replica.arenas))
    stage.settle()
    assert stage.replica.sequences == 8, "they were counted for the new head"
    assert stage.shared.sequences_at(head.digest) == 8
    assert stage.told("round")[0]["validation_loss"] == 5.0


def test_where_passes_change_weights_of_their_own_validation_waits_for_the_digest(
    new_stage: NewStage,
) -> None:
    """The shared weights are in the place of the peer's own weights during validation."""
    stage, order = new_stage(validations=1), list[str]()
    stage.replica.overlaps, stage.replica.sequences = True, 8
    stage.replica.may_step.clear()
    validating = threading.Event()

    def validate(should_stop: ShouldStop) -> None:
        order.append("validation")
        validating.set()

    stage.replica.during_evaluation = validate
    stage.on_post = lambda event: order.append("digest")
    stage.worker.hold("standing still")
    stage.apply(stage.commit(stage.hold(1.0)))
    assert not validating.wait(0.1), "the step has not ended"
    stage.replica.may_step.set()
    assert isinstance(stage.next_event(), events.Stepped)
    stage.settle()
    assert order == ["digest", "validation"]


def test_a_freeze_that_follows_the_step_at_once_holds(new_stage: NewStage) -> None:
    """Even if the worker is still busy with what the commit gave it to do. So does a result that
    the next round's ring is as quick to make."""
    stage, frozen, held = new_stage(validations=1), threading.Event(), list[bytes]()
    validating = stage.replica.during_evaluation = Halted()

    def go_on(event: Event) -> None:
        if isinstance(event, events.Stepped):  # as the round's thread would
            stage.executor.carry_out(events.Thaw())
            stage.executor.carry_out(events.Freeze(BALLOT))
            held.append(stage.hold(7.0))
            frozen.set()

    stage.on_post = go_on
    stage.train()
    stage.apply(stage.commit(stage.hold(0.25)))
    validating.wait()
    assert frozen.wait(WAIT_S)
    validating.may_end.set()
    assert isinstance(stage.next_event(), events.Stepped)
    assert stage.next_event() == events.Frozen(BALLOT, 0, 0.0)
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
    assert not stage.on_worker(lambda: stage.worker.wanted())
    stage.settle()
    assert stage.serves(f"result/{held[0].hex()}")


def test_the_daemon_may_hold_the_worker_before_anything_new_is_counted(stage: Stage) -> None:
    stage.on_round_begun = lambda: stage.worker.hold("leaving")
    stage.train()
    stage.apply(stage.commit(stage.hold(0.5)))
    assert isinstance(stage.next_event(), events.Stepped)
    stage.executor.carry_out(events.Thaw())
    assert stage.on_worker(lambda: stage.replica.sequences) == 0


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Halted:
    """Snapshots are written when the test lets them."""
    halted, write = Halted(), storage_module.write_snapshot

    def slowly(*arguments: Any) -> None:
        halted()
        write(*arguments)

    monkeypatch.setattr(storage_module, "write_snapshot", slowly)
    return halted


@pytest.mark.parametrize("action", ["step", "catch up"])
def test_what_changes_the_state_waits_for_a_snapshot_and_counting_does_not(
    new_stage: NewStage, writing: Halted, action: str
) -> None:
    stage, found = new_stage(snapshots=1), list[list[int]]()
    stage.train()
    stage.passed.clear()
    first = stage.apply(stage.commit(stage.hold(0.25)))
    stepped = stage.next_event()
    assert isinstance(stepped, events.Stepped)
    writing.wait()
    assert stage.passed.wait(WAIT_S)
    assert stage.freeze() == events.Frozen(BALLOT, 8, 16.0)
    settling, accepted = stage.shared.settled, stage.hold(0.5)

    def wait_for_it() -> None:
        writing.may_end.set()
        Future.result(settling)

    settling.result = wait_for_it  # type: ignore[method-assign, assignment]
    stage.recovery.on_run = lambda: found.append(snapshots(stage))
    if action == "step":
        stage.step(stage.commit(accepted))
        assert stage.replica.steps == [1, 2]
    else:
        stage.executor.carry_out(BEHIND)
        assert isinstance(stage.next_event(), events.CaughtUp)
        assert found == [[1]]
        assert stage.serves(f"result/{accepted.hex()}"), "what is offered is not tidied away"
    written = list_snapshots(stage.snapshots)[-1]
    assert (written.head, written.state_digest) == (first.digest, stepped.state_digest)


def test_a_step_that_breaks_off_in_the_background_ends_the_worker(stage: Stage) -> None:
    stage.replica.step_fails = RuntimeError("the step broke off")
    stage.apply(stage.commit(stage.hold(0.25)))
    assert str(stage.failures.get(timeout=WAIT_S)) == "the step broke off"
    assert stage.posted.empty(), "no state, no digest"
    assert stage.journal.head.round == 1, "a restart finishes it"
    assert stage.stored()


# ---- fetching


def raises(fault: Exception) -> Callable[..., Any]:
    def fail(*asked: object) -> Any:
        raise fault

    return fail


def not_finite(stage: Stage, digest: bytes) -> None:
    wires = torch.full((ELEMENTS,), math.inf).view(torch.uint8)
    stage.results.hold(digest, EncodedMean(wires, torch.tensor([ELEMENTS, wires.numel()])))


@pytest.mark.parametrize("committed", [True, False])
def test_a_fetch_asks_again_for_what_is_not_there_yet(
    stage: Stage, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([raises(PeerRefused(Reason.NOT_FOUND)), raises(OSError("gone"))] * 2)
    monkeypatch.setattr(round_executor, "PAUSE_S", 0.0)
    stage.recovery.on_fetch = lambda digest: next(answers, lambda: stage.hold(1.0))()
    wanted = stage.hold(1.0)
    stage.executor.carry_out(events.FetchResult(wanted, ("a",), committed))
    assert stage.next_event() == events.ResultFetched(wanted, in_memory=True, norm=8.0)


@pytest.mark.parametrize(
    "fetch",
    [raises(MemoryError()), raises(PeerRefused(Reason.NOT_FOUND)), raises(OSError("gone")), None],
    ids=["no memory", "refused", "cut off", "it says nothing: they might be in league"],
)
def test_whatever_ends_a_fetch_the_round_hears_of_it(
    stage: Stage, fetch: Callable[..., Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_executor, "PATIENCE_S", 0.0)
    stage.recovery.on_fetch = fetch or (lambda digest: not_finite(stage, digest))
    stage.executor.carry_out(WANTED)
    assert stage.next_event() == NOT_HERE
    assert kinds(stage) == ["fetch-failed"]


@pytest.mark.parametrize("holds", [True, False])
def test_where_a_chain_leads_is_told_if_it_holds(stage: Stage, holds: bool) -> None:
    stage.recovery.on_chain = (lambda: stage.start) if holds else raises(OSError("gone"))
    stage.executor.carry_out(events.FetchChain("a", 3))
    assert stage.next_event() == events.ChainFetched("a", stage.start if holds else None)


def test_closing_ends_a_fetch_that_would_ask_again(stage: Stage) -> None:
    asked = threading.Event()

    def fail(digest: bytes) -> None:
        asked.set()
        raise ConnectionError("gone")

    stage.recovery.on_fetch = fail
    stage.executor.carry_out(WANTED)
    assert asked.wait(WAIT_S)
    stage.executor.close()
    assert stage.next_event() == NOT_HERE


def test_without_a_thread_to_be_had_the_round_hears_of_a_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        failure = RuntimeError("can't start new thread")
        full.setattr(threading.Thread, "start", lambda thread: raises(failure)())
        stage.executor.carry_out(WANTED)
    assert stage.next_event() == NOT_HERE


def test_a_vote_does_not_outwait_its_attempt() -> None:
    """Else the next attempt is for the same value, though its result is nowhere."""
    assert round_executor.HASTE_S < RoundPatience().holding < round_executor.PATIENCE_S


# ---- catching up, beginning


@pytest.mark.parametrize(
    ("wanted", "moves", "problem", "kept", "written"),
    [
        (BEHIND, False, "lies", True, []),
        (ODD, False, "lies", True, []),
        (BEHIND, False, "", True, []),
        (ODD, False, "", False, [0]),
        (BEHIND, True, "", False, [1]),
    ],
    ids=["nobody helps", "nobody helps the odd", "nothing new", "another state", "a new head"],
)
def test_gradients_are_kept_as_long_as_the_state_that_they_were_counted_with(
    stage: Stage, wanted: events.CatchUp, moves: bool, problem: str, kept: bool, written: list[int]
) -> None:
    """No snapshot of a false state is written: it would replace a good one."""

    def run() -> str:
        if moves:
            commit = stage.commit(b"r" * 32, contributor=STRANGER)
            heads = [stage.start, stage.start.after(commit.value)]
            stage.shared.adopt(stage.replica.arenas, Chain([commit], heads))
        elif wanted.discard and not problem:
            stage.shared.adopt(stage.replica.arenas, Chain([], [stage.start]))
        return problem

    begun: list[int] = []
    stage.on_round_begun = lambda: begun.append(stage.executor.stats.sequences_dropped)
    stage.train()
    stage.recovery.on_run = run
    stage.executor.carry_out(wanted)
    failed = wanted.donors if problem else ()
    caught = stage.next_event()
    head = stage.journal.head
    assert caught == events.CaughtUp(head, state_digest(stage.replica.arenas), failed)
    assert (stage.replica.sequences, stage.shared.head) == (8 * kept, head)
    assert stage.executor.stats.sequences_dropped == 8 * (not kept)
    assert begun == [8] * (not kept), "who leaves learns of it, and trains no further"
    assert snapshots(stage) == written
    assert kinds(stage) == [
        "catching-up", *["catch-up-failed"] * bool(problem), *["caught-up"] * (not kept)
    ]  # fmt: skip


def test_without_any_state_the_digest_is_empty_and_nothing_is_offered(stage: Stage) -> None:
    stage.shared.first = replace(stage.shared.first, initialise=lambda: False)
    assert stage.on_worker(stage.executor.begin) == b""
    stage.recovery.on_run = lambda: "nobody there"
    stage.executor.carry_out(events.CatchUp((), "no-state", discard=True))
    assert stage.next_event() == events.CaughtUp(stage.start, b"")
    assert snapshots(stage) == []
    assert bytes(stage.blobs.chunk("snapshots", 0, 0)) == b""


def test_begin_knows_the_last_loss_and_offers_a_first_snapshot(stage: Stage) -> None:
    result = stage.hold(0.5)
    stage.storage.record(stage.commit(result))
    head = stage.journal.head
    digest = stage.on_worker(stage.executor.begin)
    last = stage.executor.stats.last
    assert last is not None
    assert (last.loss, stage.executor.stats.last_commit_at) == (3.0, None)
    assert stage.replica.steps == [1], "replayed"
    assert digest == state_digest(stage.replica.arenas)
    snapshot = list_snapshots(stage.snapshots)[0]
    assert (snapshot.round, snapshot.state_digest) == (1, digest)
    assert stage.serves(f"state/{head.digest.hex()}")
