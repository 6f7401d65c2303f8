"""Text of all benchmarks that need one: the source of Python's standard library, by bytes."""

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor


@cache
def standard_library() -> Tensor:
    """Return the bytes, uint8."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, files))), dtype=torch.uint8)
