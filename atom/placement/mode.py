"""Which update rule and codec suit a model and a line: the most exact that leaves time to compute.

Every-step is synchronous training, and its loss is known. Local steps ask for more sequences a
round and cost some loss (docs/local-steps.md), so they are for lines on which nothing else leaves
time for passes. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from atom.base.units import format_bytes
from atom.placement.choice import Choice
from atom.placement.prediction import Surroundings, Work, predict

ENOUGH = 0.9
"""Share of the time in passes from which nothing more is worth its loss."""


@dataclass(frozen=True)
class Mode:
    """A way in which a run could be trained."""

    rule: str
    codec: str
    work: Work
    surroundings: Surroundings
    more_host_bytes: int
    """Than the run file's way takes."""

    @property
    def keys(self) -> dict[str, str | int]:
        """Of the run file, with their values."""
        keys: dict[str, str | int] = {"rule": self.rule, "codec": self.codec}
        keys["global_sequences"] = self.work.round_sequences
        if self.work.inner_sequences is not None:
            keys["inner_sequences"] = self.work.inner_sequences
        return keys


@dataclass(frozen=True)
class Recommendation:
    mode: Mode
    utilisation: float
    reason: str
    """One sentence."""


def recommend(choice: Choice, modes: Sequence[Mode]) -> Recommendation:
    """The first of `modes`, which come most exact first, with ENOUGH time for passes; if none has,
    the one with most."""
    shares = [predict(choice, mode.work, mode.surroundings).utilisation for mode in modes]
    enough = (n for n, share in enumerate(shares) if share >= ENOUGH)
    best = next(enough, shares.index(max(shares)))
    reason = f"passes get {shares[best]:.0%} of the time on this line"
    if best:
        before = max(range(best), key=lambda n: shares[n])
        instead = f"{modes[before].rule} with {modes[before].codec}"
        reason = f"{reason}, and {shares[before]:.0%} by {instead}"
    if (more := modes[best].more_host_bytes) > 0:
        reason = f"{reason}; it takes {format_bytes(more)} more of host memory"
    return Recommendation(modes[best], shares[best], f"{reason}.")
