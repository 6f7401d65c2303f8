"""The `atom` command with passes that sleep and with three more kinds of events.

The events show the parts of a trigger's delay: `counted` after a pass (the peer's sequences for its
head), `asked` at a coordinator's PREPARE, `ringing` at the start of an exchange, with its ballot
and the sequences that its members promised. All times are of one machine's clock, so logs of
several peers compare.

A pass sleeps for $ATOM_REAL_PASS_S, as on its own device. With $ATOM_REAL_SEQUENCE_S a pass
takes that long for each of its sequences, computing included, as estimated from earlier passes;
then an event `passed` names when the pass `began` and its `sequences`. $ATOM_REAL_BUCKET_BYTES sets
the size of buckets, so that an exchange of a small model has as many buckets as a large one's.

    python -m benchmarks.shared.slow_peer start run.toml
"""

import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from atom.base.events import EventSink
from atom.cli import app
from atom.swarm.chain.messages import Prepare
from atom.swarm.exchange import plans
from atom.training.loop import RoundLoop
from atom.training.replica.replica import Replica
from atom.training.replica.worker import Worker
from atom.training.round.events import Action, Send, StartExchange

PASS_S = float(os.environ.get("ATOM_REAL_PASS_S", "0"))
SEQUENCE_S = float(os.environ.get("ATOM_REAL_SEQUENCE_S", "0"))
BUCKET_BYTES = int(os.environ.get("ATOM_REAL_BUCKET_BYTES", "0"))
REMEMBERED = 15
"""Passes whose computing time is remembered."""
LOOK_S = 0.05


def main() -> None:
    """Run the command of `sys.argv`."""
    _watch()
    plans.BUCKET_BYTES = BUCKET_BYTES or plans.BUCKET_BYTES
    raise SystemExit(app.main())


def _watch() -> None:
    begin, carry_out, train = RoundLoop.__init__, RoundLoop._carry_out, Worker._train
    run_pass = Replica.run_pass
    loops: list[RoundLoop] = []
    computing_s: deque[float] = deque([0.0], REMEMBERED)

    def watched_begin(self: RoundLoop, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        loops.append(self)

    def watched_carry_out(self: RoundLoop, action: Action) -> None:
        kind = _told_by(action)
        if kind:
            _emit(self._log, kind, self, **_ring(action))
        carry_out(self, action)

    def watched_train(self: Worker, micro_batches: int) -> None:
        train(self, micro_batches)
        if loops:
            loop = loops[-1]
            _emit(loop._log, "counted", loop, sequences=_counted(loop))

    def slow_pass(self: Replica, batches: Any, should_stop: Callable[[], bool]) -> Any:
        began, device_s = time.time(), PASS_S
        if SEQUENCE_S:
            sequences = len(batches) * self._sequences
            device_s = SEQUENCE_S * sequences - statistics.median(computing_s)
        _sleep(device_s, should_stop)
        started = time.monotonic()
        result = run_pass(self, batches, should_stop)
        computing_s.append(time.monotonic() - started)
        if SEQUENCE_S:
            _emit(loops[-1]._log, "passed", loops[-1], began=began, sequences=result)
        return result

    Replica.run_pass = slow_pass  # type: ignore[method-assign]  # the only way to slow a pass from outside
    RoundLoop.__init__ = watched_begin  # type: ignore[method-assign]  # the only way to see the loop from outside
    RoundLoop._carry_out = watched_carry_out  # type: ignore[method-assign]  # as above
    Worker._train = watched_train  # type: ignore[method-assign]  # as above


def _sleep(seconds: float, should_stop: Callable[[], bool]) -> None:
    """Sleep in the place of a device that computes, before the pass counts."""
    ends_at = time.monotonic() + seconds
    while (left_s := ends_at - time.monotonic()) > 0 and not should_stop():
        time.sleep(min(left_s, LOOK_S))  # stands for computing


def _counted(loop: RoundLoop) -> int:
    return loop.executor.shared.sequences_at(loop.machine.head.digest)


def _told_by(action: Action) -> str:
    if isinstance(action, Send) and isinstance(action.message, Prepare):
        return "asked"
    return "ringing" if isinstance(action, StartExchange) else ""


def _ring(action: Action) -> dict[str, Any]:
    if not isinstance(action, StartExchange):
        return {}
    ballot = action.ballot
    name = f"{ballot.attempt} {ballot.coordinator} {ballot.incarnation.hex()}"
    return {"ballot": name, "sequences": sum(part.sequences for part in action.members)}


def _emit(events: EventSink, kind: str, loop: RoundLoop, **fields: Any) -> None:
    events.emit(kind, head=loop.machine.head.digest.hex(), **fields)


if __name__ == "__main__":
    main()
