"""A run as it could be founded instead: the same steps by another update rule or codec. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from atom.base.errors import ConfigError
from atom.config.load import normalised_run_text, run_from_text
from atom.config.run_file import EVERY_STEP, LOCAL_STEPS, RunFile

SYNCHRONOUS_CODECS = ("float32", "bfloat16", "int8")
"""Most exact first. With int4 nobody has compared the loss of every-step."""
LOCAL_CODECS = ("int4", "sparse")  # their loss was that of float32 (docs/local-steps.md)
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
