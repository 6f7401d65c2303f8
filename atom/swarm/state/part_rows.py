"""What names a round's result where the optimizer's state is in parts.

A part's row is three digests of contents: of its mean as it travelled, of what is loaded of it, and
of the rest of its state. The result is named by the digest of all rows. So it names the next state;
and whoever lacks a part of a result, or of a state, can fetch that by its digest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.arenas import DIGEST_BYTES

ROWS, LOADED = "rows", "loaded"
"""Arenas of contents: a table; what is loaded of a part."""
ROW_BYTES = 3 * DIGEST_BYTES


@dataclass(frozen=True)
class Row:
    """Of one part: digests of contents."""

    mean: bytes
    loaded: bytes
    held: bytes
    """Of its state after the round, but for what is loaded."""

    @classmethod
    def of(cls, raw: bytes) -> "Row":
        return cls(*(raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)))

    @property
    def raw(self) -> bytes:
        return self.mean + self.loaded + self.held


def table_of(rows: tuple[Row, ...]) -> Mapping[str, Tensor]:
    """Of no rows: that of the first state, which no result led to."""
    raw = b"".join(row.raw for row in rows)
    told = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0).byte()
    return {ROWS: told}


def rows_of(table: Mapping[str, Tensor]) -> tuple[Row, ...]:
    """Raises: PeerRefused(MALFORMED)."""
    rows = table.get(ROWS)
    if rows is None or rows.dtype != torch.uint8 or rows.numel() % ROW_BYTES:
        raise PeerRefused(Reason.MALFORMED, "a table of no rows")
    raw = rows.numpy().tobytes()
    return tuple(Row.of(raw[at : at + ROW_BYTES]) for at in range(0, len(raw), ROW_BYTES))
