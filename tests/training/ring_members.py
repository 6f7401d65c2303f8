"""Members of exchanges, each over a transport of its own."""

import queue
import threading
from pathlib import Path

from torch import Tensor

from atom.base.clock import BootClock
from atom.swarm.chain.commit import Ballot, Contribution
from atom.swarm.transport.transport import Transport
from atom.training.exchange import Exchange, GradientEncoding
from atom.training.round.events import ExchangeFailed, ExchangeFinished, StartExchange
from atom.training.storage.results import Results

PARENT = b"p" * 32
WAIT_S = 20.0


class Member:
    """Its gradients say when they are asked for, and may be held up."""

    def __init__(
        self, transport: Transport, gradients: Tensor, folder: Path, encoding: GradientEncoding
    ) -> None:
        self.transport, self.gradients = transport, gradients
        self.transport.start()
        self.results = Results(folder, len(gradients))
        self.reads = 0
        self.reading, self.may_read = threading.Event(), threading.Event()
        self.may_read.set()
        self.fault: Exception | None = None
        self.outcomes: queue.SimpleQueue[ExchangeFinished | ExchangeFailed] = queue.SimpleQueue()
        self.exchange = Exchange(
            transport, self.results, self._read, self.outcomes.put, BootClock(), encoding
        )

    def _read(self, parent: bytes) -> Tensor:
        self.reads += 1
        self.reading.set()
        assert self.may_read.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        return self.gradients

    @property
    def peer_id(self) -> str:
        return self.transport.peer_id

    def part(self, sequences: int) -> Contribution:
        return Contribution(self.peer_id, bytes(16), sequences, 1.0)

    def start(
        self, parts: tuple[Contribution, ...], attempt: int, shares: tuple[int, ...] = ()
    ) -> None:
        self.exchange.start(StartExchange(PARENT, ballot(attempt), parts, shares))

    def finished(self) -> ExchangeFinished:
        outcome = self.outcomes.get(timeout=WAIT_S)
        assert isinstance(outcome, ExchangeFinished), outcome
        return outcome

    def failed(self) -> ExchangeFailed:
        outcome = self.outcomes.get(timeout=WAIT_S)
        assert isinstance(outcome, ExchangeFailed), outcome
        return outcome

    def result(self, digest: bytes) -> Tensor:
        held = self.results.get(digest)
        assert held is not None
        return held

    def close(self) -> None:
        self.may_read.set()
        self.exchange.close()
        self.transport.close()


def ballot(attempt: int = 1) -> Ballot:
    return Ballot(attempt, "the coordinator", bytes(16))
