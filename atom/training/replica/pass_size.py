"""How many micro-batches go through a pass after memory ran out. Pure.

What a pass holds beside the weights grows with its micro-batches (values between sub-models, kept
graphs), so half as many are tried. One alone is tried twice: the first time, what another program
held may be free again. The number does not grow again: what did not fit once is a plan that was too
tight, and every attempt may throw away a round's work.
"""

from dataclasses import dataclass, replace

ATTEMPTS_ALONE = 2


@dataclass(frozen=True)
class PassSize:
    most: int
    """Micro-batches per pass."""
    failures_alone: int = 0
    """In a row, of passes with a single micro-batch."""

    def after_sound(self) -> "PassSize":
        return replace(self, failures_alone=0)

    def after_out_of_memory(self, micro_batches: int) -> "PassSize | None":
        """`micro_batches`: of the pass that failed. None: not even one fits."""
        if micro_batches > 1:
            return PassSize(min(self.most, micro_batches // 2))
        if self.failures_alone + 1 >= ATTEMPTS_ALONE:
            return None
        return PassSize(1, self.failures_alone + 1)
