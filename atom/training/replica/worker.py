"""Thread that owns the replica: it runs pass after pass, and executes commands between passes.

All code that uses the model's memory runs on this thread, so a command never meets a half finished
pass. A freeze is therefore answered at the next pass boundary. A pause does not wait for it: the
running pass is cancelled, unless that would lose gradients of earlier passes.
"""

import queue
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from atom.base.clock import Clock
from atom.base.errors import ShortageError
from atom.models.data.samples import PiecesMissing, Samples
from atom.swap.engine import PassCancelled
from atom.swap.voided import PassVoided, is_out_of_memory
from atom.swarm.chain.commit import Head
from atom.training.replica.engines import DeviceTaken, ReplicaEngines
from atom.training.replica.pacing import (
    Pass,
    SwarmCount,
    next_pass,
    sequences_per_s,
    usual_pass_seconds,
)
from atom.training.replica.replica import Replica

Batch = dict[str, torch.Tensor]
STARTING = "starting"
"""Reason of the hold that keeps a starting peer from training until the daemon releases it."""
RETRY_S = 10.0
"""Seconds between two attempts if device memory is taken or training text is missing."""


class Pause(StrEnum):
    """Reason why a peer may not use its device; of several, the first one here is shown."""

    OWNER = "owner"
    SCHEDULE = "schedule"
    """Time of day, battery, or use of the machine, as [schedule] in the peer file says."""


class RunGate:
    """Gate that decides whether passes may use the device.

    - *paused*: the device is left to other programs. The running pass is cancelled if that loses no
      earlier pass, and the device memory is freed.
    - *device taken*: the memory was freed, and another program uses it now.
    """

    def __init__(self, engines: ReplicaEngines, wake: Callable[[], None]) -> None:
        """Begin without pauses.

        Args:
            engines: Engines whose memory is freed during pauses.
            wake: Called when a pause has ended.
        """
        self._engines = engines
        self._wake = wake
        self._lock = threading.Lock()
        self._pauses: dict[Pause, str] = {}
        self.device_taken = self.text_missing = False
        """Flags: another program has the device memory; text of the next samples is missing.

        Written by the thread that runs passes.
        """
        self.why_no_text: Callable[[], str] = str
        """Function that returns why text is missing, for people; empty: there is no reason yet."""

    def pause(self, reason: Pause, words: str, wait_s: float) -> bool:
        """Keep passes from the device until `resume(reason)`. Thread-safe.

        Args:
            reason: Kind of pause.
            words: Explanation for people.
            wait_s: Seconds to wait until the device memory is free.

        Returns:
            True if the memory was freed in time; a pass that may not be cancelled uses it until its
            end.
        """
        with self._lock:
            self._pauses[reason] = words
            return self._engines.preempt(wait_s)

    def resume(self, *reasons: Pause) -> None:
        """End these pauses; passes may run if no other pause is left. Thread-safe."""
        with self._lock:
            for reason in reasons:
                self._pauses.pop(reason, None)
            if not self._pauses:
                self._engines.resume()
        self._wake()

    def why_paused(self, *reasons: Pause) -> str:
        """Return the explanation of the first active pause; empty if there is none. Thread-safe.

        Args:
            reasons: Kinds of pause to consider, in this order; none: all kinds.
        """
        return next(filter(None, map(self._pauses.get, reasons or Pause)), "")

    @property
    def why_not(self) -> str:
        """Short explanation why no pass can run, for people; empty if passes can. Thread-safe."""
        taken = "another program has the device's memory" if self.device_taken else ""
        return self.why_paused() or taken or (self.why_no_text() if self.text_missing else "")


