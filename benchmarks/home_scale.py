"""A round of a large model on home lines, in small: what the passes, the bytes and the lines of a
small one have to be, so that the same share of the time goes into computing. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

PARAMETERS: Mapping[str, float] = {
    "125M": 125e6, "1.3B": 1.3e9, "1.5B": 1.5e9, "2.7B": 2.7e9, "6.7B": 6.7e9, "7B": 7e9,
    "14B": 14e9,
}  # fmt: skip
INNER_TOKENS = 131_072
"""Of one optimizer step of one peer."""
HEADER_BYTES = 66
"""Of a packet: Ethernet 14, IP 20, TCP 20, its timestamps 12."""
LEAST_PASS_S = 0.2
"""Shorter than this, a small model's own computing would be what is measured."""


@dataclass(frozen=True)
class RealRound:
    """What one peer does in one round."""

    parameters: float
    steps: int
    """Optimizer steps of one peer; 1 where each is a round."""
    line_bytes_per_s: float
    """Its line's, up and down alike."""
    number_bytes: float
    """Of a number on the wire."""
    flops_per_s: float
    """Of its device, counting six per parameter and token."""

    @property
    def tokens_per_s(self) -> float:
        return self.flops_per_s / (6 * self.parameters)

    @property
    def passes_s(self) -> float:
        return self.steps * INNER_TOKENS / self.tokens_per_s

    @property
    def exchange_s(self) -> float:
        """Of a large swarm, whose members send each number twice."""
        return 2 * self.parameters * self.number_bytes / self.line_bytes_per_s


@dataclass(frozen=True)
class SmallRound:
    """The same with fewer bytes and in less time."""

    passes: int
    pass_s: float
    line_bytes_per_s: float
    real_seconds: float
    """Of the real round, per second here."""
    elements: int
    number_bytes: float

    @property
    def mbit(self) -> float:
        return self.line_bytes_per_s * 8 / 1e6

    def upload_bytes(self, peers: int) -> float:
        """Of one peer in one round, by the formula: all owners alike."""
        return 2 * (peers - 1) / peers * self.elements * self.number_bytes


def small_round(real: RealRound, elements: int, passes: int, round_s: float) -> SmallRound:
    """`real` with so many `elements`, in about `round_s` if its passes are not too short for it.

    Args:
        passes: of one peer in a round, all of its steps together.
    """
    seconds = (real.passes_s + real.exchange_s) / round_s
    pass_s = max(real.passes_s / seconds / passes, LEAST_PASS_S)
    seconds = real.passes_s / (pass_s * passes)
    line = real.line_bytes_per_s * elements / real.parameters * seconds
    return SmallRound(passes, pass_s, line, seconds, elements, real.number_bytes)
