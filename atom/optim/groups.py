"""Parameter groups, as `torch.optim` takes them: options and learning rates per group."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.optimizer import Optimizer, Part, StateTensor, StepTerms
from atom.swap.host_store import StateForm

Group = dict[str, Any]
"""Group: "params" (names), "lr" and options, by the names of `torch.optim`."""


class ParameterGroups(Optimizer):
    """Optimizer that updates each parameter with the options and the rate of its group.

    It ignores the learning rate of a step. A step uses the rates at the latest `settle`.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], groups: list[Group], members: Mapping[str, int]
    ) -> None:
        """Keep the groups and take their rates.

        Args:
            optimizers: optimizer of each group.
            groups: the groups; the caller may change "lr".
            members: number of the group by the name of the parameter.
        """
        self.groups, self._optimizers, self._members = groups, optimizers, members
        self.elementwise = all(each.elementwise for each in optimizers)  # type: ignore[misc]
        self.settle()

    @property
    def kinds(self) -> list[tuple[str, list[str]]]:
        """Class of the optimizer, and the names of the parameters, of each group."""
        pairs = zip(self._optimizers, self.groups, strict=True)
        return [(type(each).__name__, list(group["params"])) for each, group in pairs]

    def settle(self) -> None:
        """Take the groups' present "lr" for the next step; call it while no step is running.

        Raises:
            ValueError: A rate is out of range.
        """
        self._rates = [float(require_rate(group["lr"])) for group in self.groups]

    def state(self, parameter: ParameterSpec, form: StateForm) -> Mapping[str, StateTensor]:
        return self._of(parameter).state(parameter, form)

    @property
    def steps_on_devices(self) -> bool:
        return all(each.steps_on_devices for each in self._optimizers)

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        rate = self._rates[self._members[part.parameter.name]]
        self._of(part.parameter).update(part, gradient, replace(step, learning_rate=rate))

    def _of(self, parameter: ParameterSpec) -> Optimizer:
        return self._optimizers[self._members[parameter.name]]


def require_rate(rate: float) -> float:
    """Return a learning rate. Raises: ValueError if it is not a finite number of 0 or more."""
    if isinstance(rate, str) or not 0 <= rate < math.inf:
        raise ValueError(f"invalid learning_rate: {rate!r} is not a number of 0 or more")
    return rate


def parameter_groups(
    optimizer: Optimizer,
    params: Iterable[Any] | None,
    learning_rate: float,
    names: Mapping[Tensor, str],
    trained: Collection[str],
) -> ParameterGroups:
    """Return the optimizer of a module, with its parameter groups.

    Args:
        optimizer: options that groups do not set.
        params: parameters or groups of them, as `torch.optim` takes them. All options of a group
            apply to all of its parameters. None: one group, in which biases and norms do not decay.
        learning_rate: rate of groups without "lr".
        names: name in the layout by parameter.
        trained: names in the layout of all trained parameters.

    Raises:
        TypeError: the optimizer is none, or has no such option, or `params` has something else.
        ValueError: a parameter is unknown, in two groups or in none; or a rate is out of range.
    """
    if not isinstance(optimizer, Optimizer):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        what = f"optimizer: {name} cannot keep its state in host memory"
        raise TypeError(f"{what}; use atom.AdamW(), atom.AdamW8Bit(), atom.Muon(), atom.SGD(), …")
    given = [each for each in names if names[each] in trained] if params is None else params
    copied: Any = [dict(each) if isinstance(each, dict) else each for each in given]
    groups = torch.optim.Optimizer(copied, {"lr": learning_rate}).param_groups
    optimizers, members = list[Optimizer](), dict[str, int]()
    for number, group in enumerate(groups):
        if unknown := [list(each.shape) for each in group["params"] if each not in names]:
            raise ValueError(f"params: a tensor {unknown[0]} is no parameter of the module")
        own_names = [names[each] for each in group["params"]]
        members |= dict.fromkeys(own_names, number)
        options = {key: group[key] for key in group if key not in ("params", "param_names", "lr")}
        optimizers.append(optimizer if params is None else _with_options(optimizer, options))
        group["params"] = [name.removeprefix("model.") for name in own_names]
    if missing := [name for name in trained if name not in members]:
        what = "add it to one, or freeze it with requires_grad_(False)"
        raise ValueError(
            f"the parameter {missing[0].removeprefix('model.')} is in no group: {what}"
        )
    return ParameterGroups(optimizers, groups, members)


def _with_options(optimizer: Any, group: Group) -> Optimizer:
    """Return the optimizer with the options of a group. Raises: TypeError for unknown options."""
    known = {field.name: field.name for field in fields(optimizer)}
    if "epsilon" in known:
        known["eps"] = "epsilon"
    if unknown := group.keys() - known.keys():
        what = f"{type(optimizer).__name__} has no option {min(unknown)!r}"
        raise TypeError(f"params: {what}; it takes lr, {', '.join(known)}")
    options = {known[key]: value for key, value in group.items()}
    return replace(optimizer, **{"decay_all": True, **options})  # type: ignore[no-any-return]
