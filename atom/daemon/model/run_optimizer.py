"""What [optimizer] in a run file stands for: the optimizer, and the numbers that it works in."""

from collections.abc import Callable
from importlib import import_module

import torch

from atom.config.run_file import OPTIMIZERS, RunFile
from atom.graph.ir import ParameterLayout
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.swap.host_store import state_arenas
from atom.swap.state_form import StateArena, StateForm


def optimizer(run: RunFile) -> Optimizer:
    """The one that the run file names."""
    o = run.optimizer
    module, _, name = OPTIMIZERS[o.name].partition(":")
    make: Callable[..., Optimizer] = getattr(import_module(module), name)
    return make(betas=o.betas, epsilon=o.epsilon, weight_decay=o.weight_decay, seed=run.run.seed)


def state_form(run: RunFile) -> StateForm:
    return StateForm(run.optimizer.state)


def gradients(run: RunFile) -> torch.dtype:
    """In which numbers they leave the device and are summed."""
    return torch.bfloat16 if run.optimizer.gradients == "bfloat16" else torch.float32


def run_state(run: RunFile, layout: ParameterLayout) -> dict[str, StateArena]:
    """All that the run's state consists of: what a snapshot holds."""
    form = state_form(run)
    return state_arenas(layout, form, optimizer_state(optimizer(run), layout, form))
