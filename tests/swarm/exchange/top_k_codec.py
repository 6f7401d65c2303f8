"""A codec for tests: of every chunk most of the largest numbers, with their places. What was
decoded would not be encoded as the same bytes again."""

import torch
from torch import Tensor

from atom.swarm.exchange.codec import Codec, NotCanonical, NotFinite

ONE_OF, MOST = 8, 0.75


class TopK(Codec):
    """Of an eighth of a chunk's numbers that are not zero: largest first by magnitude, of equal
    ones the earlier first. On the wire: float32 values, then int32 places."""

    name = "top-k"
    element_bytes = 1
    given_back = 1.0
    fixed_size = False

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        order = torch.argsort(values.abs(), descending=True, stable=True)
        places = order[: values.numel() // ONE_OF]
        places = places[values[places] != 0]
        chosen = MOST * values[places]
        wire = self.wire(values, scratch)[: 8 * places.numel()]
        wire.view(torch.float32)[: places.numel()] = chosen
        wire.view(torch.int32)[places.numel() :] = places.int()
        if lost is not None:
            lost.copy_(values)
            lost[places] -= chosen
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        if wire.numel() % 8 or wire.numel() > self.wire_bytes(out.numel()):
            raise NotCanonical
        count = wire.numel() // 8
        places = wire.view(torch.int32)[count:].long()
        if not ((places >= 0) & (places < out.numel())).all() or places.unique().numel() != count:
            raise NotCanonical
        out.zero_()
        out[places] = wire.view(torch.float32)[:count]
        if not torch.isfinite(out).all():
            raise NotFinite
