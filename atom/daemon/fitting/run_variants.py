"""A run as it could be founded instead: the same steps by another update rule or codec; and which
of these suits a line. Pure.

Every-step is synchronous training, and its loss is known. Local steps ask for more sequences a
round and cost some loss (docs/local-steps.md), so they are for lines on which nothing else leaves
time for passes.
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
"""Most exact first. With int4 nobody has compared the loss of every-step."""
LOCAL_CODECS = ("int4", "sparse")  # their loss was that of float32 (docs/local-steps.md)
ENOUGH = 0.9
"""Share of the time in passes from which nothing more is worth its loss."""
INNER_STEPS = 30
"""Of each peer between two rounds, where the run file does not say: as in published runs."""


def run_variants(run: RunFile, peers: int) -> Iterator[RunFile]:
    """Most exact first; only those that a run file may ask for. An optimizer step, of the swarm or
    of its peers side by side, has as many sequences in all of them."""
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
    run: RunFile
    utilisation: float
    reason: str
    """One sentence."""

    @property
    def keys(self) -> dict[str, str | int]:
        """Of the run file, with their values."""
        run, inner = self.run, self.run.update.inner_sequences
        keys: dict[str, str | int] = {"rule": run.update.rule, "codec": run.swarm.codec}
        keys["global_sequences"] = run.batch.global_sequences
        return keys if inner is None else keys | {"inner_sequences": inner}


def recommend(
    offered: Sequence[RunFile], shares: Sequence[float], more_host_bytes: Sequence[int]
) -> Recommendation:
    """The first of `offered`, most exact first, with ENOUGH of the time in passes, which have these
    `shares` of it; if none has, the one with most. `more_host_bytes`: than the run itself takes."""
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
