"""A round of a large model on home lines, in small: passes, bytes and lines of the small round, so
that computing takes the same share of time. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

PARAMETERS: Mapping[str, float] = {
    "125M": 125e6, "1.3B": 1.3e9, "1.5B": 1.5e9, "2.7B": 2.7e9, "6.7B": 6.7e9, "7B": 7e9,
    "14B": 14e9,
}  # fmt: skip
INNER_TOKENS = 131_072
"""Tokens of one optimizer step of one peer."""
HEADER_BYTES = 66
"""Headers of a packet: Ethernet 14, IP 20, TCP 20, its timestamps 12."""
LEAST_PASS_S = 0.2
"""Least pass: below, the small model's own computing would be measured."""


@dataclass(frozen=True)
class RealRound:
    """Work of one peer in one round."""

    parameters: float
    steps: int
    """Optimizer steps of one peer; 1 if each step is a round."""
    line_bytes_per_s: float
    """Rate of the line, up and down alike."""
    number_bytes: float
    """Size of a number on the wire."""
    flops_per_s: float
    """Rate of the device, counting six operations per parameter and token."""

    @property
    def tokens_per_s(self) -> float:
        return self.flops_per_s / (6 * self.parameters)

    @property
    def passes_s(self) -> float:
        return self.steps * INNER_TOKENS / self.tokens_per_s

    @property
    def exchange_s(self) -> float:
        """Seconds of an exchange in a large swarm, whose members send each number twice."""
        return 2 * self.parameters * self.number_bytes / self.line_bytes_per_s


@dataclass(frozen=True)
class SmallRound:
    """Small round, with fewer bytes and in less time."""

    passes: int
    pass_s: float
    line_bytes_per_s: float
    real_seconds: float
    """Real seconds per second of the small round."""
    elements: int
    number_bytes: float

    def upload_bytes(self, peers: int) -> float:
        """Return bytes that one peer sends in one round, by the formula of equal owners."""
        return 2 * (peers - 1) / peers * self.elements * self.number_bytes


def small_round(real: RealRound, elements: int, passes: int, round_s: float) -> SmallRound:
    """Return a real round in small.

    Args:
        real: the round.
        elements: of the small model.
        passes: of one peer in a round, over all steps.
        round_s: duration of the small round, unless passes would be too short.
    """
    seconds = (real.passes_s + real.exchange_s) / round_s
    pass_s = max(real.passes_s / seconds / passes, LEAST_PASS_S)
    seconds = real.passes_s / (pass_s * passes)
    line = real.line_bytes_per_s * elements / real.parameters * seconds
    return SmallRound(passes, pass_s, line, seconds, elements, real.number_bytes)
