"""The compiled loops over host memory of `host_kernels.c`, as Python calls them.

Calls release the interpreter's lock, so threads run them side by side. Each gives the same bits
on every machine, at every `level` of instructions. There is no other implementation to fall back
on: replicas that computed in different ways would not stay equal.
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
"""Elements whose moments in 8 bits share an exponent."""
WORKING_FORMATS = {torch.bfloat16: 1, torch.float16: 2}
NO_WORKING_COPY = 0
WHOLE_MASTER, SPLIT_MASTER = 0, 1


class AdamWArguments(ctypes.Structure):
    """`struct adamw` of the source, field by field."""

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
    """The library's functions. Any thread."""

    def __init__(self, library: ctypes.CDLL, level: int | None = None) -> None:
        """`level` of instructions, from 0 to `highest_level`, which is taken if none is given."""
        self._library = library
        self.highest_level: int = library.atom_highest_level()
        self._level = self.highest_level if level is None else level
        assert 0 <= self._level <= self.highest_level

    def adamw(self, arguments: AdamWArguments, count: int, first: int, decay: float) -> None:
        """Updates `count` elements, whose weights are multiplied by `decay` first. `first`: the
        number of the first one, which decides the noise."""
        address = ctypes.addressof(arguments)
        known = self._library.atom_adamw(address, count, first, decay, self._level)
        assert known, "formats that the kernel does not combine"

    def add(self, total: torch.Tensor, addend: torch.Tensor) -> None:
        """`total` [n] float32 += `addend` [n], float32 or bfloat16; flat, on the host."""
        assert total.shape == addend.shape
        assert addend.dtype in (torch.float32, torch.bfloat16)
        wide = addend.dtype == torch.float32
        add = self._library.atom_add_float32 if wide else self._library.atom_add_bfloat16
        addresses = _address(total, torch.float32), _address(addend, addend.dtype)
        add(*addresses, total.numel(), self._level)

    def add_rounded(
        self, total: torch.Tensor, addend: torch.Tensor, first: int, noise_key: int
    ) -> None:
        """`total` [n] += `addend` [n], both bfloat16, flat, on the host. The sum is a float32, and
        rounded at random: 16 bits of noise each, a function of the key (64 bits) and the element's
        number, which counts from `first`."""
        assert total.shape == addend.shape
        addresses = _address(total, torch.bfloat16), _address(addend, torch.bfloat16)
        terms = total.numel(), first, noise_key, self._level
        self._library.atom_add_rounded(*addresses, *terms)

    def sum_of_squares(self, x: torch.Tensor, lanes: torch.Tensor) -> float:
        """Of `x` [n] float32 or bfloat16, in the order that `atom.optim.clipping` defines for a
        block. `lanes` [a power of two] float64 is overwritten."""
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
    """With the widest instructions of this processor. Raises: MismatchError, see `load`."""
    return HostKernels(load(LIBRARY))


def load(path: Path) -> ctypes.CDLL:
    """Raises: MismatchError when the library is missing, or was made from another source."""
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
