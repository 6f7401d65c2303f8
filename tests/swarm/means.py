"""Averages in the form in which peers hold them."""

import torch
from torch import Tensor

from atom.swarm.exchange.allreduce import Channels, all_reduce
from atom.swarm.exchange.codec import EXACT, Codec
from atom.swarm.exchange.contribution import Sums
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.exchange.reduction import Terms


def encoded(numbers: Tensor, codec: Codec = EXACT) -> EncodedMean:
    """Return the encoded mean of an exchange with a single member."""
    terms = Terms(("me",), 0, bytes(32), 1.0, codec)
    wires = terms.mean_wires(numbers.numel())
    all_reduce(Sums(numbers), wires, terms, Channels())
    return wires.encoded()


def wire_of(values: Tensor, codec: Codec) -> Tensor:
    return codec.encode(values, torch.empty(4 * values.numel() + 16, dtype=torch.uint8)).clone()