class BatchLoader:
    """Source of this peer's micro-batches for the current round. Used on the worker's thread."""

    def __init__(self, samples: Samples, peer_id: str, micro_batch: int) -> None:
        """Begin without a round: call `deal` before `draw`.

        Args:
            samples: Training and validation text of the run.
            peer_id: This peer; it decides which samples are drawn.
            micro_batch: Number of sequences in a micro-batch.
        """
        self._samples = samples
        self._peer_id = peer_id
        self.micro_batch = micro_batch
        self.sequence_tokens = samples.tokens_per_sample
        self._dealt: tuple[int, Sequence[str], str]
        """Cursor and members of the round that samples are drawn for, and this peer."""
        self._drawn = 0

    def deal(self, head: Head, goes_on: bool = False) -> None:
        """Begin a round: draw from the head's cursor on, by this peer's place among its members.

        Args:
            head: Head at which the round starts.
            goes_on: True if sequences drawn earlier count for this round, so they are not repeated.
        """
        first = self._first_after_drawn(head) if goes_on and self._drawn else 0
        self._dealt, self._drawn = (head.cursor, head.members, self._peer_id), first

    def _first_after_drawn(self, head: Head) -> int:
        """Return the number of the first draw at `head` that lies beyond all earlier draws.

        A peer outside `head.members` (a guest) draws from other positions, so a peer begins with
        draw 0 if it was or is a guest.
        """
        _, members, peer = self._dealt
        if peer not in members or peer not in head.members:
            return 0
        draw = self._samples.sampler.draw_position
        last = draw(*self._dealt, self._drawn - 1)
        beyond = last - draw(head.cursor, head.members, peer, 0)
        return max(beyond // len(head.members) + 1, 0)

    def draw(self, micro_batches: int) -> list[Batch]:
        """Return the next micro-batches as inputs of the model.

        Raises:
            PiecesMissing: Some text is not here yet; nothing is drawn.
            ConfigError: The dataset failed.
        """
        stop = self._drawn + micro_batches * self.micro_batch
        draws = range(self._drawn, stop)
        positions = [self._samples.sampler.draw_position(*self._dealt, place) for place in draws]
        self._samples.need(self._samples.pieces(positions))
        starts = range(0, len(positions), self.micro_batch)
        batches = [self._samples.batch(positions[at : at + self.micro_batch]) for at in starts]
        self._drawn = stop
        return batches

    def put_back(self, micro_batches: int) -> None:
        """Undo the latest draws, which no pass has used: `draw` returns them again."""
        self._drawn -= micro_batches * self.micro_batch

    def validation(self, micro_batches: int) -> dict[str, list[Batch]]:
        """Return the run's validation sets by name; they are the same on every peer.

        Args:
            micro_batches: Number of micro-batches in each set.

        Raises:
            PiecesMissing: Some text is not here yet.
            ConfigError: The dataset failed.
        """
        sets, missing = dict[str, list[Batch]](), None
        for name in self._samples.validation:  # try all sets, so all missing text is requested now
            try:
                sets[name] = self._samples.validation_batches(name, micro_batches, self.micro_batch)
            except PiecesMissing as lacking:
                missing = lacking
        if missing is not None:
            raise missing
        return sets


@dataclass(eq=False)
class Worker:
    """Thread that runs passes while the `gate` allows it and no hold is set.

    A void pass is reported to `on_void`, and the next pass takes the samples that follow.
    """

    replica: Replica
    loader: BatchLoader
    global_batch: int
    clock: Clock
    on_pass: Callable[[], None]
    """Function called after each pass that counts."""
    on_void: Callable[[PassVoided], None]
    on_failure: Callable[[BaseException], None]
    """Receiver of the error that ended the thread."""

    def __post_init__(self) -> None:
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self.gate = RunGate(self.replica.engines, self.nudge)
        """Gate for pauses of this peer."""
        self._holds: set[str] = {STARTING}
        self._offered: int | None = None
        self.ends_with_round = False
        """True if this peer leaves, so it trains for no round after the one being decided."""
        self._last_pass_ended = float("-inf")
        self.passes_s = 0.0
        """Seconds spent in passes so far, without cancelled ones."""
        self._retry_at = float("-inf")
        self._passes: deque[Pass] = deque(maxlen=32)
        self.pass_seconds = 0.0
        """Usual duration of a pass on this machine: see `usual_pass_seconds`."""
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.swarm = SwarmCount()
        """Counts of the other peers, as given to `update_swarm`."""

    def start(self) -> None:
        """Start the worker's thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread: cancel the running pass, or let the running command finish."""
        self._closing.set()
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, command: Callable[[], object]) -> None:
        """Run `command` on the worker's thread between passes, in order of submission."""
        self._commands.put(command)

    def hold(self, reason: str) -> None:
        """Begin no pass until `release(reason)`; takes effect at the next pass boundary."""
        self.submit(lambda: self._holds.add(reason))

    def release(self, reason: str) -> None:
        """Allow passes again after `hold(reason)`, unless another reason still holds them."""
        self.submit(lambda: self._holds.discard(reason))

    def text_came(self) -> None:
        """Try again at once if the latest pass lacked text. Thread-safe."""
        self.submit(self._text_came)

    def _text_came(self) -> None:
        if self.gate.text_missing:
            self.gate.text_missing, self._retry_at = False, float("-inf")

    def train_beyond(self, offered: int | None) -> None:
        """Train for the next round while a round is being decided. On the worker's thread.

        Args:
            offered: Sequences that this peer offered to the round being decided; it trains at most
                its fair share beyond them. None: no round is being decided any more.
        """
        self._offered = offered

    def nudge(self) -> None:
        """Make the thread check again whether there is something to train. Thread-safe."""
        self.submit(lambda: None)

    def update_swarm(self, swarm: SwarmCount) -> None:
        """Take new counts of the other peers. Called on the loop's thread."""
        if swarm != self.swarm:
            self.swarm = swarm
            self.nudge()

    def rate(self) -> float:
        """Return the sequences per second of recent passes: see `sequences_per_s`. Thread-safe."""
        return sequences_per_s(list(self._passes), self.clock.now())

    def pass_rate(self) -> float | None:
        """Return the median sequences per second of recent passes, without the time between them.

        None: no pass has counted yet. Thread-safe.
        """
        rates = [each.sequences / max(each.ended - each.began, 1e-9) for each in list(self._passes)]
        return statistics.median(rates) if rates else None

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self.on_failure(_named(failure))

    def _step(self) -> bool:
        size = 0 if self.gate.why_paused() else self.wanted()
        wait_s = None if size == 0 else max(self._retry_at - self.clock.now(), 0.0)
        try:
            command = self._commands.get(timeout=wait_s)
        except queue.Empty:
            self._train(size)
            return True
        if command is not None:
            command()
        return command is not None

    @property
    def is_free(self) -> bool:
        """True if there is no hold, no pause, and no round that is being decided.

        For the worker's thread.
        """
        return not self._holds and self._offered is None and not self.gate.why_paused()

    def wanted(self) -> int:
        """Return the micro-batches of the next pass, ignoring pauses; 0 if there is none to run."""
        if self._holds:
            return 0
        micro_batch, most = self.loader.micro_batch, self.replica.micro_batches
        if self.replica.until_step is not None:
            most = min(most, -(-self.replica.until_step // micro_batch))
        counted, swarm = self.replica.sequences, self.swarm
        if self._offered is not None:
            if self.ends_with_round:
                return 0
            # The counts that peers have published are not for the next round yet.
            counted, swarm = counted - self._offered, SwarmCount(peers=swarm.peers)
        return next_pass(
            counted, self._last_pass_ended, swarm, self.global_batch, micro_batch, most
        )

    def _train(self, micro_batches: int) -> None:
        started = self.clock.now()
        try:
            batches = self.loader.draw(micro_batches)
        except PiecesMissing:
            self.gate.text_missing, self._retry_at = True, started + RETRY_S
            return
        self.gate.text_missing = False
        try:
            sequences = self.replica.run_pass(batches, self.should_stop)
        except (PassCancelled, DeviceTaken) as reason:
            if isinstance(reason, DeviceTaken):
                self.gate.device_taken, self._retry_at = True, self.clock.now() + RETRY_S
            self.loader.put_back(micro_batches)
            return
        except PassVoided as void:
            self._pass_ended(started)
            self.on_void(void)
            return
        self._pass_ended(started)
        self._passes.append(Pass(started, self._last_pass_ended, sequences))
        self.pass_seconds = usual_pass_seconds(self._passes)
        self.on_pass()

    def _pass_ended(self, started: float) -> None:
        self._last_pass_ended, self.gate.device_taken = self.clock.now(), False
        self.passes_s += self._last_pass_ended - started

    def should_stop(self) -> bool:
        """Return True if the running work on the device should be cancelled.

        On closing it always should: the gradients are not needed any more.
        """
        if self._closing.is_set():
            return True
        return bool(self.gate.why_paused()) and self.replica.breakable


def _named(failure: BaseException) -> BaseException:
    """Return exhausted memory as an error with a hint, and any other failure as it is."""
    if not any(map(is_out_of_memory, (failure, failure.__cause__))):
        return failure
    named = ShortageError(
        f"memory ran out between two passes: {str(failure) or type(failure).__name__}",
        "free host memory, then start again; what was committed is on disk",
    )
    named.__cause__ = failure
    return named
