"""One member of a swarm whose rounds are measured: the real ring, then the real step and pass."""

import contextlib
import queue
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from member_processes import PATIENCE_S
from ring_links import Seat
from ring_member import PARENT, member_transport

from atom.base.clock import BootClock
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config
from atom.optim import optimizer, stepper
from atom.optim.rate import RateSettings
from atom.swap.computation import Computation, RunningPass
from atom.swap.device import CpuDevice
from atom.swap.device_slots import BoundSubModel
from atom.swap.parameter_gradients import ParameterGradients
from atom.swap.schedule import Forward
from atom.swap.timeline import Recording
from atom.swarm.chain.commit import Ballot, Contribution
from atom.swarm.exchange.channels import Channels
from atom.swarm.exchange.codec import EXACT
from atom.swarm.exchange.reduction import Terms
from atom.swarm.exchange.speeds import SpeedBook
from atom.swarm.state.arenas import state_digest
from atom.swarm.transport.transport import Transport
from atom.training.exchange import Exchange
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.round.events import ExchangeFailed, ExchangeFinished, StartExchange
from atom.training.storage.run_storage import Results

SEED = 1
BETWEEN, UNDER = "between", "under"
SIDES = (BETWEEN, UNDER)


@dataclass(frozen=True)
class Job:
    """What every member is told before it starts."""

    seats: tuple[Seat, ...]
    config: GPT3Config
    micro_batches: int
    runs: int
    visit_s: float
    """What a forward of a sub-model takes, per micro-batch, asleep; 0: it is computed here."""
    piece_elements: tuple[int, ...]
    """Of the step, updated at a time: each is tried in turn."""


@dataclass(frozen=True)
class RingSample:
    """One ring of one member, seconds."""

    whole_s: float
    """As a round runs it: connections, sums, norm, digest."""
    known_s: float
    """Of these, after the last byte: until norm and digest are known."""
    hashed_s: float
    """What the digest takes alone, once more."""


@dataclass(frozen=True)
class Sample:
    """What followed a commit at one member: when, in seconds."""

    stepped_s: float
    """That the step was done, or begun."""
    forward_s: float
    """That the first forward began."""
    passed_s: float
    digest_s: float
    """That the new state's digest was known."""


Found = dict[tuple[str, int], list[Sample]]
"""By side and elements of a piece."""


class DeviceElsewhere(CpuDevice):
    """For computing that is not done here: its gradients are what lies in the slots, noise. Copies
    to and from the slots are as real as ever."""

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return super().slot_memory(elements, dtype).normal_(0.0, 1e-4)


def compute_elsewhere(visit_s: float) -> None:
    """From now on a visit of a sub-model takes this long, per micro-batch, and none of this
    machine's cores: it sleeps."""

    def forward(
        self: Computation, part: BoundSubModel, current: RunningPass, micro_batch: int
    ) -> None:
        time.sleep(visit_s)  # stands for a device that computes
        if part.sub_model.index == current.shape.sub_models - 1:
            assert current.gate is not None
            loss = current.batches[micro_batch].loss = torch.ones(())
            current.gate.show(loss)

    def backward(
        self: Computation,
        part: BoundSubModel,
        current: RunningPass,
        micro_batch: int,
        gradients: ParameterGradients,
    ) -> None:
        if micro_batch == 0:
            gradients.begin(part.sub_model.index)
        time.sleep(2 * visit_s)  # the same; a backward is twice a forward

    Computation.forward = forward  # type: ignore[method-assign]  # a device that is not here
    Computation.backward = backward  # type: ignore[method-assign]  # the same


