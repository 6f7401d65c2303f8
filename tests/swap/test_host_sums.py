import pytest
import torch

from atom.swap import host_sums
from atom.swap.host_sums import add


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [None, 1, 3])
@pytest.mark.parametrize("elements", [0, 63, 64, 1000])
def test_pieces_and_threads_do_not_show(
    elements: int, threads: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_sums, "PIECE_ELEMENTS", 64)
    generator = torch.Generator().manual_seed(elements)
    total = torch.randn(elements, generator=generator)
    addend = torch.randn(elements, generator=generator).to(dtype)
    expected = total + addend
    add(total, addend, threads)
    assert torch.equal(total, expected)
