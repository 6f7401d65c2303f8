"""A daemon's part in the turns on its device: it looks at the others' claims, and does what the
rules say."""

import platform
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from atom.base.clock import Clock
from atom.base.events import EventSink
from atom.config.peer_file import Device
from atom.config.places import base_folder
from atom.daemon.extensions import Seat, Trainer, Turns
from atom.daemon.model.devices import named_devices
from atom.extras.turns.claims import (
    HAS_IT,
    NOT_NOW,
    WAITS,
    Claim,
    ClaimFile,
    claims_in,
    may_take,
    must_give,
)

LOOK_S = 0.5
IDLE_S = 5.0
"""Who has had nothing to compute for so long lets others have the device."""
UNREADABLE_S = 30.0
"""Claims that could not be looked at for so long keep nobody from the device."""


@dataclass(frozen=True)
class _SetUp:
    """What is there once the daemon is set up."""

    seat: Seat
    trainer: Trainer
    events: EventSink


class DeviceTurns(Turns):
    """`serve`, `retune`, `end_of_round` and `figures` may be called from any thread."""

    def __init__(self, folder: Path, claim: Claim, clock: Clock) -> None:
        """`folder`: of the machine. `claim`: as it waits."""
        self._file, self._mine, self._clock = ClaimFile(folder), claim, clock
        self._device = ", ".join(claim.devices)
        self._lock = threading.Lock()
        self._closing, self._begun = threading.Event(), threading.Event()
        self._claims: list[Claim] = []
        self._set_up: _SetUp | None = None
        self._note: Callable[[str], None] = lambda text: None
        self._failure: BaseException | None = None
        self._worked_at_s = clock.now()
        self._works = self._giving = False
        """Passes may begin; it is to give the device, and its pass still needs it."""
        self._blind_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)

    def begin(self, note: Callable[[str], None]) -> None:
        """Returns when the device may be set up: at once, unless another run has it. Raises: what
        a look fails with."""
        self._note = note
        self.look()
        self._thread.start()
        if not self._begun.is_set():
            holder = _holder_of(self._claims)
            note(f"{holder} has the device ({self._device}): waiting for a turn")
            self._begun.wait()
        if self._failure is not None:
            raise self._failure

    def serve(self, seat: Seat, trainer: Trainer, events: EventSink) -> None:
        """It is set up: from now on turns come and go, as `trainer` wants the device."""
        self._set_up = _SetUp(seat, trainer, events)
        if self._failure is not None:
            trainer.fail(self._failure)

    def retune(self, terms: Device) -> None:
        """Other slots hold from now on."""
        with self._lock:
            self._mine = replace(self._mine, slot_s=terms.slot_s)
        self.look()

    def end_of_round(self) -> None:
        """Nothing is counted now, and no pass runs: the moment to let others have the device."""
        self.look(round_ended=True)

    def look(self, round_ended: bool = False) -> None:
        with self._lock:
            try:
                self._look(round_ended)
            except OSError as problem:
                self._blind(problem)
            else:
                self._blind_since_s = None

    def figures(self) -> Mapping[str, Any]:
        """For `atom info`: the daemons of this device, as they were seen last."""
        now = self._clock.now()
        claims = sorted(self._claims, key=lambda claim: (claim.run, claim.place))
        return {"device": self._device, "runs": [_row(claim, now) for claim in claims]}

    def close(self) -> None:
        """The device is free for the others."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._set_up is not None:
                self._set_up.seat.give_device("nobody")
            self._file.leave()

    # ---- on whichever thread looks, one at a time

    def _look(self, round_ended: bool) -> None:
        """What is given is free before the claim says so; what is taken is claimed before."""
        before = self._mine

        def decide(others: Mapping[str, Claim]) -> Claim:
            return self._decided(list(filter(before.meets, others.values())), round_ended)

        seen = self._file.look(decide)
        self._claims = list(filter(before.meets, seen.values()))
        self._mine = seen[""]  # only once it is written: others go by that
        if self._mine.turn == HAS_IT and not self._giving:
            self._take(is_new=before.turn != HAS_IT)

    def _decided(self, others: list[Claim], round_ended: bool) -> Claim:
        mine, now, there = self._mine, self._clock.now(), self._set_up
        wants = there is None or there.trainer.wants_device()
        self._worked_at_s = now if wants else self._worked_at_s
        resting = WAITS if wants else NOT_NOW
        if mine.turn != HAS_IT:
            mine = replace(mine, turn=resting)  # its place in the queue stays
            takes = wants and may_take(mine, others, now)
            return replace(mine, turn=HAS_IT, since_s=now) if takes else mine
        idle = now - self._worked_at_s >= IDLE_S
        self._giving = there is not None and must_give(mine, others, now, round_ended, idle)
        if there is None or not self._giving or not self._given(there, others, round_ended):
            return mine
        return replace(mine, turn=resting, since_s=now)

    def _take(self, is_new: bool) -> None:
        """Or keeps what it was to give, and need not any more."""
        if not self._works and self._set_up is not None:
            self._set_up.seat.take_device()
            if is_new:
                self._set_up.events.emit("turn-began")
        self._works = True
        self._begun.set()

    def _given(self, there: _SetUp, others: list[Claim], round_ended: bool) -> bool:
        """Whether the device is free now: a pass under way may need it until it ends."""
        self._works = False
        following = [claim for claim in others if claim.turn != NOT_NOW]
        holder = min(following, key=lambda claim: claim.since_s, default=None)
        if not there.seat.give_device(_named(holder)):
            return False
        self._giving = False
        seconds = round(self._clock.now() - self._mine.since_s, 1)
        counted = there.trainer.counted()
        there.events.emit("turn-ended", seconds=seconds, with_round=round_ended, sequences=counted)
        return True

    def _blind(self, problem: OSError) -> None:
        """Better to share the device unfairly than not to train. Counted from the first look that
        failed: a machine that slept may find somebody else looking when it wakes."""
        now = self._clock.now()
        if self._blind_since_s is None:
            self._blind_since_s = now
        patient = self._set_up is not None or isinstance(problem, BlockingIOError)
        if patient and now - self._blind_since_s < UNREADABLE_S:
            return
        if not self._works:
            self._note(f"no turns are taken on the device: {problem}")
            is_new, self._giving = self._mine.turn != HAS_IT, False
            self._mine = replace(self._mine, turn=HAS_IT, since_s=now) if is_new else self._mine
            self._take(is_new)

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._closing.wait(LOOK_S):
                self.look()
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._failure = failure
            if self._set_up is not None:
                self._set_up.trainer.fail(failure)
            self._begun.set()


def open_turns(device: Device, state: Path, run: str, owner: str, clock: Clock) -> DeviceTurns:
    """The turns of the daemon in `state`. Starts nothing."""
    names = device_names(device.use)
    claim = Claim(f"{run}/{owner}", str(state), device.slot_s, WAITS, clock.now(), names)
    return DeviceTurns(machine_folder(), claim, clock)


def machine_folder() -> Path:
    """Of this machine's claims: homes may be shared by machines."""
    return base_folder("state") / "turns" / (platform.node() or "here")


