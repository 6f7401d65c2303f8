"""The thread that owns the replica: trains pass after pass, and obeys commands in between.

Everything that touches the model's memory happens on this thread, so a command never meets a half
finished pass. A freeze is therefore answered at the next pass boundary. A pause does not wait for
it: the pass under way is broken off, unless what was counted before it would be lost with it.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import torch

from atom.base.clock import Clock
from atom.base.errors import AtomError, ModelError, ShortageError
from atom.models.data.samples import PiecesMissing, Samples
from atom.models.source import SourceError
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
"""Holds every peer until it has looked around."""
RETRY_S = 10.0
"""How often memory that another program has, or text that is on its way, is tried for."""


class Pause(StrEnum):
    """What keeps a peer away from its device. The first that stands is the one that is told."""

    OWNER = "owner"
    SCHEDULE = "schedule"
    """Hours, battery or use of the machine, by [schedule] in the peer file."""


class RunGate:
    """Keeps a peer away from its device.

    - *paused*: somebody else is to have it. The pass under way is broken off if nothing counted is
      lost with it, and the device's memory is given back.
    - *device taken*: the memory was given back, and another program has it now.
    """

    def __init__(self, engines: ReplicaEngines, wake: Callable[[], None]) -> None:
        """`engines`: whose memory pauses give back. `wake`: called when a pause has gone."""
        self._engines = engines
        self._wake = wake
        self._lock = threading.Lock()
        self._pauses: dict[Pause, str] = {}
        self.device_taken = self.text_missing = False
        """Another program has the memory; the next samples are on their way. Said by the thread
        that runs passes."""
        self.why_no_text: Callable[[], str] = str
        """What to say of that; empty: nothing yet."""

    def pause(self, reason: Pause, words: str, wait_s: float) -> bool:
        """Nothing on the device until `resume(reason)`. From any thread.

        Args:
            words: why, for people.
            wait_s: how long to wait for the device's memory.

        Returns: whether it was free within that time; a pass that may not be broken off needs it
        until its end.
        """
        with self._lock:
            self._pauses[reason] = words
            return self._engines.preempt(wait_s)

    def resume(self, *reasons: Pause) -> None:
        """From any thread."""
        with self._lock:
            for reason in reasons:
                self._pauses.pop(reason, None)
            if not self._pauses:
                self._engines.resume()
        self._wake()

    def why_paused(self, *reasons: Pause) -> str:
        """The words of the first of `reasons`, or of all, that stands; empty: none does. From any
        thread."""
        return next(filter(None, map(self._pauses.get, reasons or Pause)), "")

    @property
    def why_not(self) -> str:
        """Why nothing is computed, however much there is to do, in a few words; empty: it is. From
        any thread."""
        taken = "another program has the device's memory" if self.device_taken else ""
        return self.why_paused() or taken or (self.why_no_text() if self.text_missing else "")


class BatchLoader:
    """This peer's micro-batches of the round that starts at a head. Used on the worker's thread."""

    def __init__(self, samples: Samples, peer_id: str, micro_batch: int) -> None:
        """`micro_batch`: sequences of each."""
        self._samples = samples
        self._peer_id = peer_id
        self.micro_batch = micro_batch
        self.sequence_tokens = samples.tokens_per_sample
        self._head: Head
        self._drawn = 0

    def deal(self, head: Head, goes_on: bool = False) -> None:
        """A new round: from the head's cursor on, in the order of the last round's members.
        `goes_on`: what was drawn before counts for it, and does not come again."""
        first = self._first_after_drawn(head) if goes_on else 0
        self._head, self._drawn = head, first

    def _first_after_drawn(self, head: Head) -> int:
        """The first draw at `head` that lies beyond all that were drawn. Guests draw elsewhere: a
        member that was one, or becomes one, begins with its first."""
        before, peer = self._head, self._peer_id
        if not self._drawn or peer not in before.members or peer not in head.members:
            return 0
        draw = self._samples.sampler.draw_position
        last = draw(before.cursor, before.members, peer, self._drawn - 1)
        beyond = last - draw(head.cursor, head.members, peer, 0)
        return max(beyond // len(head.members) + 1, 0)

    def draw(self, micro_batches: int) -> list[Batch]:
        """The next ones, as the model takes them. Raises: SourceError; PiecesMissing, and nothing
        is drawn."""
        dealt = (self._head.cursor, self._head.members, self._peer_id)
        stop = self._drawn + micro_batches * self.micro_batch
        draws = range(self._drawn, stop)
        positions = [self._samples.sampler.draw_position(*dealt, place) for place in draws]
        self._samples.need(self._samples.pieces(positions))
        starts = range(0, len(positions), self.micro_batch)
        batches = [self._samples.batch(positions[at : at + self.micro_batch]) for at in starts]
        self._drawn = stop
        return batches

    def put_back(self, micro_batches: int) -> None:
        """The latest ones come again: nobody has trained on them."""
        self._drawn -= micro_batches * self.micro_batch

    def validation(self, micro_batches: int) -> dict[str, list[Batch]]:
        """The run's validation sets by text, so many micro-batches of each, the same on every peer.
        Raises: SourceError, PiecesMissing."""
        sets, missing = dict[str, list[Batch]](), None
        for name in self._samples.validation:  # all: what is missing is asked for at once
            try:
                sets[name] = self._samples.validation_batches(name, micro_batches, self.micro_batch)
            except PiecesMissing as lacking:
                missing = lacking
        if missing is not None:
            raise missing
        return sets


class Worker:
    """Runs passes while its `gate` lets it and nothing of the round's, or of the peer's life, holds
    it.

    A void pass is told (`on_void`), and the next one takes the samples that follow.
    """

    def __init__(
        self,
        replica: Replica,
        loader: BatchLoader,
        global_batch: int,
        clock: Clock,
        on_pass: Callable[[], None],
        on_void: Callable[[PassVoided], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._replica = replica
        self.loader = loader
        self._global_batch = global_batch
        self._clock = clock
        self._on_pass = on_pass
        self._on_void = on_void
        self._on_failure = on_failure
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self.gate = RunGate(replica.engines, self.nudge)
        """Whether passes run, and why not."""
        self._holds: set[str] = {STARTING}
        self._offered: int | None = None
        self.ends_with_round = False
        """This peer leaves: it trains for no round after the one that is being decided."""
        self._last_pass_ended = float("-inf")
        self.passes_s = 0.0
        """In passes so far, but for those that were broken off."""
        self._retry_at = float("-inf")
        self._passes: deque[Pass] = deque(maxlen=32)
        self.pass_seconds = 0.0
        """What a pass takes here: see `usual_pass_seconds`."""
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.swarm = SwarmCount()
        """As of the last `update_swarm`."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread: breaks off a pass, finishes a command."""
        self._closing.set()
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, command: Callable[[], object]) -> None:
        """Runs `command` on the worker's thread, in order, between passes."""
        self._commands.put(command)

    def hold(self, reason: str) -> None:
        """No further pass until `release(reason)`. Takes effect at the next pass boundary."""
        self.submit(lambda: self._holds.add(reason))

    def release(self, reason: str) -> None:
        self.submit(lambda: self._holds.discard(reason))

    def text_came(self) -> None:
        """From any thread."""
        self.submit(self._text_came)

    def _text_came(self) -> None:
        if self.gate.text_missing:
            self.gate.text_missing, self._retry_at = False, float("-inf")

    def train_beyond(self, offered: int | None) -> None:
        """A round is being decided: passes go on for the next one, up to a share beyond so many
        sequences of ours. None: it is not, any more. On the worker's thread."""
        self._offered = offered

    def nudge(self) -> None:
        """Look again whether there is something to train."""
        self.submit(lambda: None)

    def update_swarm(self, swarm: SwarmCount) -> None:
        """The counts of the others, at every look at the directory. From the loop's thread."""
        if swarm != self.swarm:
            self.swarm = swarm
            self.nudge()

    def own_sequences(self, head: bytes) -> int:
        """Ours that count for the next round of `head`. The machine is at a new head before the
        step to it has begun: until then our count is the old one's. From any thread."""
        return self._replica.sequences if self._replica.gradients_tag == head else 0

    def rate(self) -> float:
        """Sequences per second over the last half minute. From any thread."""
        return sequences_per_s(list(self._passes), self._clock.now())

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._on_failure(_named(failure))

    def _step(self) -> bool:
        size = 0 if self.gate.why_paused() else self.wanted()
        wait_s = None if size == 0 else max(self._retry_at - self._clock.now(), 0.0)
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
        """Is nothing in the way of a pass: no hold, no pause, no round that is being decided? On
        the worker's thread."""
        return not self._holds and self._offered is None and not self.gate.why_paused()

    def wanted(self) -> int:
        """Micro-batches of the next pass, whatever keeps it from the device; 0: there is none."""
        if self._holds:
            return 0
        micro_batch, most = self.loader.micro_batch, self._replica.micro_batches
        if self._replica.until_step is not None:
            most = min(most, -(-self._replica.until_step // micro_batch))
        counted, swarm = self._replica.sequences, self.swarm
        if self._offered is not None:
            if self.ends_with_round:
                return 0
            # nobody's count, as it is seen, is for the next round yet
            counted, swarm = counted - self._offered, SwarmCount(peers=swarm.peers)
        return next_pass(
            counted,
            self._last_pass_ended,
            swarm,
            self._global_batch,
            micro_batch,
            most,
        )

    def _train(self, micro_batches: int) -> None:
        started = self._clock.now()
        try:
            batches = self.loader.draw(micro_batches)
        except PiecesMissing:
            self.gate.text_missing, self._retry_at = True, started + RETRY_S
            return
        self.gate.text_missing = False
        try:
            sequences = self._replica.run_pass(batches, self.should_stop)
        except (PassCancelled, DeviceTaken) as reason:
            if isinstance(reason, DeviceTaken):
                self.gate.device_taken, self._retry_at = True, self._clock.now() + RETRY_S
            self.loader.put_back(micro_batches)
            return
        except PassVoided as void:
            self._pass_ended(started)
            self._on_void(void)
            return
        self._pass_ended(started)
        self._passes.append(Pass(started, self._last_pass_ended, sequences))
        self.pass_seconds = usual_pass_seconds(self._passes)
        self._on_pass()

    def _pass_ended(self, started: float) -> None:
        self._last_pass_ended, self.gate.device_taken = self._clock.now(), False
        self.passes_s += self._last_pass_ended - started

    def should_stop(self) -> bool:
        """Is work on the device to be broken off? Closing, the gradients will not be asked for."""
        if self._closing.is_set():
            return True
        return bool(self.gate.why_paused()) and self._replica.breakable


def _named(failure: BaseException) -> BaseException:
    """No fault of ours, but something that the user can mend: an own dataset's mistakes, and memory
    that ran out between passes."""
    named: AtomError
    if isinstance(failure, SourceError):
        named = ModelError(failure.message, failure.hint)
    elif any(map(is_out_of_memory, (failure, failure.__cause__))):
        named = ShortageError(
            f"memory ran out between two passes: {str(failure) or type(failure).__name__}",
            "free host memory, then start again; what was committed is on disk",
        )
    else:
        return failure
    named.__cause__ = failure
    return named
