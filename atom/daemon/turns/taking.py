"""A daemon's part in the turns on its device: it looks at the board, and does what that says."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from atom.base.clock import Clock
from atom.base.errors import StorageError
from atom.base.events import EventSink, NoEvents
from atom.config.peer_file import Device
from atom.daemon.turns import rules
from atom.daemon.turns.board import Board, Claim, Wish
from atom.daemon.turns.board_file import BoardBusy, BoardFile, PlaceTaken
from atom.daemon.turns.rules import Standing
from atom.daemon.turns.shown import shown_runs

LOOK_S = 0.5
BUSY_S = 0.05
IDLE_S = 5.0
"""Who has had nothing to compute for so long lets others have the device."""
PLACE_S, PLACE_TRIES = 0.5, 120
"""How long is waited for the end of a daemon that lost its state directory: it may be slow."""
_WAS_HERE = "still runs with a state directory that was here and is gone"
UNREADABLE_S = 30.0
"""A board that could not be looked at for so long keeps nobody from the device."""


class Seat(Protocol):
    """The part of `atom.daemon.owner.pauses.Pauses` that is needed here."""

    def give_device(self, holder: str) -> bool: ...
    def take_device(self) -> None: ...


class Trainer(Protocol):
    """The part of `atom.daemon.peer.life.Life` that is needed here. Called from any thread."""

    def turn_wish(self) -> Wish: ...
    def counted(self) -> int: ...
    def fail(self, failure: BaseException) -> None: ...


@dataclass(frozen=True)
class Contender:
    """Whose turns these are."""

    run: str
    """Its name, and with it its owner: see `run_key`."""
    place: str
    """The state directory."""
    device: str
    """In the file's name, and in `atom info`."""


def run_key(name: str, owner: str) -> str:
    return f"{name}/{owner}"


