"""Packed tensors have the same bits and strides after they are restored at another address."""

import random

import pytest
import torch
from torch import Tensor

from atom.swap.boundary_traffic import pack


def looks_like(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and one.stride() == other.stride() and torch.equal(one, other)


def moved(tensors: dict[str, Tensor], start: int = 512) -> dict[str, Tensor]:
    layouts, pieces, size_bytes = pack(tensors)
    memory = torch.full((start + size_bytes + 512,), 255, dtype=torch.uint8)
    for offset, piece in pieces:
        memory[start + offset : start + offset + piece.numel()] = piece
    place = memory[start : start + size_bytes]
    return {name: layout.restore(place) for name, layout in layouts.items()}


def random_view(pick: random.Random) -> Tensor:
    dtype = pick.choice((torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64))
    base = torch.randint(2, (4, 6, 8)).to(dtype)
    for _ in range(pick.randint(0, 3)):
        match pick.randint(0, 3):
            case 0:
                base = base.transpose(0, -1)
            case 1:
                base = base[..., pick.randint(0, 1) :]
            case 2:
                base = base[:1].expand(3, *base.shape[1:])
            case 3:
                base = base.unsqueeze(0)
    return base


@pytest.mark.parametrize("seed", range(40))
def test_bits_and_strides_are_kept(seed: int) -> None:
    torch.manual_seed(seed)
    pick = random.Random(seed)
    tensors = {str(n): random_view(pick) for n in range(3)}
    found = moved(tensors)
    assert all(looks_like(found[name], tensor) for name, tensor in tensors.items())


def test_shared_memory_is_moved_once_and_shared_again() -> None:
    base = torch.randn(6, 9)
    parts = dict(zip("abc", base.chunk(3, dim=1), strict=True))
    found = moved(parts)
    addresses = {part.untyped_storage().data_ptr() for part in found.values()}
    assert len(addresses) == 1
    assert pack(parts).used_bytes == base.nbytes


def test_gaps_between_tensors_count() -> None:
    apart = {name: torch.ones(300, dtype=torch.uint8) for name in "ab"}
    assert pack(apart).used_bytes == 512 + 300
    assert pack({}).used_bytes == 0
