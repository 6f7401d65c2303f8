"""One way through a device: a cut, what stays, an accumulation; what that holds and takes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from atom.graph.chain import Chain, Machine
from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.graph.traced import Graph
from atom.placement.memory import (
    DeviceMemory,
    Limits,
    Piece,
    Reckoning,
    crossings_of,
    pieces_of,
)
from atom.placement.residency import waiting
from atom.swap.arrangement import Arrangement
from atom.swap.device_slots import FLOAT32_BYTES
from atom.swap.pass_shares import PassShares
from atom.swap.schedule import Shape, training_pass
from atom.swap.timeline import Durations, Timeline, simulate


@dataclass(frozen=True)
class Choice:
    """How the model goes through the device, and what that is expected to take."""

    ends: tuple[int, ...]
    pieces: tuple[Piece, ...]
    arrangement: Arrangement
    micro_batches: int
    memory: DeviceMemory
    timeline: Timeline
    """Of a pass right after an optimizer step: nothing is loaded yet."""
    durations: Durations
    """Of its events."""
    host_bytes: int = 0
    """Host memory that values between sub-models take while they wait there."""
    remembers: bool = False
    """Whether the model's own checkpoints are left out: there is memory enough without them."""

    @property
    def waiting(self) -> list[int]:
        """Sub-models whose values wait on the host while nobody needs them."""
        return waiting(self._shape)

    def program(self, graph: Graph) -> Program:
        """`graph`, cut and printed as chosen. Raises: ModelError if this is for another graph."""
        return build_program(graph.remembering() if self.remembers else graph, ends=self.ends)

    @property
    def seconds_per_micro_batch(self) -> float:
        return self.timeline.seconds / self.micro_batches

    @property
    def waits_s(self) -> dict[str, float]:
        """What the device waits for in the pass: by reason (`atom.swap.pass_shares`)."""
        return PassShares.of(self.timeline).waits_s

    def seconds_under_step(self, elements_per_s: float) -> float:
        """Of a pass that begins with the optimizer's step: each load waits until its own parameters
        are updated, in the order of their first use."""
        durations = replace(self.durations, ready_s=_ready_s(self.pieces, elements_per_s))
        return simulate(training_pass(self._shape), self._shape, durations).seconds

    def to_json(self, program: Program) -> dict[str, Any]:
        """`program`: as it is chosen. Seconds and bytes are of one micro-batch, but for `pass` and
        memory."""
        arrangement, timeline, parts = self.arrangement, self.timeline, program.sub_models
        return {
            "micro_batches": self.micro_batches,
            "slots": arrangement.slots,
            "remembers": self.remembers,
            "host_bytes": self.host_bytes,
            "device_memory": asdict(self.memory) | {"total_bytes": self.memory.total_bytes},
            "pass": {
                "seconds": timeline.seconds,
                "computing": timeline.computing,
                "load_s": timeline.busy_s("load"),
                "compute_s": timeline.busy_s("compute"),
                "gradients_out_s": timeline.busy_s("gradients"),
            },
            "sub_models": [
                {
                    "name": parts[s].name,
                    "classes": list(dict.fromkeys(each.class_name for each in parts[s].layers)),
                    "operations": [(0, *self.ends)[s], self.ends[s]],
                    "parameter_elements": piece.elements,
                    "forward_s": piece.forward_s,
                    "backward_s": piece.backward_s,
                    "activation_bytes": piece.activation_bytes,
                    "out_bytes": piece.out_bytes,
                    "resident": s in arrangement.resident,
                    "activations_kept": s in arrangement.kept,
                    "values_offloaded": s in self.waiting,
                }
                for s, piece in enumerate(self.pieces)
            ],
        }

    @property
    def _shape(self) -> Shape:
        crossings = crossings_of(self.pieces)
        return Shape(len(self.pieces), self.micro_batches, self.arrangement, crossings)


@dataclass(frozen=True)
class Cut:
    """Sub-models, and how long each event of a pass takes with them."""

    ends: tuple[int, ...]
    reckoning: Reckoning
    durations: Durations
    remembers: bool = False

    @classmethod
    def of(cls, chain: Chain, machine: Machine, limits: Limits, ends: Sequence[int]) -> "Cut":
        """`limits` say how many micro-batches a pass has."""
        pieces = pieces_of(chain, ends)
        return cls(tuple(ends), Reckoning(pieces, limits), _durations(pieces, machine, limits))

    def least_s(self, arrangement: Arrangement) -> float:
        """A pass takes no less: as each lane by itself. Quickly reckoned."""
        d, last = self.durations, len(self.ends) - 1
        micro_batches = self.reckoning.limits.micro_batches
        again = sum(f for s, f in enumerate(d.forward_s[:last]) if s not in arrangement.kept)
        computing = micro_batches * (sum(d.forward_s) + sum(d.backward_s) + again)
        swapped = [s for s in range(last + 1) if s not in arrangement.resident]
        twice = swapped[: -arrangement.slots]  # the last ones are still there
        loading = sum(d.load_s) + sum(d.load_s[s] for s in twice)
        return max(d.load_s[0] + computing + d.gradient_out_s[0], loading, sum(d.gradient_out_s))

    def timed(self, arrangement: Arrangement) -> Choice:
        """With its memory and its timeline."""
        reckoning = self.reckoning
        shape = reckoning.shape(arrangement)
        return Choice(
            ends=self.ends,
            pieces=tuple(reckoning.pieces),
            arrangement=arrangement,
            micro_batches=reckoning.limits.micro_batches,
            memory=reckoning.memory(arrangement),
            timeline=simulate(training_pass(shape), shape, self.durations),
            durations=self.durations,
            host_bytes=reckoning.host_bytes(arrangement),
            remembers=self.remembers,
        )


def _durations(pieces: Sequence[Piece], machine: Machine, limits: Limits) -> Durations:
    """What each event of a schedule takes."""
    element_bytes, gradient_bytes = limits.element_bytes, limits.gradient_element_bytes
    sent = _sent(pieces, carried=element_bytes == FLOAT32_BYTES)
    return Durations(
        load_s=tuple(p.elements * element_bytes / machine.load_bytes_per_s for p in pieces),
        forward_s=tuple(p.forward_s for p in pieces),
        backward_s=tuple(p.backward_s for p in pieces),
        gradient_out_s=tuple(n * gradient_bytes / machine.gradient_bytes_per_s for n in sent),
        value_in_s=1 / machine.load_bytes_per_s,
        value_out_s=1 / machine.load_bytes_per_s,
    )


def _ready_s(pieces: Sequence[Piece], elements_per_s: float) -> tuple[float, ...]:
    """Per piece, when all of its parameters are updated; each is, with those that no piece before
    has."""
    updated_s: dict[str, float] = {}
    ready_s, elements = list[float](), 0
    for piece in pieces:
        new = piece.parameters.keys() - updated_s.keys()
        elements += sum(piece.parameters[name] for name in new)
        updated_s.update(dict.fromkeys(new, elements / elements_per_s))
        ready_s.append(max((updated_s[name] for name in piece.parameters), default=0.0))
    return tuple(ready_s)


def _sent(pieces: Sequence[Piece], carried: bool) -> list[int]:
    """Per piece, elements of gradients that leave with it. `carried`: what several use leaves with
    the first of them alone."""
    sent, before = list[int](), set[str]()
    for piece in pieces:
        names = piece.parameters.keys() - before if carried else piece.parameters.keys()
        sent.append(sum(piece.parameters[name] for name in names))
        before |= piece.parameters.keys()
    return sent
