"""Where the bytes of an arena that is given to others lie: in memory, or in a snapshot file."""

import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from atom.base.errors import StorageError
from atom.swarm.state.arenas import DTYPES, bytes_of, dtype_name

_SAFETENSORS_DTYPES = {
    "F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64",
    "I64": "int64", "I32": "int32", "I16": "int16", "U8": "uint8",
}  # fmt: skip
_MAX_SAFETENSORS_HEADER_BYTES = 64 * 1024 * 1024


class ArenaSource(Protocol):
    """Where an arena's bytes are."""

    dtype: str
    elements: int

    def read(self, start: int, stop: int) -> bytes | memoryview:
        """Bytes [start, stop). Raises: OSError."""


class TensorArena:
    """A tensor in memory that nobody writes any more."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = dtype_name(tensor)
        self.elements = tensor.numel()
        self._bytes = bytes_of(tensor)

    def read(self, start: int, stop: int) -> memoryview:
        return self._bytes[start:stop]


class OpenFile:
    """A file kept open: it stays readable, and the same, when its name goes to a newer one.

    Whoever reads last closes it: a shelf may drop a snapshot in the middle of a donation.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, stop: int) -> bytes:
        raw = os.pread(self._descriptor, stop - start, start)
        if len(raw) != stop - start:
            raise OSError("snapshot file is shorter than it was")
        return raw


class FileArena:
    """A stretch of an open file."""

    def __init__(self, file: OpenFile, dtype: str, elements: int, offset: int) -> None:
        self.dtype = dtype
        self.elements = elements
        self._file = file
        self._offset = offset

    def read(self, start: int, stop: int) -> bytes:
        return self._file.read(self._offset + start, self._offset + stop)


@dataclass(frozen=True)
class FileBytes:
    """`length` bytes of a file that only grows, or is replaced as a whole."""

    path: Path
    length: int
    start: int = 0

    def open(self) -> FileArena:
        """Raises: OSError."""
        return FileArena(OpenFile(self.path), "uint8", self.length, self.start)


def safetensors_arenas(path: Path) -> dict[str, ArenaSource]:
    """The tensors of a safetensors file, read in place when asked for.

    Raises: StorageError if it is not such a file or holds a type that arenas do not have.
    """
    try:
        file = OpenFile(path)
        length = int.from_bytes(file.read(0, 8), "little")
        if length > _MAX_SAFETENSORS_HEADER_BYTES:
            raise ValueError("header too long")
        header = json.loads(file.read(8, 8 + length))
        header.pop("__metadata__", None)
        return {name: _stretch(file, 8 + length, entry) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path} cannot be read as a snapshot: {error}", "delete it; it will be fetched again"
        ) from error


def _stretch(file: OpenFile, base: int, entry: Mapping[str, list[int] | str]) -> FileArena:
    dtype = _SAFETENSORS_DTYPES[str(entry["dtype"])]
    start, stop = (int(offset) for offset in entry["data_offsets"])
    elements, rest = divmod(stop - start, DTYPES[dtype].itemsize)
    if rest or start < 0 or elements < 0:
        raise ValueError("offsets do not match the type")
    return FileArena(file, dtype, elements, base + start)
