"""Cases that are measured, one per row of the table of targets, the weightiest first.

Targets are for one H200 with 16 cores, and GPT-3 2.7B unless the name says otherwise. 8k to 131k
are tokens per optimizer step, in micro-batches of two sequences of 2048 (of one, under 3 GB).
Limits of speeds and seconds follow from the planner's arithmetic, at most a tenth below.
"""

from dataclasses import dataclass, replace
from enum import Enum

from benchmarks.swap.setup import TINY
from benchmarks.swap.sides import ATOM, BOUND, EXACTNESS, FSDP, MEMORY, RATES, WHOLE

GB = 10**9
PASSES = 8
"""Passes of the case that accumulates."""


class Kind(Enum):
    STEPS = "optimizer steps, side by side"
    ACCUMULATE = "one pass per step, then eight"
    EXACTNESS = "weights, step by step"
    RATES = "rates of the machine"


@dataclass(frozen=True)
class Target:
    """Limit of one figure; `figure` is a key of `Measured.figures`."""

    what: str
    figure: str
    limit: float
    at_most: bool = False

    @property
    def text(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:.4g}"

    def met(self, measured: float) -> bool:
        return measured <= self.limit if self.at_most else measured >= self.limit


@dataclass(frozen=True)
class Case:
    name: str
    kind: Kind
    targets: tuple[Target, ...]
    rivals: tuple[str, ...] = ()
    """Names of the sides that Atom is compared with."""
    size: str = "2.7b"
    micro_batches: int = 8
    sequences: int = 2
    gpu_bytes: int | None = 6 * GB
    layout: str = "exact"
    gradients: str = "float32"
    steps: int = 3
    trained: float | None = None
    """Share of the layers that are trained on the device (all layers stay there then); None: as
    planned."""

    def as_toy(self) -> "Case":
        """Return the case at a size for a laptop's processor, to see that it runs."""
        return replace(
            self,
            size="tiny",
            micro_batches=min(self.micro_batches, 2),
            gpu_bytes=None,
            steps=min(self.steps, 2),
        )

    @property
    def tokens_per_sequence(self) -> int:
        return TINY.sequence_tokens if self.size == "tiny" else 2048

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.micro_batches * self.sequences * self.tokens_per_sequence


def of(rival: str, share: float) -> Target:
    return Target(f"speed beside {rival}", f"speed beside {rival}", share)


def gpu(limit_bytes: float) -> Target:
    return Target("GPU memory, GB", "gpu_gb", limit_bytes / GB, at_most=True)


CASES = (
    Case(
        "exactness", Kind.EXACTNESS,
        (Target("steps with equal weights, float32", "equal steps, float32", 1.0),
         Target("steps with equal weights, bfloat16", "equal steps, bfloat16", 1.0)),
        size="small", micro_batches=3, gpu_bytes=None, steps=49,
    ),
    Case(
        "rates", Kind.RATES,
        (
            Target("host AdamW in place, link busy, Gparam/s", "adamw_g_per_s", 4.0),
            Target("link beside AdamW, each way, GB/s", "link_gb_per_s", 40.0),
        ),
        gpu_bytes=None,
    ),
    Case(
        "2.7b-32k", Kind.STEPS,
        (
            of(MEMORY, 0.70), gpu(6 * GB), Target("compute stream busy", "busy", 0.70),
        ),
        (MEMORY, WHOLE, FSDP),
    ),
    Case(
        "2.7b-131k", Kind.STEPS, (of(MEMORY, 0.85),), (MEMORY, WHOLE), micro_batches=32, steps=2
    ),
    Case(
        "6.7b-32k-half", Kind.STEPS, (of(BOUND, 0.65),), (BOUND,),
        size="6.7b", gpu_bytes=10 * GB, layout="half", steps=2,
    ),
    Case(
        "2.7b-32k-3gb", Kind.STEPS, (of(MEMORY, 0.65), gpu(3 * GB)), (MEMORY,),
        micro_batches=16, sequences=1, gpu_bytes=3 * GB,
    ),
    *(
        Case(
            name, Kind.STEPS, (of(MEMORY, share),), (MEMORY,),
            micro_batches=micro_batches, gpu_bytes=None, steps=2, trained=trained,
        )
        for name, trained, micro_batches, share in (
            ("trained-all", 1.0, 8, 0.95), ("trained-half", 0.5, 8, 0.80),
            ("trained-none", 0.0, 8, 0.55), ("trained-all-8k", 1.0, 2, 0.90),
        )
    ),
    Case(
        "2.7b-8k", Kind.STEPS,
        (Target("seconds per step", "step_s", 1.10, at_most=True),), (MEMORY,), micro_batches=2,
    ),
    Case(
        "2.7b-16k", Kind.STEPS, (of(MEMORY, 0.55),), (MEMORY,), micro_batches=4
    ),
    Case(
        "accumulate-8", Kind.ACCUMULATE,
        (Target("seconds per token, 8 passes to 1", "8 passes to 1", 1.0, at_most=True),),
        micro_batches=4, steps=2,
    ),
    Case(
        "2.7b-8k-half", Kind.STEPS,
        (Target("seconds per step", "step_s", 1.05, at_most=True),),
        (MEMORY,), micro_batches=2, layout="half",
    ),
    Case(
        "6.7b-32k", Kind.STEPS,
        (
            of(MEMORY, 0.65), of(BOUND, 0.65), gpu(10 * GB),
            Target("host memory, GB", "host_gb", 134.2, at_most=True),
            Target("seconds until ready", "ready_s", 60.0, at_most=True),
        ),
        (BOUND, MEMORY), size="6.7b", gpu_bytes=10 * GB, layout="split",
    ),
    Case(
        "13b-8k-half", Kind.STEPS, (of(BOUND, 0.30),), (BOUND,),
        size="13b", micro_batches=2, gpu_bytes=20 * GB, layout="half",
        gradients="bfloat16", steps=2,
    ),
)  # fmt: skip
TINY_CASE = Case(
    "tiny", Kind.STEPS, (), (MEMORY, FSDP), size="tiny", micro_batches=4, gpu_bytes=None
)
BY_NAME = {case.name: case for case in (*CASES, TINY_CASE)}
OURS = ATOM, EXACTNESS, RATES
