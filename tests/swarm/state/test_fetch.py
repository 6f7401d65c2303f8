"""A state arrives whole from several donors, whatever some of them do."""

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.errors import PeerRefused, Reason
from atom.swarm.identity import Identity
from atom.swarm.state import arenas
from atom.swarm.state import fetch as fetch_module
from atom.swarm.state.arenas import CHUNK_BYTES, BlobManifest, Piece, PieceQueue, state_digest
from atom.swarm.state.blobs import BlobServer, plain_bytes
from atom.swarm.state.fetch import Wanted, Watch, asking, fetch
from atom.swarm.stream.frames import Pace
from tests.event_list import EventList
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.refusals import refusal
from tests.swarm.trickle import Trickle

SOON = 20.0
CHUNK, CHUNKS = CHUNK_BYTES // 4, 5
STATE_BYTES = (3 * CHUNK + 7) * 4 + CHUNK * 2
NAME = "state/" + "ab" * 32
LEISURE = Pace(slack_s=60.0)
EMPTY = BlobServer(lambda name: None)
Act = Callable[[int, memoryview], memoryview | None]


def state(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "master": torch.randn(3 * CHUNK + 7, generator=generator),
        "moment": torch.randn(CHUNK, generator=generator).bfloat16(),
        "none": torch.empty(0),
    }


DIGEST = state_digest(state())


class Scripted(BlobServer):
    """Server of a state. `act` gets each chunk with its number before it is sent, and may return
    other bytes to send instead."""

    def __init__(self, act: Act = lambda number, chunk: None, seed: int = 0) -> None:
        super().__init__({NAME: state(seed)}.get)
        self._act = act
        self.asked = 0

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        whole = super().chunk(name, arena, chunk)
        self.asked += 1
        return self._act(self.asked - 1, whole) or whole


def lie(number: int, chunk: memoryview) -> memoryview:
    return memoryview(bytes(len(chunk)))


def cut(number: int, chunk: memoryview) -> memoryview:
    return chunk[:-1]


def stumble(number: int, chunk: memoryview) -> None:
    if number % 2 == 0:
        raise PeerRefused(Reason.BUSY)


class Town:
    """Donors around one peer that fetches."""

    def __init__(self) -> None:
        self._network = LocalNetwork()
        self.me = self._network.add()
        self.release = threading.Event()
        self.something_came = threading.Event()
        self.events = EventList()
        self.lies: dict[str, Reason] = {}

    def donor(self, server: BlobServer | None = None, trickle: Trickle | None = None) -> str:
        serve = (server or Scripted()).serve
        return self._network.add(trickle.through(serve) if trickle else serve).peer_id

    def fetch(
        self,
        donors: Sequence[str],
        into: Path | None = None,
        stop: threading.Event | None = None,
        most_bytes: int = 1 << 30,
        pace: Pace | None = None,
    ) -> Mapping[str, int]:
        """Fetch the state, check that it is right, and return the bytes from each donor."""
        wanted = Wanted(NAME, donors, DIGEST, most_bytes, pace)
        fetched = fetch(self.me, wanted, into, stop, Watch(self.progress, self.events, self.lied))
        assert state_digest(fetched) == DIGEST
        told = self.events.events[-1]
        assert told["bytes"] + told["reused_bytes"] >= STATE_BYTES
        return dict(told["from_peers"])

    def progress(self, done: int, total: int) -> None:
        assert done <= total == STATE_BYTES
        if done:
            self.something_came.set()

    def lied(self, donor: str, reason: Reason) -> None:
        self.lies[donor] = reason
        self.release.set()

    def fall_over(self, number: int, chunk: memoryview) -> None:
        """After the first chunk: a connection that is closed at once may take it with it."""
        if number >= 1:
            self.something_came.wait(SOON)
            raise ConnectionError("fell over")

    def stuck(self, number: int, chunk: memoryview) -> None:
        self.release.wait(SOON)

    def close(self) -> None:
        self.release.set()
        self._network.close()


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.setattr(fetch_module, "PAUSE_S", 0.01)
    before = set(threading.enumerate())
    town = Town()
    yield town
    town.close()
    assert set(threading.enumerate()) <= before


