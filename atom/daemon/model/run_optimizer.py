"""What [optimizer] and [update] in a run file stand for, and what a replica keeps for them."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from atom.config.run_file import OPTIMIZERS, UPDATE_RULES, RunFile
from atom.graph.ir import ParameterLayout
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.swap.host_store import state_arenas
from atom.swap.state_form import StateArena, StateForm
from atom.training.replica.update_rule import UpdateRule


def optimizer(run: RunFile) -> Optimizer:
    """The one that the run file names."""
    o = run.optimizer
    make: Callable[..., Optimizer] = _at(OPTIMIZERS[o.name])
    return make(betas=o.betas, epsilon=o.epsilon, weight_decay=o.weight_decay, seed=run.run.seed)


def update_rule(run: RunFile) -> type[UpdateRule]:
    """The one that the run file names."""
    rule: type[UpdateRule] = _at(UPDATE_RULES[run.update.rule])
    return rule


def new_update_rule(run: RunFile) -> Callable[..., UpdateRule]:
    """What makes it, with the options of the run file."""
    return partial(update_rule(run), **run.update.model_dump(exclude={"rule"}))


def state_form(run: RunFile) -> StateForm:
    return StateForm(run.optimizer.state)


def gradients(run: RunFile) -> torch.dtype:
    return torch.bfloat16 if run.optimizer.gradients == "bfloat16" else torch.float32


def replica_state(run: RunFile, layout: ParameterLayout) -> dict[str, StateArena]:
    """The weights and the optimizer's state, as a replica of the run holds them."""
    form = state_form(run)
    return state_arenas(layout, form, optimizer_state(optimizer(run), layout, form))


def shared_state(run: RunFile, layout: ParameterLayout) -> Mapping[str, StateArena]:
    """Of that, what all peers of the run have alike: what a snapshot holds."""
    return update_rule(run).shared_arenas(replica_state(run, layout))


def _at(place: str) -> Any:
    """What a registry's "module:name" stands for."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