class DeviceTurns:
    """`serve`, `retune`, `end_of_round` and `figures` may be called from any thread."""

    def __init__(self, file: BoardFile, who: Contender, terms: Device, clock: Clock) -> None:
        self._file, self._who, self._terms, self._clock = file, who, terms, clock
        self._lock = threading.Lock()
        self._closing, self._has_it = threading.Event(), threading.Event()
        self._board = Board()
        self._seat: Seat | None = None
        self._trainer: Trainer | None = None
        self._events: EventSink = NoEvents()
        self._note: Callable[[str], None] = lambda text: None
        self._failure: BaseException | None = None
        self._since_s = self._worked_at_s = clock.now()
        self._giving = False
        """It was to give the device, and its pass still needs it: no further one begins."""
        self._blind_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)

    def begin(self, note: Callable[[str], None]) -> None:
        """Returns when the device may be set up: at once, unless another run has it. Raises:
        StorageError if the place of this daemon's state directory on the board does not come free;
        what a look fails with."""
        self._note = note
        self._await_place()
        self.look()
        self._thread.start()
        if not self._has_it.is_set():
            note(f"{self._holder()} has the device ({self._who.device}): waiting for a turn")
            self._has_it.wait()
        if self._failure is not None:
            raise self._failure

    def serve(self, seat: Seat, trainer: Trainer, events: EventSink) -> None:
        """It is set up: from now on turns come and go, as `trainer` wants the device."""
        self._events, self._trainer, self._seat = events, trainer, seat
        if self._failure is not None:
            trainer.fail(self._failure)

    def retune(self, terms: Device) -> None:
        """Another share, or other slots, hold from now on."""
        self._terms = terms
        self.look()

    def end_of_round(self) -> None:
        """Nothing is counted now, and no pass runs: the moment to let others have the device."""
        self.look(round_ended=True)

    def look(self, round_ended: bool = False) -> bool:
        """Whether the board could be looked at."""
        with self._lock:
            try:
                self._look(round_ended)
            except OSError as problem:
                self._blind(problem)
                return False
            self._blind_since_s = None
            return True

    def figures(self) -> Mapping[str, Any]:
        """For `atom info`: the daemons of this device, as they were seen last."""
        return {
            "device": self._who.device,
            "runs": shown_runs(self._board, self._clock.now()),
        }

    def close(self) -> None:
        """The device is free for the others."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._seat is not None:
                self._seat.give_device("nobody")
            with contextlib.suppress(OSError):  # they see that we are gone when this process is
                self._file.look(self._left, self._clock.now())
            self._file.leave()

    def _await_place(self) -> None:
        """A daemon whose state directory was deleted ends, but not at once, and another may begin
        in its place meanwhile. Raises: StorageError."""
        holder: PlaceTaken | None = None
        for _ in range(PLACE_TRIES):
            try:
                self._file.enter()
            except PlaceTaken as taken:
                if holder is None:
                    self._note(f"{taken.holder} {_WAS_HERE}: waiting for its end")
                holder = taken
                self._closing.wait(PLACE_S)
            except OSError:
                return  # the look will tell
            else:
                return
        assert holder is not None
        end_it = f"end it, `kill {holder.process}`," if holder.process else "end it,"
        raise StorageError(
            f"{holder.holder} {_WAS_HERE}, and does not end",
            f"{end_it} then start again; or choose another directory: --state DIR",
        )

    # ---- on whichever thread looks, one at a time

    def _look(self, round_ended: bool) -> None:
        self._post()
        now = self._clock.now()
        verdict = rules.standing(self._board, self._file.member, now, round_ended)
        if verdict is Standing.MAY:
            if not self._works:
                self._take()
                self._post()
        elif self._seat is not None:
            given_back = self._seat.give_device(self._holder())
            self._giving = self._has_it.is_set() and not given_back
            if given_back and self._has_it.is_set():
                self._given(round_ended)
                self._post()

    @property
    def _works(self) -> bool:
        return self._has_it.is_set() and not self._giving

    def _post(self) -> None:
        self._file.enter()
        now = self._clock.now()
        claim = self._claim(now)

        def change(board: Board, alive: Any) -> Board:
            return rules.looked(board, self._file.member, claim, alive, now)

        self._board = self._file.look(change, now)

    def _claim(self, now: float) -> Claim:
        wish = Wish.SET_UP if self._trainer is None else self._trainer.turn_wish()
        if wish is not Wish.NOTHING:
            self._worked_at_s = now
        elif self._has_it.is_set() and now - self._worked_at_s < IDLE_S:
            wish = Wish.TRAINING
        share, slot_s, holds = self._terms.share, self._terms.slot_s, self._has_it.is_set()
        return Claim(self._who.run, self._who.place, share, slot_s, wish, now, holds)

    def _take(self) -> None:
        """Or keeps what it was to give, and need not any more."""
        if self._seat is not None:
            self._seat.take_device()
        if self._giving:
            self._giving = False
            return
        self._has_it.set()
        now = self._clock.now()
        if self._seat is not None:
            self._events.emit("turn-began", waited_s=round(now - self._since_s, 1))
        self._since_s = now

    def _given(self, round_ended: bool) -> None:
        self._has_it.clear()
        now = self._clock.now()
        seconds = round(now - self._since_s, 1)
        counted = 0 if self._trainer is None else self._trainer.counted()
        self._events.emit(
            "turn-ended", seconds=seconds, with_round=round_ended, mini_batches=counted
        )
        self._since_s = now

    def _holder(self) -> str:
        turn = self._board.turn
        if turn is None or turn.run == self._who.run:
            return "another run"
        return f"the run {turn.run.partition('/')[0]}"

    def _left(self, board: Board, alive: Any) -> Board:
        return rules.left(board, self._file.member, self._clock.now())

    def _blind(self, problem: OSError) -> None:
        """Better to share the device unfairly than not to train. Counted from the first look that
        failed: a machine that slept may find somebody else looking when it wakes."""
        now = self._clock.now()
        if self._blind_since_s is None:
            self._blind_since_s = now
        patient = self._seat is not None or isinstance(problem, BoardBusy)
        if patient and now - self._blind_since_s < UNREADABLE_S:
            return
        if not self._works:
            self._events.emit("turns-unreadable", detail=str(problem))
            self._note(f"no turns are taken on the device: {problem}")
            self._take()

    # ---- the thread

    def _run(self) -> None:
        looked = True
        try:
            while not self._closing.wait(LOOK_S if looked else BUSY_S):
                looked = self.look()
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._failure = failure
            if self._trainer is not None:
                self._trainer.fail(failure)
            self._has_it.set()
