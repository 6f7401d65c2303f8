"""The compiled library: where it comes from, and what adds up in it, in pieces and threads."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rounded_sums import rounded_sum

from atom.base import build_kernels as module
from atom.base.build_kernels import compile_kernels
from atom.base.build_kernels import main as build_kernels_main
from atom.base.errors import MismatchError
from atom.swap import host_sums
from atom.swap.host_kernels import LIBRARY, SOURCE, HostKernels, host_kernels, load
from atom.swap.host_sums import add


@pytest.fixture(params=range(host_kernels().highest_level + 1))
def kernels(request: pytest.FixtureRequest) -> HostKernels:
    return HostKernels(load(LIBRARY), request.param)


def test_without_the_library_there_is_an_error_that_helps(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="not compiled") as caught:
        load(tmp_path / "none.so")
    assert f"{sys.executable} -m atom.base.build_kernels" in caught.value.hint


def test_a_library_of_another_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "source_digest", lambda source: "another")
    with pytest.raises(MismatchError, match="another version"):
        load(LIBRARY)


def test_without_a_compiler_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(subprocess.CalledProcessError):
        compile_kernels(SOURCE, tmp_path / "kernels.so")
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    with pytest.raises(FileNotFoundError):
        compile_kernels(SOURCE, tmp_path / "kernels.so")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_cc_is_none_and_one_that_is_no_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "")
    source, folder = tmp_path / "small.c", tmp_path / "made"
    source.write_text("int one(void) { return 1; }")
    folder.mkdir()
    compile_kernels(source, folder / "kernels.so")
    assert [path.name for path in folder.iterdir()] == ["kernels.so"]
    monkeypatch.setenv("CC", "gcc '")
    with pytest.raises(SystemExit, match=r"error: .*\nhint:  "):
        build_kernels_main()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("elements", [0, 1, 15, 100, 5001])
def test_sums_are_torchs(kernels: HostKernels, elements: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(elements)
    total = torch.randn(elements + 1, generator=generator)[1:]
    addend = torch.randn(elements, generator=generator).to(dtype)
    expected = total + addend
    kernels.add(total, addend)
    assert torch.equal(total, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_add_up_alike_at_every_level(kernels: HostKernels, dtype: torch.dtype) -> None:
    x = torch.randn(100_003, generator=torch.Generator().manual_seed(1)).to(dtype)
    plain = HostKernels(load(LIBRARY), 0)
    for lanes in (1, 64, 8192):
        room = torch.empty(lanes, dtype=torch.float64)
        assert kernels.sum_of_squares(x, room) == plain.sum_of_squares(x, room)


@pytest.mark.parametrize("elements", [0, 1, 15, 100, 5001])
@pytest.mark.parametrize("first", [0, 3, 2**32 - 50, 5 * 2**32])
def test_sums_in_sixteen_bits_are_rounded_with_the_documented_noise(
    kernels: HostKernels, elements: int, first: int
) -> None:
    generator = torch.Generator().manual_seed(elements)
    total, addend = torch.randn(2, elements, generator=generator).bfloat16()
    expected = rounded_sum(total, addend, first, noise_key=2**63 + 17)
    kernels.add_rounded(total, addend, first, 2**63 + 17)
    assert torch.equal(total, expected)


# --- sums in pieces and threads ---


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
