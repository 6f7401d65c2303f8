"""Tensors that forward uses and that are neither parameters nor entries of the batch."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from atom.base.errors import ModelError
from atom.graph.traced import Constant

SMALL_CONSTANT_BYTES = 64 * 1024
"""Buffers up to this size are written into the generated source."""


def constant_of(model: nn.Module, exported: ExportedProgram, target: str) -> Constant:
    """A buffer or lifted tensor by its name in the exported program, as values on the CPU.

    Raises: ModelError if it has no values of its own, or is a parameter's memory.
    """
    source = exported.constants if target in exported.constants else exported.state_dict
    found = source[target]
    if not isinstance(found, torch.Tensor):
        raise ModelError(
            f"the model's forward uses {target}, a {type(found).__name__}",
            "random numbers must come from torch's default generator",
        )
    if isinstance(found, FakeTensor):
        raise ModelError(
            f"the model's forward uses a tensor ({target}) that tracing lost sight of, such as a "
            "parameter's data; its values would be frozen",
            "use the parameter itself, or parameter.detach()",
        )
    if found.layout is not torch.strided:
        raise ModelError(
            f"the buffer {target} is sparse; values lie in dense memory here",
            "hold its indices and its values as two buffers",
        )
    tensor = found.detach()
    for name, parameter in model.named_parameters():
        if _same_memory(parameter, tensor):
            raise ModelError(
                f"the model reads the parameter {name} from outside its modules; "
                "tracing would freeze its values",
                "use it as an attribute of its module, not from a list or dictionary",
            )
    if tensor.is_meta:
        raise ModelError(f"the tensor {target} is on the meta device and has no values")
    return Constant(target, tensor.cpu())


def _same_memory(parameter: torch.Tensor, tensor: torch.Tensor) -> bool:
    storages = parameter.untyped_storage(), tensor.untyped_storage()
    return bool(storages[0]._cdata == storages[1]._cdata)


def refuse_large(constant: Constant) -> None:
    """Raises: ModelError for what is too large to be written into the source."""
    size_bytes = constant.tensor.numel() * constant.tensor.element_size()
    if size_bytes > SMALL_CONSTANT_BYTES:
        raise ModelError(
            f"the buffer {constant.name} has {size_bytes} bytes; "
            f"at most {SMALL_CONSTANT_BYTES} are copied into the program",
            "compute it in forward from sizes (torch.arange, torch.tril), or make it a "
            "parameter with requires_grad=False",
        )
