import pytest
import torch
from rounded_sums import rounded_sum

from atom.swap import host_sums
from atom.swap.host_sums import add


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("elements", [0, 63, 64, 1000])
def test_pieces_and_threads_do_not_show(
    elements: int, threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_sums, "PIECE_ELEMENTS", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    generator = torch.Generator().manual_seed(elements)
    total = torch.randn(elements, generator=generator)
    addend = torch.randn(elements, generator=generator).to(dtype)
    expected = total + addend
    add(total, addend)
    assert torch.equal(total, expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_and_threads_do_not_show_in_rounded_sums(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_sums, "PIECE_ELEMENTS", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    total, addend = torch.randn(2, 1000, generator=torch.Generator().manual_seed(3)).bfloat16()
    expected = rounded_sum(total, addend, 77, 5)
    add(total, addend, 77, 5)
    assert torch.equal(total, expected)


def test_what_is_too_small_for_one_sum_is_not_lost_in_many() -> None:
    """Rounded to nearest, a sum of one would stay one."""
    total, small = torch.ones(4096).bfloat16(), torch.full((4096,), 2.0**-12).bfloat16()
    nearest = total.clone()
    for key in range(1024):
        add(total, small, 0, key)
        nearest += small
    assert torch.equal(nearest, torch.ones(4096).bfloat16())
    assert total.float().mean().item() == pytest.approx(1.25, abs=0.01)
