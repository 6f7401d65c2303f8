"""The GPU's kernels without a GPU: their text, compiled as C, thread by thread."""

import ctypes
from ctypes import c_float, c_int64, c_uint64, c_void_p
from pathlib import Path

import torch

from atom.base.build_kernels import compile_kernels
from atom.swap.device_kernels import SOURCE, THREADS
from atom.swap.host_kernels import AdamWArguments

TEXT = """
#define KERNEL void
static struct { unsigned x; } blockIdx, blockDim, threadIdx;
#include "%s"

#define EVERY_THREAD(CALL)                                                \\
    blockDim.x = %d;                                                      \\
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)               \\
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)    \\
            CALL

void adamw(int64_t blocks, const struct adamw *step, int64_t count, uint64_t first, float decay) {
    EVERY_THREAD(atom_adamw(*step, count, first, decay);)
}
void squares(int64_t blocks, const float *x, int64_t count, double *lane, int64_t lanes,
             int64_t rows) {
    EVERY_THREAD(atom_squares(x, count, lane, lanes, rows);)
}
"""


class KernelsInC:
    """`DeviceKernels` in host memory."""

    def __init__(self, folder: Path) -> None:
        source, library = folder / "kernels.c", folder / "kernels.so"
        source.write_text(TEXT % (SOURCE, THREADS))
        compile_kernels(source, library)
        self._library = ctypes.CDLL(str(library))

    def adamw(self, arguments: AdamWArguments, count: int, first: int, decay: float) -> None:
        self._start("adamw", count, c_void_p(ctypes.addressof(arguments)), c_int64(count),
                    c_uint64(first), c_float(decay))  # fmt: skip

    def squares(self, x: torch.Tensor, sums: torch.Tensor, lanes: int, rows: int) -> None:
        self._start("squares", sums.numel(), c_void_p(x.data_ptr()), c_int64(x.numel()),
                    c_void_p(sums.data_ptr()), c_int64(lanes), c_int64(rows))  # fmt: skip

    def _start(self, name: str, threads: int, *given: object) -> None:
        getattr(self._library, name)(c_int64(-(-threads // THREADS)), *given)
