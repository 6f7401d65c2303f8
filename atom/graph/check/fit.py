"""Does a micro-batch fit a program? A program has the shapes, dtypes and `None`s that it was traced
with: anything else would fail deep inside it, or be silently ignored.
"""

from collections.abc import Mapping

import torch

from atom.base.errors import ModelError
from atom.graph.ir import Program


def require_fit(program: Program, batch: Mapping[str, torch.Tensor]) -> None:
    """Raises: ModelError naming the first entry that is missing, unknown, or of another shape or
    dtype than the program was made for.
    """
    for name in program.batch_inputs:
        if name not in batch:
            raise ModelError(
                f"the micro-batch lacks {name}", f"it has {', '.join(batch) or 'nothing'}"
            )
        _require_alike(program, name, batch[name])
    for name in batch:
        if name not in program.batch_inputs:
            raise ModelError(
                f"the micro-batch has {name}, which the program was made without",
                "it would be ignored: make the program with an example batch that has it",
            )


def _require_alike(program: Program, name: str, given: object) -> None:
    if not isinstance(given, torch.Tensor):
        raise ModelError(f"the micro-batch's {name} is {type(given).__name__}, not a tensor")
    spec = program.values.get(name)
    if spec is not None and (tuple(given.shape), given.dtype) != (spec.shape, spec.dtype):
        raise ModelError(
            f"the micro-batch's {name} is {_look(given.shape, given.dtype)}; "
            f"the program was made for {_look(spec.shape, spec.dtype)}",
            "every micro-batch has the shape and dtype of the example",
        )


def _look(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
