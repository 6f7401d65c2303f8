"""Sums of gradients in host memory, on several cores: one cannot keep up with a fast link."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from atom.swap.host_kernels import host_kernels

PIECE_ELEMENTS = 2**20


def add(total: torch.Tensor, addend: torch.Tensor, threads: int | None = None) -> None:
    """`total` [n] float32 += `addend` [n], float32 or bfloat16; flat, on the host. On as many
    threads as PyTorch may use, unless told; they do not show in the bits.

    Raises: MismatchError when the kernel has not been compiled.
    """
    kernels = host_kernels()

    def add_piece(start: int, stop: int) -> None:
        kernels.add(total[start:stop], addend[start:stop])

    _in_pieces(add_piece, total.numel(), threads)


def add_rounded(
    total: torch.Tensor,
    addend: torch.Tensor,
    first: int,
    noise_key: int,
    threads: int | None = None,
) -> None:
    """`total` [n] += `addend` [n], both bfloat16; flat, on the host: the exact sum, rounded up or
    down with such probabilities that it is right in the mean. Rounded to nearest, a sum that has
    become 256 times its addends would stay where it is.

    The random bits are a function of `noise_key` (64 bits) and the element's number, which counts
    from `first`. Threads do not show. Raises: as `add`.
    """
    kernels = host_kernels()

    def add_piece(start: int, stop: int) -> None:
        kernels.add_rounded(total[start:stop], addend[start:stop], first + start, noise_key)

    _in_pieces(add_piece, total.numel(), threads)


def _in_pieces(add_piece: Callable[[int, int], None], elements: int, threads: int | None) -> None:
    starts = range(0, elements, PIECE_ELEMENTS)
    threads = threads or torch.get_num_threads()
    if threads <= 1 or len(starts) <= 1:
        add_piece(0, elements)
        return
    pieces = _pool(threads).map(
        lambda at: add_piece(at, min(at + PIECE_ELEMENTS, elements)), starts
    )
    list(pieces)  # waits, and raises what a piece raised


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Kept until the process ends, as PyTorch keeps its own threads: a pass adds dozens of times,
    and a thread takes longer to start than to add its piece."""
    return ThreadPoolExecutor(threads, "atom-sum")
