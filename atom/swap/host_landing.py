"""Where gradients land on the host: what is to be added to what."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from atom.swap.gate import Gate
from atom.swap.host_sums import add, add_rounded


def at_once() -> None:
    """For loads that have nothing to wait for."""


@dataclass(frozen=True)
class Noise:
    """What sums in bfloat16 are rounded with: see `atom.swap.host_sums.add_rounded`."""

    key: int
    first: int
    """The number of the first element."""


@dataclass(frozen=True)
class HostSum:
    """Bring `source` [n] from the device to the host: add it to `destination` [n], or replace.

    If the destination is bfloat16, the float32 source is rounded to nearest before it leaves. What
    is to be replaced is worth nothing: it may be overwritten before the gate is asked.
    """

    destination: torch.Tensor
    source: torch.Tensor
    replace: bool
    noise: Noise | None = None
    """Wanted where something is added to bfloat16."""


def landing(sums: Sequence[HostSum], staging: torch.Tensor) -> list[HostSum]:
    """The same sums, of what will lie on the host: what is to be added in `staging`, one behind the
    other; what replaces, where it belongs."""
    landed, offset = [], 0
    for part in sums:
        if part.replace:
            landed.append(replace(part, source=part.destination))
            continue
        end = offset + part.source.numel()
        landed.append(replace(part, source=staging[offset:end]))
        offset = end
    return landed


@torch.no_grad()
def add_admitted(sums: Sequence[HostSum], gate: Gate, verdict: torch.Tensor | bool) -> None:
    """Carries out the sums if the gate admits them; sources and destinations are host memory.

    Raises: NotFinite.
    """
    if not gate.admits(verdict, adds=len(sums) > 0):
        return
    for part in sums:
        if not part.replace:
            _add(part)
        elif part.source is not part.destination:
            part.destination.copy_(part.source)


def _add(part: HostSum) -> None:
    if part.destination.dtype == torch.float32:
        add(part.destination, part.source)
    else:
        assert part.noise is not None, "sums in bfloat16 are rounded at random"
        add_rounded(part.destination, part.source, part.noise.first, part.noise.key)