def awaited_turn(place: Path) -> str | None:
    """Whose turn the daemon with that state directory waits for, before it is set up; None: it is
    in no queue."""
    claims = list(claims_in(machine_folder()))
    own = [claim for claim in claims if claim.place == str(place) and claim.turn == WAITS]
    for mine in own:
        holder = _holder_of(filter(mine.meets, claims))
        return f"{holder} has the device ({', '.join(mine.devices)})"
    return None


def device_names(use: Sequence[str]) -> tuple[str, ...]:
    """Of [device] use, each once. The same for all programs of this machine, whichever GPUs they
    see: "cpu", "GPU-…". What the replica will refuse counts as the processor here."""
    return tuple(dict.fromkeys(map(_name, named_devices(use))))


def _name(device: torch.device) -> str:
    if device.type == "cpu" or device.index >= torch.cuda.device_count():
        return "cpu"
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def own_row(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Of what `atom info` shows, the row of that daemon; None: it has not looked yet."""
    rows, place = info["device_turns"]["runs"], info["state_directory"]
    return next((row for row in rows if row["state_directory"] == place), None)


def _holder_of(claims: Iterable[Claim]) -> str:
    return _named(next((claim for claim in claims if claim.turn == HAS_IT), None))


def _named(claim: Claim | None) -> str:
    return "another run" if claim is None else f"the run {claim.run.partition('/')[0]}"


def _row(claim: Claim, now: float) -> Mapping[str, Any]:
    name, _, owner = claim.run.partition("/")
    return {
        "run": name,
        "owner": owner,
        "turn": claim.turn,
        "since_s": round(max(now - claim.since_s, 0.0), 1),
        "state_directory": claim.place,
    }