def test_liars_strangers_and_the_absent_are_replaced(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MOST_DONORS", 1)
    scripts = [Scripted(act) for act in (lie, cut, town.fall_over)]
    stores = [Scripted(seed=1), *scripts, EMPTY, Scripted()]
    stranger, liar, short, faint, empty, good = donors = [town.donor(each) for each in stores]
    assert town.fetch([Identity.create().peer_id, *donors]).keys() == {faint, good}
    dropped = {event["peer_id"]: event["reason"] for event in town.events.events[:-1]}
    assert dropped[liar] == dropped[stranger] == "hash-mismatch"
    assert dropped[empty] == "not-found"
    assert good not in dropped
    lies = dict.fromkeys([liar, stranger], Reason.HASH_MISMATCH)
    assert town.lies == lies | {short: Reason.MALFORMED}


def test_donors_give_at_the_same_time(town: Town) -> None:
    meet = threading.Barrier(2)

    def together(number: int, chunk: memoryview) -> None:
        assert number or meet.wait(SOON) in (0, 1)

    donors = [town.donor(Scripted(together)) for _ in range(2)]
    assert town.fetch(donors).keys() == set(donors)


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_donor_that_is_stuck_or_trickles_holds_no_other_up(
    town: Town, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """One that trickles never falls silent, and would take minutes for a piece."""
    monkeypatch.setattr(fetch_module, "SILENCE_S", 0.3 if is_silent else 5.0)
    stuck, trickle = Scripted(town.stuck), Trickle(64 * 1024.0)
    slow = town.donor(stuck) if is_silent else town.donor(trickle=trickle)
    good = town.donor()
    assert town.fetch([slow, good]) == {good: STATE_BYTES}


def test_a_donor_may_take_its_time_to_hash_what_it_is_asked_for(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A donor that froze after it was reached is given up: after the time to hash so many bytes, or
    the time for one piece."""
    monkeypatch.setattr(fetch_module, "SILENCE_S", 0.2)
    monkeypatch.setattr(fetch_module, "TRIES", 1)

    class Thinking(Scripted):
        def manifest(self, name: str) -> BlobManifest:
            time.sleep(0.7)  # nothing to wait for: it is at work
            return super().manifest(name)

    donor = town.donor(Thinking())
    for bytes_per_s, piece_s in ((1e9, 9.0), (1e6, 0.2)):
        monkeypatch.setattr(fetch_module, "HASHED_BYTES_PER_S", bytes_per_s)
        monkeypatch.setattr(fetch_module, "_PIECE_S", piece_s)
        assert refusal(lambda: town.fetch([donor], most_bytes=STATE_BYTES)) is Reason.TIMEOUT
    monkeypatch.setattr(fetch_module, "_PIECE_S", 9.0)
    town.fetch([donor], most_bytes=STATE_BYTES)


def test_when_nobody_is_left_the_last_reason_is_told(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(town.fetch, []) is Reason.NOT_FOUND
    assert refusal(town.fetch, [town.donor(Scripted(lie)), town.donor(EMPTY)]) in {
        Reason.NOT_FOUND,
        Reason.HASH_MISMATCH,
    }
    stop, stuck = threading.Event(), town.donor(Scripted(town.stuck))
    stop.set()
    assert refusal(lambda: town.fetch([stuck], stop=stop)) is Reason.SUPERSEDED
    much = town.donor()
    assert refusal(lambda: town.fetch([much], most_bytes=CHUNK_BYTES)) is Reason.TOO_LARGE
    slow = town.donor(trickle=Trickle(1024.0 * 1024))
    quick = Pace(0.5, 1e9)
    assert (
        refusal(lambda: town.fetch([slow], most_bytes=STATE_BYTES, pace=quick)) is Reason.TOO_SLOW
    )
    monkeypatch.setattr(fetch_module, "_PIECE_S", 0.2)
    monkeypatch.setattr(fetch_module, "TRIES", 1)
    assert refusal(town.fetch, [slow]) is Reason.TIMEOUT


def test_a_donor_with_bad_moments_is_asked_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas, "_MOST_OWED", 1)
    town.fetch([town.donor(Scripted(stumble))])


# ---- after an end in the middle


def test_only_what_is_lacking_is_fetched_again(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may also have torn the chunks that had arrived."""
    whole, torn, landed, stop = tmp_path / "whole", tmp_path / "torn", 3, threading.Event()

    def halt(number: int, chunk: memoryview) -> None:
        assert number < landed or town.release.wait(SOON)

    def progress(done: int, total: int) -> None:
        if done == landed * CHUNK_BYTES:
            stop.set()

    donor = town.donor(Scripted(halt))
    with monkeypatch.context() as patch:
        patch.setattr(town, "progress", progress)
        assert refusal(lambda: town.fetch([donor], whole, stop)) is Reason.SUPERSEDED
    town.release.set()
    shutil.copytree(whole, torn)
    with (torn / "arena-0").open("r+b") as file:
        file.write(b"torn")
    left_bytes = STATE_BYTES - landed * CHUNK_BYTES
    for place, lacking_bytes in ((whole, left_bytes), (torn, left_bytes + CHUNK_BYTES)):
        assert town.fetch([donor], into=place) == {donor: lacking_bytes}


# ---- plain bytes


def test_plain_bytes_are_asked_for_whole_as_often_as_one_likes(town: Town) -> None:
    raw = bytes(range(256)) * 1000
    donor = town.donor(BlobServer({"chain": plain_bytes(raw), "empty": plain_bytes(b"")}.get))
    with asking(town.me, donor, LEISURE) as ask:
        assert ask("chain", len(raw)) == raw
        assert ask("empty", 10) == b""
        assert refusal(ask, "nothing", 10) is Reason.NOT_FOUND
        assert refusal(ask, "chain", len(raw) - 1) is Reason.TOO_LARGE


def test_plain_bytes_must_come_at_the_pace_of_all_that_came(town: Town) -> None:
    donor = town.donor(
        BlobServer({"page": plain_bytes(b"x" * 1000)}.get), trickle=Trickle(4000.0, 100)
    )
    with asking(town.me, donor, Pace(3.0, 2000.0)) as ask:
        for _ in range(3):
            assert len(ask("page", 1000)) == 1000, "at twice the pace"
    with asking(town.me, donor, Pace(0.5, 8000.0)) as ask, pytest.raises(TimeoutError):
        assert not [ask("page", 1000) for _ in range(20)]


# ---- which donor is asked for which piece

PIECES: list[Piece] = [(0, number) for number in range(6)]


def test_a_donor_owes_few_pieces_at_a_time_which_others_give_when_it_goes() -> None:
    queue = PieceQueue(deque(PIECES))
    assert [queue.take("a", owed, 0.0) for owed in range(5)] == [*PIECES[:4], None]
    assert queue.arrived((0, 0))
    assert not queue.arrived((0, 0)), "a second copy does not count"
    assert queue.take("a", 3, 0.0) == (0, 4)
    queue.drop("a", PIECES[1:5])
    assert queue.missing == 5
    assert [queue.take("b", owed, 0.0) for owed in range(4)] == PIECES[1:5], "owed: first again"


def test_an_idle_donor_takes_over_what_is_overdue_last_first_and_once() -> None:
    queue = PieceQueue(deque(PIECES[:2]))
    assert [queue.take("slow", number, 0.0) for number in range(2)] == PIECES[:2]
    assert queue.take("b", 0, 0.5) is None, "not overdue yet"
    assert queue.take("b", 1, 2.0) is None, "it has something to do"
    assert queue.take("slow", 0, 2.0) is None, "it was asked for all of them"
    assert queue.take("b", 0, 2.0) == (0, 1)
    assert queue.take("c", 0, 9.0) == (0, 0)
    assert queue.take("d", 0, 9.0) is None, "two copies at most"
    queue.drop("slow", PIECES[:2])
    assert queue.missing == 2
    assert queue.arrived((0, 1))
    assert queue.arrived((0, 0))
    assert queue.missing == 0
