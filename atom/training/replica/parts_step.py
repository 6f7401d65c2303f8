"""What an exchange makes of a round's means where the optimizer's state is in parts
(`docs/decisions/state-in-parts.md`)."""

import math
import struct
from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from atom.base.reasons import Reason
from atom.optim.clipping import (
    block_squares,
    norm_of_pieces,
    norm_of_squares,
    starts_of_blocks,
)
from atom.optim.optimizer import Optimizer, StepTerms
from atom.optim.state_in_parts import PartsNumbers, step_aside
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HostStore
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.part_rows import LOADED, ROW_BYTES, Row

_SUM = struct.Struct("<d")


class PartsStep:
    """The `PartsWork` of one attempt. Changes nothing of the store."""

    row_bytes = ROW_BYTES

    def __init__(
        self,
        optimizer: Optimizer,
        store: HostStore,
        codec: Codec,
        terms: Callable[[float], StepTerms],
        keep: Callable[[Mapping[bytes, EncodedMean]], None],
    ) -> None:
        """`terms`: of the step on a mean of that norm; raises ValueError if it is not finite.
        `keep`: the means of what is held here, by digest, before anybody makes anything of them."""
        assert store.held is not None
        self._optimizer, self._store, self._codec = optimizer, store, codec
        self._terms_of, self._keep = terms, keep
        self._parts = store.held.parts
        self.ranges = tuple(map(self._parts.range, range(self._parts.count)))
        """Elements of each part."""
        self._held = store.held.dtypes
        self.made_bytes = store.working.itemsize
        self.whole_bytes = self.made_bytes + sum(each.itemsize for each in self._held.values())
        self.norm = 0.0
        self._names = dict[int, bytes]()
        """Digests of the means of what is held here."""

    def averaged(self, means: Mapping[int, EncodedMean]) -> None:
        self._names = {part: state_digest(mean.arenas) for part, mean in means.items()}
        self._keep({self._names[part]: mean for part, mean in means.items()})

    def sums_bytes(self, part: int) -> int:
        return _SUM.size * len(starts_of_blocks(self._parts.size(part)))

    def sums_of(self, part: int, mean: EncodedMean) -> bytes:
        """The sums of squares of the part's blocks."""
        size = self._parts.size(part)
        squares = block_squares(mean.numbers(self._codec, size), starts_of_blocks(size))
        return b"".join(map(_SUM.pack, squares.values()))

    def decide(self, sums: bytes) -> None:
        """Raises: ValueError for a norm that is not finite."""
        self.norm = norm_of_squares(each for (each,) in _SUM.iter_unpack(sums))
        self._terms = self._terms_of(self.norm)

    def make(self, part: int, mean: EncodedMean, whole: bool) -> tuple[Tensor, bytes]:
        numbers = PartsNumbers(
            self._parts, {part: mean.numbers(self._codec, self._parts.size(part))}
        )
        size, of_loaded = self._parts.size(part), self._parts.size(part) * self.made_bytes
        made = allocate_host_memory(size * self.whole_bytes if whole else of_loaded, torch.uint8)
        loaded, held = self.loaded(part, made), {n: a[:size] for n, a in self._scratch.items()}
        aside = {self._store.loaded: loaded, **held}
        step_aside(self._optimizer, self._store, part, numbers, self._terms, aside)
        if whole:
            torch.cat([each.view(torch.uint8) for each in held.values()], out=made[of_loaded:])
        row = Row(self._names[part], state_digest({LOADED: loaded}), state_digest(held))
        return made, row.raw

    @cached_property
    def _scratch(self) -> dict[str, Tensor]:
        """Room for what is held of a part, whichever."""
        most = self._parts.most_elements(1)
        return {name: allocate_host_memory(most, dtype) for name, dtype in self._held.items()}

    def problem_of(
        self, part: int, row: bytes, mean: EncodedMean | None, made: Tensor | None
    ) -> Reason | None:
        """Weights and moments that are not finite would never be so again, at any peer."""
        told, came = Row.of(row), list[tuple[Mapping[str, Tensor], bytes]]()
        if mean is not None and self._names[part] != told.mean:
            return Reason.HASH_MISMATCH
        if made is not None:
            came.append(({LOADED: self.loaded(part, made)}, told.loaded))
            came += [(held, told.held)] if (held := self.held(part, made)) else []
        if any(state_digest(arenas) != digest for arenas, digest in came):
            return Reason.HASH_MISMATCH
        numbers = (each for arenas, _ in came for each in arenas.values())
        finite = math.isfinite(norm_of_pieces(each for each in numbers if each.is_floating_point()))
        return None if finite else Reason.NOT_FINITE

    def loaded(self, part: int, made: Tensor) -> Tensor:
        """What was made of a part, in the numbers that are loaded."""
        upto = self._parts.size(part) * self.made_bytes
        return made[:upto].view(self._store.working.dtype)

    def held(self, part: int, made: Tensor) -> Mapping[str, Tensor]:
        """The rest of the part's state, by name: copies. Empty where that did not come."""
        size, arenas = self._parts.size(part), dict[str, Tensor]()
        at = size * self.made_bytes
        if at == made.numel():
            return arenas
        for name, dtype in self._held.items():
            upto = at + size * dtype.itemsize
            arenas[name], at = made[at:upto].clone().view(dtype), upto  # where its numbers may lie
        return arenas
