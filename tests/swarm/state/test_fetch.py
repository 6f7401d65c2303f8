"""A state arrives whole from several donors, whatever some of them do."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.errors import MismatchError, PeerRefused, StorageError
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.state import blobs
from atom.swarm.state import fetch as fetch_module
from atom.swarm.state.arenas import CHUNK_BYTES, BlobManifest, Tick, state_digest
from atom.swarm.state.blobs import BlobServer, BlobStore, plain_bytes
from atom.swarm.state.fetch import Wanted, Watch, asking, fetch
from atom.swarm.state.fetch_target import Piece, PieceQueue, Target
from atom.swarm.stream.bandwidth import TransferThrottle
from atom.swarm.stream.frames import Channel, Pace
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport
from tests.swarm.local_transport import LocalNetwork, LocalTransport
from tests.swarm.refusals import refusal
from tests.swarm.shelf import Shelf
from tests.swarm.trickle import Trickle

SOON = 20.0
STATE_BYTES = (3 * CHUNK_BYTES // 4 + 7) * 4 + CHUNK_BYTES // 4 * 2
NAME = "state/" + "ab" * 32
CHUNK = CHUNK_BYTES // 4
LEISURE = Pace(slack_s=60.0)


def state(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "master": torch.randn(3 * CHUNK + 7, generator=generator),
        "moment": torch.randn(CHUNK, generator=generator).bfloat16(),
        "none": torch.empty(0),
    }


class Scripted(Shelf):
    """Serves a state. `act` sees the number of each chunk before it is given: what it returns is
    given in its place, if anything."""

    def __init__(
        self,
        act: Callable[[int, memoryview], memoryview | None] = lambda number, chunk: None,
        seed: int = 0,
    ) -> None:
        super().__init__({NAME: state(seed)})
        self._act = act
        self.asked = 0

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        whole = super().chunk(name, arena, chunk)
        self.asked += 1
        return self._act(self.asked - 1, whole) or whole


def lie(number: int, chunk: memoryview) -> memoryview:
    return memoryview(bytes(len(chunk)))


def gives(most: int) -> Callable[[int, memoryview], None]:
    def act(number: int, chunk: memoryview) -> None:
        if number >= most:
            raise ConnectionError("fell over")

    return act


class Town:
    """Donors around one peer that fetches."""

    def __init__(self, kind: str) -> None:
        self._network = LocalNetwork()
        self._kind = kind
        self.transports: list[Transport] = []
        self.me = self._add(None)
        self.release = threading.Event()
        self.events = EventList()

    def donor(
        self, store: BlobStore | None = None, throttle: TransferThrottle | None = None
    ) -> str:
        transport = self._add(BlobServer(store or Scripted(), throttle=throttle).serve)
        host, port = transport.address
        self.me.set_addresses(transport.peer_id, [f"{host}:{port}"])
        return transport.peer_id

    def fetch(
        self, donors: Sequence[str], into: Path | Mapping[str, Tensor] | None = None, **how: object
    ) -> Target:
        """The state, into arenas of its form unless told; it is the right one."""
        wanted = Wanted(NAME, donors, state_digest(state()), 1 << 30)
        watch = how.pop("watch", Watch(events=self.events))
        arenas = {name: torch.zeros_like(each) for name, each in state().items()}
        place = arenas if into is None else into
        fetched = fetch(self.me, wanted, place, watch=watch, **how)  # type: ignore[arg-type]
        assert fetched.arenas.keys() == state().keys()
        assert all(torch.equal(fetched.arenas[name], each) for name, each in state().items())
        return fetched

    def stuck(self, number: int, chunk: memoryview) -> None:
        self.release.wait(SOON)

    def close(self) -> None:
        self.release.set()
        for transport in self.transports:
            transport.close()

    def _add(self, serve: Callable[[Channel], None] | None) -> Transport:
        identity, incarnation = Identity.create(), bytes([len(self.transports)]) * 16
        transport: Transport = (
            Transport(Local(identity, bytes(32), incarnation), ("127.0.0.1", 0), EventList())
            if self._kind == "tcp"
            else LocalTransport(self._network, identity, incarnation, EventList())
        )
        transport.set_handlers(on_blobs=serve)
        transport.start()
        self.transports.append(transport)
        return transport


@pytest.fixture(params=["local", "tcp"])
def town(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    yield from towns(request.param, monkeypatch)


@pytest.fixture
def local_town(monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    yield from towns("local", monkeypatch)


def towns(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.setattr(fetch_module, "PAUSE_S", 0.01)
    before = set(threading.enumerate())
    town = Town(kind)
    yield town
    town.close()
    assert set(threading.enumerate()) <= before


def test_a_state_comes_from_several_donors(town: Town) -> None:
    donors = [town.donor() for _ in range(3)]
    steps: list[tuple[int, int]] = []
    fetched = town.fetch(donors, watch=Watch(lambda *step: steps.append(step)))
    assert max(steps) == (STATE_BYTES, STATE_BYTES)
    assert fetched.reused_bytes == 0


def test_liars_strangers_and_the_absent_are_replaced(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MOST_DONORS", 1)
    donors = [
        Identity.create().peer_id,
        town.donor(Scripted(lie)),
        town.donor(Scripted(seed=1)),
        town.donor(Shelf()),
        town.donor(Scripted(gives(1))),
        town.donor(),
    ]
    town.fetch(donors)
    dropped = {event["peer_id"]: event["reason"] for event in town.events.events}
    assert dropped[donors[1]] == dropped[donors[2]] == "hash-mismatch"
    assert dropped[donors[3]] == "not-found"
    assert donors[5] not in dropped


def test_a_stuck_donor_does_not_hold_the_others_up(
    local_town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "SILENCE_S", 0.3)
    local_town.fetch([local_town.donor(Scripted(local_town.stuck)), local_town.donor()])


@pytest.mark.parametrize("says_so", [True, False])
def test_a_donor_may_take_its_time_for_the_manifest_if_it_says_so(
    town: Town, monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    """It reads a large snapshot; or it was frozen just after it was reached."""
    monkeypatch.setattr(blobs, "_STILL_S", 0.1)
    monkeypatch.setattr(fetch_module, "SILENCE_S", 0.5)

    class Thinking(Scripted):
        def manifest(self, name: str, tick: Tick = lambda: None) -> BlobManifest:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                time.sleep(0.05)  # nothing to wait for: it is at work
                if says_so:
                    tick()
            return super().manifest(name, tick)

    donor = town.donor(Thinking())
    if says_so:
        town.fetch([donor])
    else:
        assert refusal(town.fetch, [donor]) is Reason.TIMEOUT


def test_a_trickling_donor_holds_nobody_up_for_long(local_town: Town) -> None:
    """It never falls silent, and would take minutes for a piece."""
    donors = [local_town.donor(throttle=Trickle(64 * 1024.0)), local_town.donor()]
    assert local_town.fetch(donors).given_bytes == {donors[1]: STATE_BYTES}


def test_a_donor_too_slow_for_a_piece_is_given_up(
    local_town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_PIECE_S", 0.2)
    monkeypatch.setattr(fetch_module, "TRIES", 1)
    donor = local_town.donor(throttle=Trickle(1024.0 * 1024))
    assert refusal(local_town.fetch, [donor]) is Reason.TIMEOUT


def test_a_donor_with_a_bad_moment_is_asked_again(local_town: Town) -> None:
    def stumble(number: int, chunk: memoryview) -> None:
        if number in {0, 2, 3}:
            raise PeerRefused(Reason.BUSY)

    local_town.fetch([local_town.donor(Scripted(stumble))])


def test_what_a_liar_costs_is_told(local_town: Town) -> None:
    lies: list[tuple[str, Reason]] = []

    def note(donor: str, reason: Reason) -> None:
        lies.append((donor, reason))
        local_town.release.set()

    liar, late = local_town.donor(Scripted(lie)), local_town.donor(Scripted(local_town.stuck))
    fetched = local_town.fetch([liar, late], watch=Watch(on_lie=note))
    assert lies == [(liar, Reason.HASH_MISMATCH)]
    assert fetched.given_bytes == {late: STATE_BYTES}


def test_when_nobody_is_left_the_last_reason_is_told(local_town: Town) -> None:
    stop = threading.Event()
    stop.set()
    assert refusal(local_town.fetch, []) is Reason.NOT_FOUND
    nothing, liar = local_town.donor(Shelf()), local_town.donor(Scripted(lie))
    assert refusal(local_town.fetch, [nothing]) is Reason.NOT_FOUND
    assert refusal(local_town.fetch, [liar]) is Reason.HASH_MISMATCH
    stuck = local_town.donor(Scripted(local_town.stuck))
    assert refusal(lambda: local_town.fetch([stuck], stop=stop)) is Reason.SUPERSEDED


def test_a_promise_of_too_much_is_refused(local_town: Town) -> None:
    wanted = Wanted(NAME, [local_town.donor()], state_digest(state()), CHUNK_BYTES)
    assert refusal(fetch, local_town.me, wanted, state()) is Reason.TOO_LARGE


def test_an_interrupted_fetch_resumes_on_disk(local_town: Town, tmp_path: Path) -> None:
    first, whole = local_town.donor(Scripted(gives(2))), Scripted()
    with pytest.raises(PeerRefused):
        local_town.fetch([first], into=tmp_path)
    assert local_town.fetch([local_town.donor(whole)], into=tmp_path).reused_bytes > 0
    assert whole.asked < 5  # of five chunks


def test_a_rejoining_peer_fetches_only_what_changed(local_town: Town) -> None:
    mine, store = state(), Scripted()
    mine["master"][CHUNK + 1] += 1
    fetched = local_town.fetch([local_town.donor(store)], into=mine)
    assert store.asked == 1
    assert fetched.arenas["master"].data_ptr() == mine["master"].data_ptr()


def test_what_does_not_fit_here_is_said(local_town: Town, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    donor = local_town.donor()
    with pytest.raises(MismatchError, match="moment"):
        local_town.fetch([donor], into={"master": state()["master"]})
    with pytest.raises(StorageError):
        local_town.fetch([donor], into=tmp_path / "file")


def test_a_state_that_comes_too_slowly_is_given_up(local_town: Town) -> None:
    """Something comes all the time, and it would take for ever."""
    donors = [local_town.donor(throttle=Trickle(64 * 1024.0))]
    quick = Wanted(NAME, donors, state_digest(state()), STATE_BYTES, Pace(0.5, 1e9))
    into = {name: torch.zeros_like(each) for name, each in state().items()}
    assert refusal(fetch, local_town.me, quick, into) is Reason.TOO_SLOW


def test_plain_bytes_are_asked_for_whole_as_often_as_one_likes(town: Town) -> None:
    raw = bytes(range(256)) * 1000
    donor = town.donor(Shelf({"chain": plain_bytes(raw), "empty": plain_bytes(b"")}))
    with asking(town.me, donor, LEISURE) as ask:
        assert ask("chain", len(raw)) == raw
        assert ask("empty", 10) == b""
        assert refusal(ask, "nothing", 10) is Reason.NOT_FOUND
        assert refusal(ask, "chain", len(raw) - 1) is Reason.TOO_LARGE


def test_plain_bytes_must_come_at_the_pace_of_all_that_came(local_town: Town) -> None:
    donor = local_town.donor(
        Shelf({"page": plain_bytes(b"x" * 1000)}), throttle=Trickle(4000.0, 100)
    )
    with asking(local_town.me, donor, Pace(3.0, 2000.0)) as ask:
        for _ in range(3):
            assert len(ask("page", 1000)) == 1000, "at twice the pace"
    with asking(local_town.me, donor, Pace(0.5, 8000.0)) as ask, pytest.raises(TimeoutError):
        assert not [ask("page", 1000) for _ in range(20)]


# ---- which donor is asked for which piece

PIECES: list[Piece] = [(0, number) for number in range(6)]


def test_a_donor_owes_few_pieces_at_a_time() -> None:
    queue = PieceQueue(deque(PIECES))
    assert [queue.take("a", owed, 0.0, most=2) for owed in range(3)] == [(0, 0), (0, 1), None]
    assert queue.landed((0, 0))
    assert not queue.landed((0, 0)), "a second copy does not count"
    assert queue.take("a", 1, 0.0, most=2) == (0, 2)
    assert queue.missing == 5


def test_what_a_gone_donor_owed_comes_first() -> None:
    queue = PieceQueue(deque(PIECES))
    owed = [queue.take("a", number, 0.0) for number in range(3)]
    queue.landed((0, 0))
    queue.drop("a", [piece for piece in owed[1:] if piece])
    assert [queue.take("b", number, 0.0) for number in range(3)] == PIECES[1:4]


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
    assert queue.landed((0, 1))
    assert queue.landed((0, 0))
    assert queue.missing == 0
