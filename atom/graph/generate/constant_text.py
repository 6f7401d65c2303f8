"""Constants of a layer, written out so that they read back to the bit."""

import base64
from collections.abc import Iterator

import torch

from atom.graph.digest import tensor_bytes
from atom.graph.generate.expressions import literal
from atom.graph.generate.python_text import BODY, INDENT, LINE_LENGTH, assignment
from atom.graph.traced import Constant

_FEW_ELEMENTS = 16
_PLAIN_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}


def constant_lines(attribute: str, constant: Constant) -> Iterator[str]:
    """The assignment of a constant's values in `__init__`; exact to the bit."""
    tensor = constant.tensor
    if tensor.numel() <= _FEW_ELEMENTS and _reads_back(tensor):
        arguments = [literal(tensor.tolist(), {}), f"dtype={tensor.dtype}", "device=device"]
        yield from assignment([f"self.{attribute}"], "torch.tensor", arguments)
        return
    text = base64.b64encode(tensor_bytes(tensor)).decode()
    kind = [str(tensor.dtype), str(list(tensor.shape)), "device"]
    width = LINE_LENGTH - len(BODY) - len(INDENT) - len('"",')
    if len(text) <= width:
        yield from assignment([f"self.{attribute}"], "constant", [f'"{text}"', *kind])
        return
    yield f"{BODY}self.{attribute} = constant("
    for start in range(0, len(text), width):
        comma = "," if start + width >= len(text) else ""
        yield f'{BODY}{INDENT}"{text[start : start + width]}"{comma}'
    yield from (f"{BODY}{INDENT}{argument}," for argument in kind)
    yield f"{BODY})"


def _reads_back(tensor: torch.Tensor) -> bool:
    """Whether Python's literals for the elements give the same elements."""
    plain = tensor.dtype in _PLAIN_DTYPES or not tensor.dtype.is_floating_point
    return plain and not tensor.is_complex() and bool(torch.isfinite(tensor).all())
