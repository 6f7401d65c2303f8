"""From a pass to what a volunteer asks: a round's seconds, its bytes on the line, what it gains.

With one optimizer step per round, passes stand still while gradients travel: a round takes the sum
of both. Local steps go on with the next round's inner steps meanwhile: a round takes the longer of
the two. Pure.
"""

import math
from dataclasses import dataclass, replace

from atom.placement.choice import Choice, HostStep

DAY_S = 86400


@dataclass(frozen=True)
class Work:
    """What a round asks of this peer, and with what besides its device."""

    parameters: int
    round_sequences: int
    """The global batch."""
    micro_batch_sequences: int
    sequence_tokens: int
    peers: int
    """That share the global batch and average with each other, this one included."""
    inner_sequences: int | None
    """Of an inner step, with local steps; None: a round is one optimizer step of the swarm."""
    step: HostStep
    network_bytes_per_s: float
    """The slowest peer's, each way."""
    gradient_element_bytes: float
    """On the wire."""
    steps_beside: bool
    """Whether the device computes while the host steps: not if it computes on the host's cores,
    which several share."""


@dataclass(frozen=True)
class RoundPrediction:
    """Of a round when all peers are like this one. Optimizer steps are taken under the passes."""

    passes: int
    """Of each group of devices."""
    accumulate_s: float
    """In passes, if none waited for an optimizer step."""
    steps: int
    """Optimizer steps of this peer; with local steps the outer rule's is one more."""
    optimizer_s: float
    """Of a step, on the host."""
    optimizer_wait_s: float
    """How much longer the passes between two steps take because of one: what the first of them
    waits for, and what a peer that steps by itself takes for its gradients' norm before."""
    line_bytes: float
    """Through this peer's line, up, and as much down."""
    all_reduce_s: float
    overlapped: bool
    """Whether passes go on while averages travel."""
    tokens: int
    """Of all peers."""

    @property
    def passes_s(self) -> float:
        """In passes, with what they wait for optimizer steps."""
        return self.accumulate_s + self.steps * self.optimizer_wait_s

    @property
    def round_s(self) -> float:
        if self.overlapped:
            return max(self.passes_s, self.all_reduce_s)
        return self.passes_s + self.all_reduce_s

    @property
    def utilisation(self) -> float:
        """Share of the time that goes into passes."""
        return self.passes_s / self.round_s

    @property
    def swarm_tokens_per_s(self) -> float:
        return self.tokens / self.round_s

    @property
    def line_bytes_per_day(self) -> float:
        return self.line_bytes / self.round_s * DAY_S


def predict(choice: Choice, work: Work) -> RoundPrediction:
    """Reckons a round from the chosen pass: the share of the batch, the exchange, the steps.

    Of n peers each sends and receives 2 (n - 1) / n averages: in a ring, and by parts with equal
    shares. The outer rule, which reads and writes about as much as an optimizer, counts as another
    step. With local steps nothing is trained on the device.
    """
    if work.inner_sequences is not None:
        choice = replace(choice, arrangement=replace(choice.arrangement, trained=frozenset()))
    sequences = math.ceil(work.round_sequences / work.peers)
    micro_batches = math.ceil(sequences / work.micro_batch_sequences)
    micro_batches = math.ceil(micro_batches / (choice.groups if work.steps_beside else 1))
    if micro_batches < choice.micro_batches:  # a pass of fewer may take as long
        choice = choice.allowing(micro_batches=micro_batches)
    inner = work.inner_sequences
    average_bytes = work.parameters * work.gradient_element_bytes
    line_bytes = 2 * (work.peers - 1) / work.peers * average_bytes
    on_host = max(work.parameters - choice.trained_elements, 0)
    optimizer = waits = on_host / work.step.elements_per_s
    passes = math.ceil(micro_batches / choice.micro_batches)
    full = micro_batches / (passes * choice.micro_batches)
    if work.steps_beside:
        between = min(math.ceil((inner or sequences) / sequences * passes), passes)
        own = inner is not None
        waits = choice.passes_s(between, work.step, norm=own) - choice.passes_s(between)
        if work.peers == 1 and not own:
            waits += choice.norm_s(on_host)
    return RoundPrediction(
        passes=passes,
        accumulate_s=choice.passes_s(passes) * full,
        steps=1 if inner is None else math.ceil(sequences / inner) + 1,
        optimizer_s=optimizer,
        optimizer_wait_s=waits,
        line_bytes=line_bytes,
        all_reduce_s=line_bytes / work.network_bytes_per_s,
        overlapped=inner is not None,
        tokens=work.round_sequences * work.sequence_tokens,
    )


@dataclass(frozen=True)
class Gain:
    """Tokens per second: what the swarm has of this peer."""

    swarm: float
    without: float
    """Of the others by themselves; 0 if there are none."""
    alone: float
    """Of this box without others, by the same rule."""

    @property
    def times_alone(self) -> float:
        """What all are worth together, in boxes like this one."""
        return self.swarm / self.alone


def gain(choice: Choice, work: Work) -> Gain:
    def tokens_per_s(peers: int) -> float:
        return predict(choice, replace(work, peers=peers)).swarm_tokens_per_s

    without = tokens_per_s(work.peers - 1) if work.peers > 1 else 0.0
    return Gain(tokens_per_s(work.peers), without, tokens_per_s(1))
