"""From a pass to what a volunteer asks: tokens per second, seconds per round. Pure."""

import math
from dataclasses import dataclass

from atom.plan.choice import Choice


@dataclass(frozen=True)
class Work:
    """What a round asks of this peer."""

    parameters: int
    round_sequences: int
    """The global batch."""
    micro_batch_sequences: int
    sequence_tokens: int
    peers: int
    """That share the global batch and average their gradients, this one included."""


@dataclass(frozen=True)
class Surroundings:
    """What is not the device's."""

    optimizer_elements_per_s: float
    network_bytes_per_s: float
    """The slowest peer's, each way."""
    gradient_element_bytes: float
    """On the wire."""
    steps_beside: bool = True
    """Whether the device computes while the host steps: not if it computes on the host's cores."""


@dataclass(frozen=True)
class RoundPrediction:
    """Seconds of a round when all peers are like this one. The step is taken under the first pass;
    all else happens one after the other."""

    passes: int
    accumulate_s: float
    all_reduce_s: float
    optimizer_s: float
    optimizer_wait_s: float
    """How much longer the first pass takes because of it."""
    tokens_per_s: float
    """Of this peer, while it accumulates."""
    swarm_tokens_per_s: float
    """Of all peers, over whole rounds."""
    utilisation: float
    """Share of a pass in which the device computes."""

    @property
    def round_s(self) -> float:
        return self.accumulate_s + self.all_reduce_s + self.optimizer_wait_s


def predict(choice: Choice, work: Work, surroundings: Surroundings) -> RoundPrediction:
    """Reckons a round from the chosen pass: the share of the batch, the ring, the step.

    A ring of n peers sends and receives 2 (n - 1) / n of the gradients through every link. Of the
    step counts what the first pass waits for; that both use the host's memory is left out.
    """
    sequences = math.ceil(work.round_sequences / work.peers)
    micro_batches = math.ceil(sequences / work.micro_batch_sequences)
    accumulate = choice.seconds_per_micro_batch * micro_batches
    tokens = micro_batches * work.micro_batch_sequences * work.sequence_tokens
    gradient_bytes = work.parameters * surroundings.gradient_element_bytes
    through_link = 2 * (work.peers - 1) / work.peers * gradient_bytes
    all_reduce = through_link / surroundings.network_bytes_per_s
    optimizer = work.parameters / surroundings.optimizer_elements_per_s
    waits = optimizer
    if surroundings.steps_beside:
        under_step = choice.seconds_under_step(surroundings.optimizer_elements_per_s)
        waits = min(under_step - choice.timeline.seconds, optimizer)
    round_s = accumulate + all_reduce + waits
    round_tokens = work.round_sequences * work.sequence_tokens
    return RoundPrediction(
        passes=math.ceil(micro_batches / choice.micro_batches),
        accumulate_s=accumulate,
        all_reduce_s=all_reduce,
        optimizer_s=optimizer,
        optimizer_wait_s=waits,
        tokens_per_s=tokens / accumulate,
        swarm_tokens_per_s=round_tokens / round_s,
        utilisation=choice.timeline.utilisation,
    )
