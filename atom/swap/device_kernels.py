"""AdamW step on a GPU: the source of the host kernel, compiled by NVRTC, launched by the driver.

The two libraries come with PyTorch and the driver, and are called as NVIDIA documents them.
PyTorch's own wrapper, `torch.cuda._compile_kernel`, requires a whole CUDA toolkit and cannot pass
structures. Contraction is off, division and roots are exact, and subnormal numbers are kept. With
these flags the GPU follows IEEE 754 as the host does, so the bits are the same.
"""

import ctypes
import functools
from ctypes import byref, c_char_p, c_float, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch

from atom.base.build_kernels import SHARED
from atom.base.errors import DeviceError
from atom.swap.host_kernels import AdamWArguments

SOURCE = Path(__file__).with_name("device_kernels.cu")
FLAGS = "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"
THREADS = 256
"""Threads of a block."""


class DeviceKernels:
    """Kernels of one GPU. Thread-safe."""

    def __init__(self, device: torch.device) -> None:
        """Compile and load the kernels.

        Raises:
            DeviceError: They cannot be compiled or loaded on this machine.
        """
        try:
            with torch.cuda.device(device):
                torch.zeros(1, device=device)  # creates a CUDA context
                self._driver = ctypes.CDLL("libcuda.so.1")
                self._context, module = c_void_p(), c_void_p()
                self._require(self._driver.cuCtxGetCurrent(byref(self._context)))
                binary = _compiled(SOURCE, torch.cuda.get_device_capability(device))
                self._require(self._driver.cuModuleLoadData(byref(module), binary))
                self._adamw, self._squares = (
                    self._function(module, name) for name in (b"atom_adamw", b"atom_squares")
                )
        except (OSError, AttributeError, RuntimeError) as problem:
            raise DeviceError(f"no kernels for this GPU: {problem}") from problem

    def adamw(self, arguments: AdamWArguments, count: int, first: int, decay: float) -> None:
        """Start `HostKernels.adamw` for data in the GPU's memory, on the current stream.

        Moments in 8 bits are not supported.
        """
        self._start(self._adamw, count, arguments, c_int64(count), c_uint64(first), c_float(decay))

    def squares(self, x: torch.Tensor, sums: torch.Tensor, lanes: int, rows: int) -> None:
        """Start computing the sums of squares of each lane in each block, on the current stream.

        The lanes are not yet added in halves; `HostKernels.sum_of_squares` defines the order.

        Args:
            x: [n] float32
            sums: [blocks, lanes] float64, overwritten.
            lanes: Elements of a row.
            rows: Rows of a block; a block has `rows` times `lanes` elements.
        """
        counts = c_int64(x.numel()), c_int64(lanes), c_int64(rows)
        addresses = c_void_p(x.data_ptr()), c_void_p(sums.data_ptr())
        self._start(self._squares, sums.numel(), addresses[0], counts[0], addresses[1], *counts[1:])

    def _start(self, function: c_void_p, threads: int, *values: Any) -> None:
        pointers = (c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        shape = -(-threads // THREADS), 1, 1, THREADS, 1, 1
        self._require(self._driver.cuCtxSetCurrent(self._context))  # a new thread has no context
        self._require(self._driver.cuLaunchKernel(function, *shape, 0, stream, pointers, None))

    def _function(self, module: c_void_p, name: bytes) -> c_void_p:
        function = c_void_p()
        self._require(self._driver.cuModuleGetFunction(byref(function), module, name))
        return function

    def _require(self, result: int) -> None:
        if result:
            words = c_char_p()
            self._driver.cuGetErrorString(result, byref(words))
            raise RuntimeError(f"CUDA error: {(words.value or b'unknown').decode()}")


@functools.cache
def device_kernels(device: torch.device) -> DeviceKernels:
    """Return the kernels of a GPU, compiled on first use.

    Raises:
        DeviceError: They cannot be compiled or loaded on this machine.
    """
    return DeviceKernels(device)


def _compiled(source: Path, capability: tuple[int, int]) -> bytes:
    """Return the machine code of a CUDA source file.

    Raises:
        OSError: NVRTC is missing.
        RuntimeError: The compilation failed; the message has the compiler's log.
    """
    nvrtc, program, size = _nvrtc(), c_void_p(), c_size_t()
    architecture = "--gpu-architecture=sm_{}{}".format(*capability)
    options = [architecture, f"-I{source.parent}", f"-I{SHARED.parent}", *FLAGS]
    encoded = (c_char_p * len(options))(*map(str.encode, options))
    text = source.read_bytes()
    nvrtc.nvrtcCreateProgram(byref(program), text, source.name.encode(), 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), encoded):
            nvrtc.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"NVRTC: {log.value.decode().strip()}")
        nvrtc.nvrtcGetCUBINSize(program, byref(size))
        binary = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, binary)
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(byref(program))


def _nvrtc() -> ctypes.CDLL:
    """Load PyTorch's NVRTC library, or the one among PyTorch's neighbouring packages.

    Raises:
        OSError: Neither is present.
    """
    name = f"libnvrtc.so.{(torch.version.cuda or 'none').partition('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        packages = Path(torch.__file__).parent.parent.glob(f"nvidia/**/{name}")
        return ctypes.CDLL(str(next(packages, name)))