def member(rank: int, job: Job, parent: Connection, gate: Any) -> None:
    """A process's whole life. Sends its contact, then the model's parameters and sub-models, its
    rings, what followed the commits, and the last state's digest."""
    job.seats[rank].take()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        transport = member_transport(job.seats[rank])
        stack.callback(transport.close)
        parent.send((transport.peer_id, transport.address))
        contacts = parent.recv()
        for peer_id, (host, port) in contacts:
            transport.set_addresses(peer_id, [f"{host}:{port}"])
        device = DeviceElsewhere() if job.visit_s else CpuDevice()
        if job.visit_s:
            compute_elsewhere(job.visit_s)
        stack.callback(device.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        order = tuple(peer_id for peer_id, _ in contacts)
        rounds = Rounds(rank, job, order, transport, device, folder)
        rings, samples = _samples(rank, job, rounds, gate)
        parent.send((rounds.elements, rounds.sub_models, rings, samples, rounds.digest))
        gate.wait(PATIENCE_S)


def _samples(rank: int, job: Job, rounds: "Rounds", gate: Any) -> tuple[list[RingSample], Found]:
    """Rounds in step with the others: a ring, and its commit again and again, in every way. What
    follows a commit is done by one member after the other, so that each has the machine's cores for
    itself."""
    ways = [(side, piece) for piece in job.piece_elements for side in SIDES]
    rings, taken = list[RingSample](), Found({way: [] for way in ways})
    for run in range(job.runs + 1):
        gate.wait(PATIENCE_S)
        finished, ring = rounds.reduce()
        if run:  # the first one warms up
            rings.append(ring)
        for way in ways if run % 2 else ways[::-1]:
            for turn in range(len(job.seats)):
                gate.wait(PATIENCE_S)
                if turn == rank:
                    sample = rounds.after_commit(*way, finished)
                    taken[way] += [sample] if run else []
    return rings, taken


class WatchedSpeeds(SpeedBook):
    """Tells when the last byte was there."""

    summed_at = 0.0

    def finished(self, terms: Terms, channels: Channels, elements: int, seconds: float) -> None:
        self.summed_at = self._now()
        super().finished(terms, channels, elements, seconds)


class Rounds:
    """A replica and its exchange, round after round."""

    def __init__(
        self,
        rank: int,
        job: Job,
        order: tuple[str, ...],
        transport: Transport,
        device: CpuDevice,
        folder: Path,
    ) -> None:
        config, generator = job.config, torch.Generator().manual_seed(SEED + rank)
        shape = (1, config.sequence_tokens)
        self._batches = [
            {
                name: torch.randint(config.vocabulary_size, shape, generator=generator)
                for name in ("tokens", "targets")
            }
            for _ in range(job.micro_batches)
        ]
        program = build_program(trace(GPT3(config, device="meta"), self._batches[0]))
        settings = ReplicaSettings(RateSettings(1e-4, 1e-4, 0, "constant", None), clip_norm=1.0)
        self._layout, self.sub_models = program.layout, len(program.sub_models)
        self.elements = program.layout.total_elements
        self._clock, self._recording = BootClock(), Recording()
        self._replica = Replica(program, None, settings, device, self._clock, self._recording)
        self._replica.initialise(lambda _, shape: torch.full(shape, 0.01))
        self._replica.reset_gradients(PARENT)
        self._replica.run_pass(self._batches)
        self._results = Results(folder, self.elements, EXACT)
        self._order = order
        self._outcomes: queue.SimpleQueue[ExchangeFinished | ExchangeFailed] = queue.SimpleQueue()
        self._exchange = Exchange(
            transport, self._results, lambda _: self._replica.contribution(),
            self._outcomes.put, self._clock, EXACT,
        )  # fmt: skip
        self._exchange.speeds = self._speeds = WatchedSpeeds(self._clock.now)
        self.digest = b""

    def reduce(self) -> tuple[ExchangeFinished, RingSample]:
        """The ring, as a round runs it."""
        self._results.keep(frozenset())
        ballot = Ballot(self._replica.round + 1, self._order[0], bytes(16))
        sequences = self._replica.sequences
        members = tuple(Contribution(peer, bytes(16), sequences, 0.0) for peer in self._order)
        began = self._clock.now()
        self._exchange.start(StartExchange(PARENT, ballot, members))
        outcome = self._outcomes.get(timeout=PATIENCE_S)
        assert isinstance(outcome, ExchangeFinished), outcome
        ended = self._clock.now()
        result = self._results.get(outcome.digest)
        assert result is not None
        assert state_digest(result.arenas) == outcome.digest
        hashed_s = self._clock.now() - ended
        return outcome, RingSample(ended - began, ended - self._speeds.summed_at, hashed_s)

    def after_commit(self, side: str, piece_elements: int, finished: ExchangeFinished) -> Sample:
        """The step, and the first pass of the next round after it or over it."""
        optimizer.PIECE_ELEMENTS = stepper.PIECE_ELEMENTS = piece_elements
        steps = self._replica._stepper
        steps._parts = optimizer.parts_of(steps._optimizer, steps._store)
        mean, round_number = self._results.numbers(finished.digest), self._replica.round + 1
        self._recording.spans.clear()
        began = self._clock.now()
        self._replica.begin_step(mean, finished.norm, round_number)
        if side == BETWEEN:
            self._replica.finish_step()
        stepped = self._clock.now()
        with ThreadPoolExecutor(1, "aftermath") as background:
            hashed = background.submit(self._settle)
            self._replica.reset_gradients(PARENT)
            self._replica.run_pass(self._batches)
            passed = self._clock.now()
            digest = hashed.result()
        forward = min(s.start_s for s in self._recording.spans if s.event == Forward(0, 0))
        return Sample(stepped - began, forward - began, passed - began, digest - began)

    def _settle(self) -> float:
        """What a round does behind the step, in the background. When it was done."""
        self._replica.finish_step()
        self.digest = state_digest(self._replica.state_arenas())
        return self._clock.now()
