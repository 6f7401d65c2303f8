"""Sums of gradients in host memory, on several cores: one cannot keep up with a fast link."""

from concurrent.futures import ThreadPoolExecutor

import torch

from atom.swap.host_kernels import host_kernels

PIECE_ELEMENTS = 2**20


def add(total: torch.Tensor, addend: torch.Tensor, threads: int | None = None) -> None:
    """`total` [n] float32 += `addend` [n], float32 or bfloat16; flat, on the host. On as many
    threads as PyTorch may use, unless told; they do not show in the bits.

    Raises: MismatchError when the kernel has not been compiled.
    """
    kernels, elements = host_kernels(), total.numel()
    starts = range(0, elements, PIECE_ELEMENTS)
    threads = min(threads or torch.get_num_threads(), len(starts))
    if threads <= 1:
        kernels.add(total, addend)
        return

    def add_piece(start: int) -> None:
        piece = slice(start, start + PIECE_ELEMENTS)
        kernels.add(total[piece], addend[piece])

    with ThreadPoolExecutor(threads, "atom-sum") as pool:
        list(pool.map(add_piece, starts))
