"""Find the update rule and codec with which a run suits a connection. Pure functions.

The rule every-step is synchronous training, and its loss is known. Local steps need more sequences
per round and make the loss somewhat worse (docs/local-steps.md). So they are for slow connections,
on which nothing else leaves enough time for passes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atom.base.errors import ConfigError
from atom.base.units import format_bytes
from atom.config.load import normalised_run_text, run_from_text
from atom.config.run_file import EVERY_STEP, LOCAL_STEPS, RunFile

SYNCHRONOUS_CODECS = ("float32", "bfloat16", "int8")
"""Codecs for the rule every-step, most exact first; its loss with int4 has not been compared."""
LOCAL_CODECS = ("int4", "sparse")
"""Codecs for local steps, whose loss was as with float32 (docs/local-steps.md)."""
ENOUGH = 0.9
"""Fraction of time in passes from which a less exact variant is not worth its loss."""
INNER_STEPS = 30
"""Inner steps of each peer per round if the run file has none, as in published runs."""


def run_variants(run: RunFile, peers: int) -> Iterator[RunFile]:
    """Yield the valid variants of a run, most exact first.

    All variants have the same number of sequences per optimizer step, counted over the whole swarm.

    Args:
        run: The run to vary.
        peers: Number of peers, which share the sequences of a step.
    """
    whole, inner = run.batch.global_sequences, run.update.inner_sequences
    if inner is None:
        step, inner = whole, -(-whole // peers)
        whole = INNER_STEPS * peers * inner
    else:
        step = min(inner * peers, whole)
    for codec in SYNCHRONOUS_CODECS:
        yield from _variant(run, codec, step, {"rule": EVERY_STEP})
    outer = run.update.model_dump(exclude_unset=True)
    local = outer | {"rule": LOCAL_STEPS, "inner_sequences": inner}
    for codec in LOCAL_CODECS:
        yield from _variant(run, codec, whole, local)


def _variant(run: RunFile, codec: str, sequences: int, update: dict[str, Any]) -> Iterator[RunFile]:
    content = json.loads(normalised_run_text(run))
    content["update"] = update
    content["swarm"]["codec"] = codec
    content["batch"]["global_sequences"] = max(sequences, run.batch.micro_batch_sequences)
    try:
        yield run_from_text(json.dumps(content))
    except ConfigError:
        return


@dataclass(frozen=True)
class Recommendation:
    """Recommended variant of a run."""

    run: RunFile
    utilisation: float
    """Fraction of the time in which passes run."""
    reason: str
    """Reason for the recommendation, one sentence."""

    @property
    def keys(self) -> dict[str, str | int]:
        """Keys of the run file that a founder sets for this variant, with their values."""
        run, inner = self.run, self.run.update.inner_sequences
        keys: dict[str, str | int] = {"rule": run.update.rule, "codec": run.swarm.codec}
        keys["global_sequences"] = run.batch.global_sequences
        return keys if inner is None else keys | {"inner_sequences": inner}


def recommend(
    offered: Sequence[RunFile], shares: Sequence[float], more_host_bytes: Sequence[int]
) -> Recommendation:
    """Recommend the most exact variant with enough of its time in passes (ENOUGH).

    If there is no such variant, recommend the one with the largest share.

    Args:
        offered: Variants of a run, most exact first.
        shares: Fraction of the time in passes, by variant.
        more_host_bytes: Difference in host memory between each variant and the run itself.
    """
    enough = (n for n, share in enumerate(shares) if share >= ENOUGH)
    best = next(enough, shares.index(max(shares)))
    reason = f"passes get {shares[best]:.0%} of the time on this line"
    if best:
        before = max(range(best), key=lambda n: shares[n])
        instead = f"{offered[before].update.rule} with {offered[before].swarm.codec}"
        reason = f"{reason}, and {shares[before]:.0%} by {instead}"
    if more_host_bytes[best] > 0:
        reason = f"{reason}; it takes {format_bytes(more_host_bytes[best])} more of host memory"
    return Recommendation(offered[best], shares[best], f"{reason}.")
