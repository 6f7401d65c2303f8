"""One sub-model on one micro-batch: forward, recompute and backward, bit-equal to the whole model.

Four habits make a cut invisible in the bits:

* The forward pass runs with gradients enabled and inputs that require them exactly as in the
  recompute, though its graph is thrown away: attention picks its kernel by `requires_grad`, and
  two kernels give two results.
* A gradient that later sub-models already summed for a value (or a tied parameter) enters the
  earlier sub-model's backward as one more root. Autograd then adds up in the order in which it
  would have in the uncut model; adding afterwards gives other bits.
* Random operations replay from the generator state that the first forward began with.
* Values and gradients cross with their strides: sums are made in the order of memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atom.graph.ir import SubModel


def bind(module: nn.Module, sub_model: SubModel, parameters: Mapping[str, Tensor]) -> None:
    """Puts tensors in the place of the module's `meta` parameters; no copy.

    `parameters` is keyed by names in the layout. A tied one is one parameter. Whether it trains
    stays as generated.
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
    """A sub-model's graph on one micro-batch: its inputs as leaves, and what came of them."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    parameters: tuple[nn.Parameter, ...]
    """The module's, whose gradients the backward gives."""


def compute(
    module: nn.Module, sub_model: SubModel, values: Mapping[str, Tensor], record: bool = True
) -> Computed:
    """Runs the sub-model on `values`, recording a graph from its inputs and parameters."""
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
    """Backward through one graph: from gradients of its outputs to those of its inputs.

    Takes the outputs' entries out of `gradients` and leaves the inputs'. Parameters receive
    theirs in `.grad`, which for `carried` ones includes the gradient given.
    """
    ends = [(output, gradients.pop(name, None)) for name, output in computed.outputs.items()]
    leaves = {name: leaf for name, leaf in computed.inputs.items() if leaf.requires_grad}
    ends += [(leaf, gradients.get(name)) for name, leaf in leaves.items()]
    roots = [(end, g) for end, g in ends if g is not None and end.requires_grad] + [*carried]
    if not roots:
        return
    # Not backward(): a leaf's `.grad` takes the leaf's strides. What flows on must keep its own,
    # because sums over it are made in the order of its memory.
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
