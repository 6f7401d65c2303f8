"""Predict a round from the chosen pass: its seconds, its network traffic, and the swarm's speed.

With one optimizer step per round, no pass runs while gradients are averaged, so a round takes the
sum of both times. With local steps, the next round's inner steps run during the averaging, so a
round takes the longer of both times. Pure functions.
"""

import math
from dataclasses import dataclass, replace

from atom.plan.choice import Choice, HostStep

DAY_S = 86400


@dataclass(frozen=True)
class Work:
    """Work of a round, and rates of this peer and of the network. The device is not part of it."""

    parameters: int
    """Number of trained elements of the model."""
    round_sequences: int
    """Sequences of the global batch, which all peers share."""
    micro_batch_sequences: int
    sequence_tokens: int
    peers: int
    """Number of peers that share the global batch and average together, including this peer."""
    inner_sequences: int | None
    """Sequences of an inner step. None: no local steps; a round is one step of the whole swarm."""
    step: HostStep
    """Rates of an optimizer step on this peer's host."""
    network_bytes_per_s: float
    """Rate of the slowest peer's connection, in each direction."""
    gradient_element_bytes: float
    """Bytes per averaged number on the network."""
    steps_beside: bool
    """True if devices compute while the host takes an optimizer step.

    False if the devices are the host's cores, which passes and steps share.
    """
    dialable: int | None = None
    """Number of peers that other peers can dial; None: all."""


@dataclass(frozen=True)
class RoundPrediction:
    """Prediction of a round in which all peers are as fast as this peer.

    If the device does not use the host's cores, optimizer steps run during passes.
    """

    passes: int
    """Number of passes of each group of devices."""
    accumulate_s: float
    """Seconds of all passes, if no pass waited for an optimizer step."""
    steps: int
    """Number of optimizer steps of this peer; with local steps, the outer step is counted too."""
    optimizer_s: float
    """Seconds of one optimizer step on the host, by itself."""
    optimizer_wait_s: float
    """Seconds by which a step makes the passes between two steps longer.

    The first pass waits for updated parameters. A peer that steps by itself also computes the norm
    of its gradients before the step.
    """
    line_bytes: float
    """Bytes that the busiest peer sends; it receives as many."""
    all_reduce_s: float
    """Seconds of averaging over the network."""
    overlapped: bool
    """True if passes run during the averaging."""
    tokens: int
    """Number of tokens that all peers train on in the round."""

    @property
    def passes_s(self) -> float:
        """Seconds of all passes, including waits for optimizer steps."""
        return self.accumulate_s + self.steps * self.optimizer_wait_s

    @property
    def round_s(self) -> float:
        """Seconds of the round: passes and averaging, one after the other or overlapped."""
        if self.overlapped:
            return max(self.passes_s, self.all_reduce_s)
        return self.passes_s + self.all_reduce_s

    @property
    def utilisation(self) -> float:
        """Fraction of the round in which passes run."""
        return self.passes_s / self.round_s

    @property
    def swarm_tokens_per_s(self) -> float:
        """Tokens per second of all peers together."""
        return self.tokens / self.round_s

    @property
    def line_bytes_per_day(self) -> float:
        """Bytes that the busiest peer sends in a day of training; it receives as many."""
        return self.line_bytes / self.round_s * DAY_S


def exchange_bytes(
    elements: int, element_bytes: float, peers: int, dialable: int | None = None
) -> float:
    """Return the bytes that the busiest line sends, and receives, in an exchange.

    Of n peers, the k that can be dialled own equal parts. The line of each carries 1 + (n - 2) / k
    times the bytes of the averaged numbers in either direction; with k = n that is 2 (n - 1) / n,
    as in a ring. The line of a peer that cannot be dialled carries them once.

    Args:
        elements: Number of averaged numbers.
        element_bytes: Bytes per number on the network.
        peers: Number of peers that average together.
        dialable: Number of peers that own parts, at least one; None: all.
    """
    owners = min(dialable or peers, peers)
    averages = 1 + (peers - 2) / owners if peers > 1 else 0
    return averages * (elements * element_bytes)


def predict(choice: Choice, work: Work) -> RoundPrediction:
    """Predict a round: this peer's passes, its optimizer steps, and the averaging.

    The outer step of local steps reads and writes about as much as an optimizer step, and counts as
    one. With local steps nothing is trained on the device.

    Args:
        choice: How this peer's devices run the model.
        work: Work of the round, and rates of host and network.
    """
    if work.inner_sequences is not None:
        choice = replace(choice, arrangement=replace(choice.arrangement, trained=frozenset()))
    sequences = math.ceil(work.round_sequences / work.peers)
    micro_batches = math.ceil(sequences / work.micro_batch_sequences)
    micro_batches = math.ceil(micro_batches / (choice.groups if work.steps_beside else 1))
    if micro_batches < choice.micro_batches:  # a pass with fewer micro-batches may take as long
        choice = choice.allowing(micro_batches=micro_batches)
    inner = work.inner_sequences
    wire = work.parameters, work.gradient_element_bytes
    line_bytes = exchange_bytes(*wire, work.peers, work.dialable)
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
    """Tokens per second of the swarm with and without this peer, and of this peer alone."""

    swarm: float
    """Tokens per second of all peers together."""
    without: float
    """Tokens per second of the swarm without this peer; 0 if there are no other peers."""
    alone: float
    """Tokens per second of this peer without a swarm, with the same update rule."""

    @property
    def times_alone(self) -> float:
        """Speed of the swarm as a multiple of the speed of this peer alone."""
        return self.swarm / self.alone


def gain(choice: Choice, work: Work) -> Gain:
    """Predict the swarm's speed with and without this peer, and this peer's speed alone.

    Args:
        choice: How this peer's devices run the model.
        work: Work of the round, and rates of host and network.
    """

    def tokens_per_s(peers: int) -> float:
        return predict(choice, replace(work, peers=peers)).swarm_tokens_per_s

    without = tokens_per_s(work.peers - 1) if work.peers > 1 else 0.0
    return Gain(tokens_per_s(work.peers), without, tokens_per_s(1))
