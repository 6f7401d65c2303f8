"""A peer from its state on disk to its goodbye: told to leave, beside a twin, asked."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.errors import AllowanceError, ConfigError, IdentityError, ShortageError, StorageError
from atom.daemon.owner.traffic import require_allowance
from atom.daemon.peer.founding import Membership
from atom.daemon.peer.lifecycle import LEAVE_S, Ending, noted_signals
from atom.daemon.peer.peer import SEED_NOTE, Peer
from atom.daemon.peer.reach import TWIN_HINT, TWIN_S, TWIN_WORDS
from atom.swap.voided import Cause, PassVoided
from atom.swarm.addresses import RecentHead, parse_join_address
from atom.swarm.records.lease import PeerState
from atom.training.round.events import CaughtUp
from tests.daemon.peer.small_peer import SMALL_BOX, found_in, small_peer
from tests.daemon.silence import Notes
from tests.daemon.tiny_run import TINY_RUN
from tests.manual_clock import ManualClock


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Membership:
    return found_in(tmp_path_factory.mktemp("founded"), TINY_RUN)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def peer(tmp_path: Path, member: Membership, notes: Notes, clock: ManualClock) -> Iterator[Peer]:
    with small_peer(tmp_path, member, notes, clock) as peer:
        yield peer


def counted(peer: Peer, sequences: int) -> None:
    shared = peer._training.shared
    shared.replica = SimpleNamespace(sequences=sequences, watch=shared.replica.watch)  # type: ignore[assignment]


def events_of(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]


# ---- a whole life


def test_a_peer_trains_its_rounds_says_goodbye_and_goes_on_from_its_disk(
    tmp_path: Path, notes: Notes
) -> None:
    text = TINY_RUN.replace("[run]", "[run]\nrounds = 2")
    member = found_in(tmp_path, text)
    for first in (0, 2):
        with small_peer(tmp_path / "state", member, Notes()) as peer:
            assert peer.run() is Ending.ROUNDS_REACHED
            assert peer.info()["round"] == 2
            directory: Any = peer._reach._directory
        assert directory.published[-1].state is PeerState.LEFT
        assert directory.published[0].round == first, "nothing is shown before it is rebuilt"
    events = events_of(tmp_path / "state")
    told = [each["event"] for each in events]
    assert told.count("round") == 2
    assert told.count("started") == told.count("left") == 2
    assert "stood-still" not in told
    with small_peer(tmp_path / "state", member, notes) as peer:
        peer.leave(5.0)
        assert peer.run() is Ending.LEFT, "before its state is rebuilt"
    assert notes.notes[-1] == "ended at round 2: left; all counted work is committed"
    ends = [each for each in events_of(tmp_path / "state") if each["event"] == "left"]
    assert len({(each["round"], each["head"]) for each in ends}) == 1
    assert ends[0]["digest"] == ends[1]["digest"]


def test_a_seed_stays_after_the_last_round(tmp_path: Path, notes: Notes) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/peer.toml").write_text("[network]\nseed = true\n")
    member = found_in(tmp_path, TINY_RUN.replace("[run]", "[run]\nrounds = 2"))
    with small_peer(tmp_path / "state", member, notes) as peer:
        usual = notes.note

        def note(text: str) -> None:
            usual(text)
            if text == SEED_NOTE:
                peer.leave(None)

        notes.note = note  # type: ignore[method-assign]
        assert peer.run() is Ending.LEFT
        assert peer.info()["round"] == 2


def test_a_peer_tells_what_its_rounds_write(tmp_path: Path) -> None:
    text = TINY_RUN.replace("[run]", "[run]\nrounds = 40")
    wanted = '[sample]\nprompts = ["A peer", "What"]\nevery_rounds = 2\n'
    notes = Notes()
    with small_peer(tmp_path / "state", found_in(tmp_path, text, more=wanted), notes) as peer:
        assert peer.run() is Ending.ROUNDS_REACHED
        sample, directory = peer.info()["sample"], peer._reach._directory
    told = [each for each in events_of(tmp_path / "state") if each["event"] == "sample"]
    assert told
    for each in told:
        assert each["round"] % 2 == 0
        assert each["text"].startswith("What" if each["round"] % 4 == 2 else "A peer")
        assert each["seconds"] >= 0
    assert sample == {"round": told[-1]["round"], "text": told[-1]["text"]}
    shown: Any = directory
    assert shown.published[-1].sample._asdict() == sample
    assert any("writes, in" in note for note in notes.notes)


def test_prompts_that_cannot_be_asked_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sample\.prompts: prompt 1 has 14 tokens"):
        found_in(tmp_path, more='[sample]\nprompts = ["longer than it"]\n')


@pytest.mark.parametrize("owner", ["", "asks", "signals"])
def test_a_peer_whose_month_is_used_up_leaves_in_order(tmp_path: Path, owner: str) -> None:
    member, state, notes = found_in(tmp_path, TINY_RUN), tmp_path / "state", Notes()
    (state / "peer.toml").write_text(f'{SMALL_BOX}per_month = "1 kB"\n')
    with small_peer(state, member, notes) as peer:
        if owner:
            peer._watch_allowance()
        if owner == "asks":
            peer.leave(None)
        elif owner == "signals":
            peer._obey([signal.SIGTERM])
            assert (peer._life.facts.leave_by or 0.0) > peer._life.update().now, "in order"
        ended = peer.run()
        assert peer.info()["traffic"]["per_month_bytes"] == 1000
        published: list[Any] = peer._reach._directory.published  # type: ignore[attr-defined]
    assert ended is (Ending.LEFT if owner else Ending.MONTH_USED)
    assert all(each.state is PeerState.LEFT for each in published[-1:])
    assert any(note.startswith("leaving: the allowance of 1.0 kB a month") for note in notes.notes)
    with pytest.raises(AllowanceError):  # so it does not start
        require_allowance(state / "traffic.json", 1000, datetime.now())


def test_what_a_part_fails_with_ends_the_peer_and_it_says_goodbye(tmp_path: Path) -> None:
    notes = Notes()
    with small_peer(tmp_path / "state", found_in(tmp_path, TINY_RUN), notes) as peer:
        directory: Any = peer._reach._directory
        fault = StorageError("the disk is gone", "look for it")
        notes.note = lambda text: peer._reports.put(fault)  # type: ignore[method-assign]
        with pytest.raises(StorageError) as raised:
            peer.run()
        peer._reports.put(ShortageError("what follows from it"))
    assert raised.value is fault
    assert directory.published[-1].state is PeerState.LEFT
    assert not [each for each in events_of(tmp_path / "state") if each["event"] == "left"]


# ---- leaving


@pytest.mark.parametrize(
    ("syncs", "sequences", "ends"), [(True, 0, True), (True, 4, False), (False, 0, False)]
)
def test_fetching_ends_for_who_has_no_part_in_any_round(
    peer: Peer, notes: Notes, syncs: bool, sequences: int, ends: bool
) -> None:
    counted(peer, sequences)
    if not syncs:
        peer._training.machine.handle(CaughtUp(peer._training.machine.head, b"s" * 32), 0.0)
    peer.leave(None)
    assert peer._training.shared.stop.is_set() is ends
    said = "the fetch is stopped; the received data is kept for the next start"
    assert notes.notes == [said] * ends


def test_a_leaving_peer_settles_once_its_work_is_committed_and_knows_what_was_lost(
    peer: Peer,
) -> None:
    counted(peer, 4)
    peer.leave(None)
    peer._training._on_round_begun()
    peer._look()
    assert peer._life.facts.settled_at is None
    peer._training.executor.stats.sequences_dropped += 4
    counted(peer, 0)
    peer._training._on_round_begun()
    peer._look()
    assert peer._life.facts.settled_at is not None
    assert peer._life.facts.work_dropped


def test_an_earlier_deadline_holds_and_a_later_one_does_not(peer: Peer) -> None:
    counted(peer, 4)
    peer.leave(100.0)
    assert peer.leave(5.0) == "already leaving, now in at most 5 s"
    assert peer.leave(50.0) == peer.leave(None) == "already leaving, in at most 5 s"
    assert peer._life.facts.leave_by == 5.0


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_closed_terminal_asks_to_leave_and_insists_on_nothing(
    peer: Peer, asked_before: bool
) -> None:
    counted(peer, 4)
    if asked_before:
        peer.leave(None)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with noted_signals() as signals:
            for asked, number in enumerate([signal.SIGHUP] * 2 + [signal.SIGTERM] * 2):
                os.kill(os.getpid(), number)
                peer._obey(signals)
                assert peer._life.facts.leave_by == (LEAVE_S if asked < 3 else 0.0)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.timeout(30)
def test_two_signals_between_two_looks_both_count(peer: Peer) -> None:
    counted(peer, 4)
    with noted_signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    peer._obey(signals)
    assert peer._life.facts.leave_by == 0.0


def test_nohup_has_its_way(peer: Peer) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with noted_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            peer._obey(signals)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert peer._life.facts.leave_by is None


# ---- a copied key


@pytest.mark.parametrize("is_new", [True, False])
def test_who_began_later_ends_and_who_was_there_is_told_once(
    peer: Peer, notes: Notes, clock: ManualClock, tmp_path: Path, is_new: bool
) -> None:
    peer._reach.transport.start()
    peer._reach._own, peer._reach._watching_since = peer._status, 0.0
    clock.advance(TWIN_S if is_new else TWIN_S + 1)
    lease, before = peer._status.lease(1), peer._reach.inbox.qsize()
    for serial in range(9):
        twin = SimpleNamespace(**(vars(lease) | {"incarnation": b"t" * 16, "serial": serial}))
        peer._reach._take({peer._box.me.peer_id: twin})  # type: ignore[dict-item]
    assert peer._reach.inbox.qsize() == before + 9, "rounds get leases before the main loop looks"
    assert [each["event"] for each in events_of(tmp_path)] == ["same-identity"]
    with pytest.raises(IdentityError, match=TWIN_WORDS) if is_new else nullcontext():
        peer._take_reports()
    assert notes.notes == ([] if is_new else [f"{TWIN_WORDS}; {TWIN_HINT}"])


# ---- passes


def test_of_many_void_passes_for_one_cause_few_are_said(peer: Peer, notes: Notes) -> None:
    for most in (4, 2, 1):
        peer._training._on_void(
            PassVoided(Cause.MEMORY, "no room", hint=f"at most {most} per pass")
        )
    peer._take_reports()
    assert notes.notes == [
        f"the pass is void, out-of-memory: no room; at most {most} per pass" for most in (4, 2)
    ]


def test_before_its_state_is_rebuilt_it_is_at_the_beginning(peer: Peer, member: Membership) -> None:
    """Figures are available before the start, because metrics may be scraped from then on."""
    told = peer.info()
    assert (told["state"], told["round"], told["digest"]) == ("syncing", 0, "")
    assert told["voters"] == [member.manifest.owner]
    assert told["data_addresses"] == []
    assert json.loads(json.dumps(told)) == told


def test_only_the_owner_s_peer_signs_the_head_in_its_address(peer: Peer) -> None:
    head = parse_join_address(peer.info()["pinned_address"]).head
    assert head == RecentHead(0, peer._training.machine.head.digest)
    peer._reach._entrance = replace(peer._reach._entrance, owner=peer._box.me.peer_id)
    signed = parse_join_address(peer.info()["pinned_address"]).head
    assert signed is not None
    assert signed[:2] == head[:2]
    assert len(signed.signature) == 64
