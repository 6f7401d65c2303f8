"""Forward, recomputation and backward of one sub-model, with the same bits as in the whole model.

Four rules keep the bits independent of the cut:

* The first forward pass runs with gradients enabled, and its inputs require gradients exactly as in
  the recomputation, although its autograd graph is dropped. Attention selects its kernel by
  `requires_grad`, and different kernels give different bits.
* If later sub-models have already summed a gradient for a value (or a tied parameter), that sum is
  one more root of the earlier sub-model's backward. Autograd then adds in the same order as in the
  uncut model; adding afterwards gives other bits.
* The recomputation starts from the state of the random generators at the first forward.
* Values and gradients keep their strides across cuts, because sums follow the order of memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atom.graph.ir import SubModel


def bind(module: nn.Module, sub_model: SubModel, parameters: Mapping[str, Tensor]) -> None:
    """Replace a module's `meta` parameters by tensors, without copies.

    Tied paths share one parameter. `requires_grad` stays as generated.

    Args:
        module: the module of `sub_model`, changed in place.
        sub_model: names the parameters.
        parameters: name in the layout → tensor of the parameter's shape.
    """
    bound: dict[str, nn.Parameter] = {}
    for path, name in sub_model.parameters:
        owner_path, _, attribute = path.rpartition(".")
        owner = module.get_submodule(owner_path)
        trains = owner.get_parameter(attribute).requires_grad
        if name not in bound:
            bound[name] = nn.Parameter(parameters[name], requires_grad=trains)
        setattr(owner, attribute, bound[name])


@dataclass(frozen=True)
class Computed:
    """Result of a sub-model's forward on one micro-batch, with its autograd graph."""

    inputs: dict[str, Tensor]
    """Leaf tensors by value name."""
    outputs: dict[str, Tensor]
    """Computed tensors by value name."""
    parameters: tuple[nn.Parameter, ...]
    """Parameters of the module, for which the backward computes gradients."""


def compute(
    module: nn.Module, sub_model: SubModel, values: Mapping[str, Tensor], record: bool = True
) -> Computed:
    """Run the forward of a sub-model.

    Args:
        module: the sub-model's module, with bound parameters.
        sub_model: names the inputs and outputs.
        values: tensors by name, including all inputs.
        record: record the autograd graph that `push_back` needs.
    """
    needs = zip(sub_model.inputs, sub_model.inputs_need_grad, strict=True)
    inputs = {name: values[name].detach().requires_grad_(need) for name, need in needs}
    with torch.set_grad_enabled(record):
        outputs = module(*inputs.values())
    outputs_by_name = dict(zip(sub_model.outputs, outputs, strict=True))
    return Computed(inputs, outputs_by_name, tuple(module.parameters()))


def push_back(
    computed: Computed,
    gradients: dict[str, Tensor],
    carried: Sequence[tuple[nn.Parameter, Tensor]] = (),
) -> None:
    """Run the backward of a sub-model.

    Args:
        computed: result of the forward.
        gradients: gradients by value name, changed in place: entries of the outputs are removed and
            entries of the inputs added. An input's entry, if present, is included in its new one.
        carried: parameters with the gradients that later sub-models have computed for them (tied
            weights). The new `.grad` of such a parameter includes that gradient.
    """
    ends = [(output, gradients.pop(name, None)) for name, output in computed.outputs.items()]
    leaves = {name: leaf for name, leaf in computed.inputs.items() if leaf.requires_grad}
    ends += [(leaf, gradients.get(name)) for name, leaf in leaves.items()]
    roots = [(end, g) for end, g in ends if g is not None and end.requires_grad] + [*carried]
    if not roots:
        return
    # backward() would give the `.grad` of a leaf the strides of the leaf. The gradients of inputs
    # must keep their own strides, because sums over them follow the order of memory.
    parameters = [parameter for parameter in computed.parameters if parameter.requires_grad]
    found = torch.autograd.grad(
        [root for root, _ in roots],
        [*leaves.values(), *parameters],
        [gradient for _, gradient in roots],
        allow_unused=True,
    )
    for name, gradient in zip(leaves, found, strict=False):
        if gradient is not None:
            gradients[name] = gradient
    for parameter, gradient in zip(parameters, found[len(leaves) :], strict=True):
        if gradient is not None:
            parameter.grad = gradient
