"""Python interface of the compiled loops over host memory in `host_kernels.c`.

Calls release the interpreter's lock, so threads run in parallel. Each loop gives the same bits on
every machine, at every `level` of instructions. No other implementation exists, because replicas
with different implementations would drift apart.
"""

import ctypes
import functools
from ctypes import c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import torch

from atom.base import build_kernels
from atom.base.build_kernels import library_of

SOURCE = Path(__file__).with_name("host_kernels.c")
LIBRARY = library_of(SOURCE)

GRADIENT_FORMATS = {torch.float32: 0, torch.bfloat16: 1}
MOMENT_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.uint8: 2}
MOMENT_BLOCK = 256
"""Number of elements whose 8-bit moments share an exponent."""
WORKING_FORMATS = {torch.bfloat16: 1, torch.float16: 2}
NO_WORKING_COPY = 0
WHOLE_MASTER, SPLIT_MASTER = 0, 1


class AdamWArguments(ctypes.Structure):
    """`struct adamw` of the C source, field by field."""

    _fields_ = (
        ("master", c_void_p),
        ("working", c_void_p),
        ("exp_avg", c_void_p),
        ("exp_avg_sq", c_void_p),
        ("exp_avg_exponent", c_void_p),
        ("exp_avg_sq_exponent", c_void_p),
        ("gradient", c_void_p),
        ("noise_key", c_uint64),
        ("gradient_format", c_int32),
        ("master_format", c_int32),
        ("moment_format", c_int32),
        ("working_format", c_int32),
        ("coefficient", c_float),
        ("beta2", c_float),
        ("one_minus_beta1", c_float),
        ("one_minus_beta2", c_float),
        ("root_of_correction2", c_float),
        ("epsilon", c_float),
        ("minus_step_size", c_float),
    )


class HostKernels:
    """Functions of the compiled library. Thread-safe."""

    def __init__(self, library: ctypes.CDLL, level: int | None = None) -> None:
        """Choose the instructions to use.

        Args:
            library: The compiled library.
            level: Level of instructions, from 0 to `highest_level`; None: `highest_level`.
        """
        self._library = library
        self.highest_level: int = library.atom_highest_level()
        self._level = self.highest_level if level is None else level
        assert 0 <= self._level <= self.highest_level

    def adamw(self, arguments: AdamWArguments, count: int, first: int, decay: float) -> None:
        """Apply the AdamW step to consecutive elements.

        Args:
            arguments: Addresses, formats and scalars of the step.
            count: Number of elements.
            first: Number of the first element, which decides the noise.
            decay: Factor that the weights are multiplied by before the update.
        """
        address = ctypes.addressof(arguments)
        supported = self._library.atom_adamw(address, count, first, decay, self._level)
        assert supported, "the kernel does not support these formats"

    def add(self, total: torch.Tensor, addend: torch.Tensor) -> None:
        """Add `addend` [n], float32 or bfloat16, to `total` [n] float32; both flat, on the host."""
        assert total.shape == addend.shape
        assert addend.dtype in (torch.float32, torch.bfloat16)
        wide = addend.dtype == torch.float32
        add = self._library.atom_add_float32 if wide else self._library.atom_add_bfloat16
        addresses = _address(total, torch.float32), _address(addend, addend.dtype)
        add(*addresses, total.numel(), self._level)

    def add_rounded(
        self, total: torch.Tensor, addend: torch.Tensor, first: int, noise_key: int
    ) -> None:
        """Add `addend` [n] to `total` [n], both bfloat16 on the host, with stochastic rounding.

        The sum is computed in float32. 16 bits of noise per element decide the rounding: a function
        of the key and of the element's number.

        Args:
            total: Overwritten with the sum.
            addend: Numbers to add.
            first: Number of the first element.
            noise_key: Key of the noise, 64 bits.
        """
        assert total.shape == addend.shape
        addresses = _address(total, torch.bfloat16), _address(addend, torch.bfloat16)
        terms = total.numel(), first, noise_key, self._level
        self._library.atom_add_rounded(*addresses, *terms)

    def sum_of_squares(self, x: torch.Tensor, lanes: torch.Tensor) -> float:
        """Return the sum of squares of a block, in the order that `atom.optim.clipping` defines.

        Args:
            x: [n] float32 or bfloat16
            lanes: [a power of two] float64, overwritten.
        """
        assert x.dtype in GRADIENT_FORMATS
        exact = x.dtype == torch.float32
        library = self._library
        loop = library.atom_squares_float32 if exact else library.atom_squares_bfloat16
        addresses = _address(x, x.dtype), _address(lanes, torch.float64)
        squares: float = loop(addresses[0], x.numel(), addresses[1], lanes.numel(), self._level)
        return squares


def _address(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert tensor.device.type == "cpu"
    return tensor.data_ptr()


@functools.cache
def host_kernels() -> HostKernels:
    """Return the kernels with the widest instructions of this processor.

    Raises:
        MismatchError: As `load`.
    """
    return HostKernels(load(LIBRARY))


def load(path: Path) -> ctypes.CDLL:
    """Load the compiled library.

    Raises:
        MismatchError: The library is missing, or was compiled from another source.
    """
    library = build_kernels.load(SOURCE, path)
    _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    library.atom_highest_level.restype = c_int32
    step = (c_void_p, c_int64, c_uint64, c_float, c_int32)
    library.atom_adamw.argtypes, library.atom_adamw.restype = step, c_int32
    for add in (library.atom_add_float32, library.atom_add_bfloat16):
        add.argtypes, add.restype = (c_void_p, c_void_p, c_int64, c_int32), None
    rounded = (c_void_p, c_void_p, c_int64, c_uint64, c_uint64, c_int32)
    library.atom_add_rounded.argtypes, library.atom_add_rounded.restype = rounded, None
    for squares in (library.atom_squares_float32, library.atom_squares_bfloat16):
        squares.argtypes = (c_void_p, c_int64, c_void_p, c_int64, c_int32)
        squares.restype = c_double
