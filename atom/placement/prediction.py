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
class Parts:
    """Of the optimizer's state, as many of each peer. Who sums a part steps it for all, before the
    round is decided; who holds it takes the same step after that."""

    holders: int
    """Of each part, if there are so many peers."""
    weight_bytes: int
    """Of a weight, as it travels."""
    made_per_s: float
    """Parameters that one peer steps for all."""


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
    parts: Parts | None = None
    """Of the optimizer's state, of which each peer keeps some; None: all of it."""

    @property
    def holders(self) -> int:
        """Peers that keep the same of the state."""
        return self.peers if self.parts is None else min(self.parts.holders, self.peers)

    @property
    def made_s(self) -> float:
        """Of a peer that steps its share for all."""
        share = self.parameters / self.peers
        return 0.0 if self.parts is None else share / self.parts.made_per_s


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

    The outer rule, which reads and writes about as much as an optimizer, counts as another step.
    With local steps nothing is trained on the device.
    """
    if work.inner_sequences is not None:
        choice = replace(choice, arrangement=replace(choice.arrangement, trained=frozenset()))
    sequences = math.ceil(work.round_sequences / work.peers)
    micro_batches = math.ceil(sequences / work.micro_batch_sequences)
    micro_batches = math.ceil(micro_batches / (choice.groups if work.steps_beside else 1))
    if micro_batches < choice.micro_batches:  # a pass of fewer may take as long
        choice = choice.allowing(micro_batches=micro_batches)
    inner = work.inner_sequences
    line_bytes, all_reduce_s = exchange(work)
    step, on_host = _step(work), max(work.parameters - choice.trained_elements, 0)
    optimizer = waits = on_host / step.elements_per_s
    passes = math.ceil(micro_batches / choice.micro_batches)
    full = micro_batches / (passes * choice.micro_batches)
    if work.steps_beside:
        between = min(math.ceil((inner or sequences) / sequences * passes), passes)
        own = inner is not None
        waits = choice.passes_s(between, step, norm=own) - choice.passes_s(between)
        if work.peers == 1 and not own:
            waits += choice.norm_s(on_host)
    return RoundPrediction(
        passes=passes,
        accumulate_s=choice.passes_s(passes) * full,
        steps=1 if inner is None else math.ceil(sequences / inner) + 1,
        optimizer_s=optimizer,
        optimizer_wait_s=waits,
        line_bytes=line_bytes,
        all_reduce_s=all_reduce_s,
        overlapped=inner is not None,
        tokens=work.round_sequences * work.sequence_tokens,
    )


def exchange(work: Work) -> tuple[float, float]:
    """Bytes through a peer's line, up, and as much down; and seconds.

    Of n peers each sums an n-th: in a ring, or by parts with equal shares. It sends its numbers of
    all else, (n - 1) / n of an average; the mean of its n-th to the others that keep the same of
    the state, where this is whole to n - 1; and to the rest the weights that it makes meanwhile.
    """
    peers, parts = work.peers, work.parts
    means = (peers - 1 + work.holders - 1) / peers
    averages_bytes = means * work.parameters * work.gradient_element_bytes
    weights_bytes, rate = 0.0, work.network_bytes_per_s
    if parts is not None:
        rest = (peers - work.holders) / peers
        weights_bytes = rest * work.parameters * parts.weight_bytes
    seconds = averages_bytes / rate + max(weights_bytes / rate, work.made_s)
    return averages_bytes + weights_bytes, seconds


def _step(work: Work) -> HostStep:
    """Of a decided round, per parameter of the model: a step of what is kept of the state, and of
    the rest the weights that came are put in place. Both are as slow as the host's memory."""
    step, kept = work.step, work.holders / work.peers
    if work.parts is None:
        return step
    moved = kept * step.element_bytes + (1 - kept) * 2 * work.parts.weight_bytes
    return HostStep(step.elements_per_s * step.element_bytes / moved, moved)


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
