"""Packed tensors have the same bits and strides after they are restored at another address."""

import random

import pytest
import torch
from torch import Tensor

from atom.swap.boundary_traffic import pack


def looks_like(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and one.stride() == other.stride() and torch.equal(one, other)


def moved(tensors: dict[str, Tensor], most_bytes: int, start: int = 512) -> dict[str, Tensor]:
    layouts, pieces, size_bytes = pack(tensors, most_bytes)
    memory = torch.full((start + size_bytes + 512,), 255, dtype=torch.uint8)
    for offset, piece in pieces:
        memory[start + offset : start + offset + piece.numel()] = piece
    place = memory[start : start + size_bytes]
    return {name: layout.restore(place) for name, layout in layouts.items()}


def packed_bytes(tensors: dict[str, Tensor], most_bytes: int) -> int:
    return pack(tensors, most_bytes)[-1]


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
    for most_bytes in (1 << 20, sum(-(-t.nbytes // 512) * 512 for t in tensors.values())):
        found = moved(tensors, most_bytes)
        assert all(looks_like(found[name], tensor) for name, tensor in tensors.items())


def test_shared_memory_is_moved_once_and_shared_again() -> None:
    base = torch.randn(6, 9)
    parts = dict(zip("abc", base.chunk(3, dim=1), strict=True))
    found = moved(parts, base.nbytes)
    addresses = {part.untyped_storage().data_ptr() for part in found.values()}
    assert len(addresses) == 1
    assert packed_bytes(parts, base.nbytes) == base.nbytes


def test_a_small_view_leaves_its_large_base_behind() -> None:
    base = torch.randn(1000, 1000)
    _, pieces, _ = pack({"corner": base[:4, :4]}, 64)
    assert sum(piece.numel() for _, piece in pieces) == 64


def test_what_is_larger_than_foreseen_is_not_packed() -> None:
    assert packed_bytes({"one": torch.zeros(1000)}, 64) == 4000
    assert packed_bytes({}, 0) == 0


def test_gaps_between_tensors_count() -> None:
    """Gaps between tensors count as bytes; unused storage before a view does not."""
    apart = {name: torch.ones(300, dtype=torch.uint8) for name in "ab"}
    assert packed_bytes(apart, 600) > 600
    assert packed_bytes(apart, 512 + 300) <= 512 + 300
    memory = torch.arange(255, dtype=torch.float32)
    assert packed_bytes({"late": memory[5:]}, 1000) == 1000
    assert looks_like(moved({"late": memory[5:]}, 1000)["late"], memory[5:])
